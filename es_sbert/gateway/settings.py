"""Settings of the gateway, validated once and frozen."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

from es_sbert.config import DEFAULT_MODEL, EngineSettings, UsageErrorModel, expand_home
from es_sbert.engines.rest import Json
from es_sbert.errors import ModelNotFound, UsageError

DEFAULT_SEARCH_LOG_INDEX = "es-sbert-searches"
# The report index of the examples (`es-sbert ingest --report-index`).
DEFAULT_REPORT_INDEX = "es-sbert-loads"
_INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
# BLAKE2 takes at most 64 bytes; a key of less than 16 could be guessed.
MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 64


@dataclass(frozen=True)
class QueryTextPolicy:
    """Policy for logging query texts, which may be personal data.

    Attributes:
        queries: Whether to log the text itself.
        key: Key of the hash that is always logged (BLAKE2b, 16 bytes): equal queries can be counted, and texts cannot
            be guessed without the key.
    """

    queries: bool
    key: bytes = field(repr=False)

    @classmethod
    def from_options(cls, *, queries: bool, key: bytes | None = None) -> QueryTextPolicy:
        """Check or generate the key.

        Args:
            queries: Whether to log the text itself.
            key: None generates a key. Hashes of different processes are then not comparable.

        Raises:
            UsageError: the key is too short or too long.
        """
        if key is not None and not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
            raise UsageError(
                f"the key of the search log must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, not {len(key)}",
                "Create one: openssl rand -hex 32.",
            )
        return cls(queries=queries, key=key or secrets.token_bytes(MAX_KEY_BYTES))

    def of_texts(self, texts: Sequence[str]) -> Json:
        """Return the fields of a log document that record the texts of a search."""
        if not texts:
            return {}
        hashes = {"query_hash": [self._hash(text) for text in texts]}
        return hashes | {"query": list(texts)} if self.queries else hashes

    def _hash(self, text: str) -> str:
        # Queries that differ only in case or spaces are equal.
        normalized = " ".join(text.casefold().split()).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(normalized, digest_size=16, key=self.key).hexdigest()


def check_index_name(name: str) -> str:
    """Check the name of a log, which is the part of its index names before the month.

    Raises:
        UsageError: the name is not a valid index name.
    """
    if not _INDEX_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid index name",
            "Use lowercase letters, digits, hyphens and underscores; start with a letter or digit.",
        )
    return name


def monthly_index_pattern(name: str) -> str:
    """Index pattern of all months."""
    return f"{name}-*"


# Ends of the names of log files. `--search-log` took the name of an index before.
_LOG_SUFFIXES = (".json", ".jsonl", ".log", ".ndjson")


@dataclass(frozen=True)
class SearchLogSettings:
    """Settings of the search log.

    Attributes:
        path: File to which the lines are appended; `-` for stdout.
        wording: Form in which query texts are logged.
        gateway: Name of this gateway.
        buffer: Maximum records that wait to be written; more are dropped and counted.
        close_seconds: Time to write the last records at shutdown.
    """

    path: Path
    wording: QueryTextPolicy
    gateway: str
    buffer: int = 10_000
    close_seconds: float = 5.0

    def __post_init__(self) -> None:
        name = str(self.path)
        if _INDEX_NAME.fullmatch(name) and not name.endswith(_LOG_SUFFIXES):
            raise UsageError(
                f"the search log {name!r} is the name of an index, but the gateway writes it to a file",
                f"Set --search-log to a file ({name}.jsonl) or to - for stdout, and ship the lines to the index: "
                "docs/kibana.md describes how.",
            )


class FrozenSettings(UsageErrorModel):
    """Immutable settings. Unknown names are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EmbeddingsApiSettings(FrozenSettings):
    """Limits and authentication of the embeddings API.

    Attributes:
        max_texts: Maximum texts of a request.
        max_characters: Maximum characters of all texts of a request.
        max_body: Maximum bytes of a request.
        api_key: Required bearer token; None for none.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    max_texts: int = Field(default=2048, ge=1)
    max_characters: int = Field(default=2_000_000, ge=1)
    max_body: int = Field(default=16 << 20, ge=1)
    api_key: SecretStr | None = None


class EmbeddingSettings(FrozenSettings):
    """Batching and caching of texts from concurrent requests.

    Attributes:
        batch_tokens: Maximum padded tokens of a batch; the encoder's default if None.
        waiting_texts: Maximum texts that wait for their vectors, including running batches; more are refused.
        cached_vectors: Size of the vector cache (1.5 kB per vector of 384 dimensions).
    """

    batch_tokens: int | None = Field(default=None, ge=1)
    waiting_texts: int = Field(default=4096, ge=1)
    cached_vectors: int = Field(default=10_000, ge=0)


class ModelNotServed(ModelNotFound):
    """A client named a model that the gateway does not serve."""


class ModelSettings(FrozenSettings):
    """The models of a gateway.

    Attributes:
        models: Models that clients may name: folders, bundles, hub ids, installed or registered names. The first is
            the default.
        aliases: Additional name for clients (`text-embedding-3-small`) → one of `models`.
        device, precision, runtime, threads: Options of `Encoder`, for all models.
        in_memory: Maximum loaded models; the least recently used is dropped.
        download: Whether a model that only a mapping names may be downloaded from the hub.
    """

    models: tuple[str, ...] = Field(default=(DEFAULT_MODEL,), min_length=1)
    aliases: Mapping[str, str] = Field(default_factory=dict)
    device: str = "auto"
    precision: str = "auto"
    runtime: str = "auto"
    threads: int | None = Field(default=None, ge=1)
    in_memory: int = Field(default=2, ge=1)
    download: bool = False

    @model_validator(mode="after")
    def _names_are_clear(self) -> ModelSettings:
        names = [public_name(model) for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two models would be served as {name!r}", "Rename the folder of one of them.")
        for alias, model in self.aliases.items():
            if model not in {*self.models, *names}:
                raise UsageError(
                    f"the alias {alias!r} points to {model!r}, which is not served", f"Use one of: {', '.join(names)}."
                )
            if alias in {*self.models, *names}:
                raise UsageError(f"{alias!r} is a model and cannot be an alias too", "Choose another name.")
        return self

    @property
    def public_names(self) -> tuple[str, ...]:
        """Model names shown to clients, the default first. They do not reveal folders."""
        return tuple(map(public_name, self.models))

    def find(self, name: str | None) -> str:
        """Return the model that a client names; the default for None.

        Raises:
            ModelNotServed: the gateway serves no model of that name.
        """
        names = dict(zip(self.public_names, self.models, strict=True)) | {model: model for model in self.models}
        name = self.models[0] if name is None else self.aliases.get(name, name)
        if name not in names:
            raise ModelNotServed(
                f"this gateway serves no model {name!r}",
                f"Use one of: {', '.join([*self.public_names, *self.aliases])}; --also-model adds more.",
            )
        return names[name]


def public_name(model: str) -> str:
    """A model's name for clients: the last part of a folder's path, else the whole name."""
    folder = expand_home(model)
    return folder.resolve().name if folder.is_dir() or model.startswith((".", "/", "~")) else model


DEFAULT_PORT = 9280
MIB = 1024 * 1024
_ORIGIN = re.compile(r"https?://[^/?#\s@]+")


class Limits(FrozenSettings):
    """Limits on requests and connections.

    Attributes:
        body_bytes: Maximum bytes of a request body, as sent and decompressed. The engines' limit is 100 MiB.
        buffered_bytes: Maximum bytes of all bodies in memory, as sent and decompressed; more are refused (429). None
            is 1 GiB, or twice `body_bytes` if that is more.
        concurrency: Maximum concurrent requests whose body is complete; more are refused (429).
        connections: Maximum open connections; None derives it from the limit of open files, at most 10,000.
        client_connections: Maximum open connections of one address; an IPv6 /64 network counts as one.
        query_characters: Maximum characters of a semantic query's text.
        bulk_actions: Maximum actions of a bulk request (413).
        search_bytes: Maximum bytes of a search, or of all in an `_msearch`, that is parsed for semantic queries.
        semantic_queries: Maximum semantic queries of a request.
        semantic_texts: Maximum different texts that a search request may embed.
        semantic_text_bytes: Maximum bytes of these texts together.
        connect_seconds: Timeout of a connection to the engine.
        answer_seconds: Timeout of the engine's response, and between two chunks of it. Long, because a synchronous
            reindex sends nothing until its end.
        health_seconds: Timeout of the health request to a node that does not respond to a request.
        unanswered_seconds: Time without a response after which that health request is sent.
        idle_seconds: Timeout between two chunks of a request body, and of an idle connection.
        body_seconds: Maximum time spent waiting for one body (408).
        body_rate: Minimum bytes per second of a body while the gateway waits for it (408).
        body_grace_seconds: Time before the minimum rate applies.
    """

    body_bytes: int = Field(default=100 * MIB, ge=1)
    buffered_bytes: int | None = Field(default=None, ge=1)
    concurrency: int = Field(default=512, ge=1)
    connections: int | None = Field(default=None, ge=1)
    client_connections: int = Field(default=1024, ge=1)
    query_characters: int = Field(default=10_000, ge=1)
    bulk_actions: int = Field(default=250_000, ge=1)
    search_bytes: int = Field(default=10 * MIB, ge=1)
    semantic_queries: int = Field(default=256, ge=1)
    semantic_texts: int = Field(default=256, ge=1)
    semantic_text_bytes: int = Field(default=256 * 1024, ge=1)
    connect_seconds: float = Field(default=10.0, gt=0)
    answer_seconds: float = Field(default=3600.0, gt=0)
    health_seconds: float = Field(default=3.0, gt=0)
    unanswered_seconds: float = Field(default=5.0, gt=0)
    idle_seconds: float = Field(default=75.0, gt=0)
    body_seconds: float = Field(default=600.0, gt=0)
    body_rate: float = Field(default=1024.0, gt=0)
    body_grace_seconds: float = Field(default=20.0, gt=0)

    @property
    def max_buffered_bytes(self) -> int:
        """Maximum bytes of all bodies in memory."""
        return max(1024 * MIB, 2 * self.body_bytes) if self.buffered_bytes is None else self.buffered_bytes

    @model_validator(mode="after")
    def _takes_one_body(self) -> Limits:
        # A body as sent and decompressed must fit: a request that can never succeed must not be answered with 429.
        if self.buffered_bytes is not None and self.buffered_bytes < 2 * self.body_bytes:
            raise UsageError(
                f"`buffered_bytes` ({self.buffered_bytes:,} bytes) is less than twice `body_bytes` "
                f"({self.body_bytes:,} bytes)",
                "Set `buffered_bytes` to at least twice `body_bytes`.",
            )
        return self


class OnEmbeddingFailure(StrEnum):
    """Policy for a document that cannot be embedded."""

    FAIL = "fail"  # it is refused with a retryable status
    PASS = "pass"  # it is written without vectors


class HideVectors(StrEnum):
    """Whether search hits are returned without vectors and their metadata, unless the caller asks for them."""

    AUTO = "auto"  # if a document that is written back without them gets them again
    ALWAYS = "always"
    NEVER = "never"


class SemanticSettings(FrozenSettings):
    """Settings for rewriting semantic queries and embedding documents.

    Attributes:
        virtual_field: Field name for semantic queries on an index's first vector field: `semantic: "…"`. Other vector
            fields are `semantic.NAME`.
        k: Number of nearest documents that a semantic query on the virtual field finds.
        min_cosine: Drop hits whose cosine is below this value. None uses the value in the mapping of their index; if
            it has none, all k are kept.
        num_candidates: Candidates per shard; None derives them from k.
        hybrid: Whether `match` and `multi_match` queries on an embedded text become hybrid (`HybridDetector`), unless
            the request's header overrides it.
        semantic_weight: Weight of the semantic ranking in hybrid queries, against 1 for the keyword ranking; None is
            the measured optimum (`es_sbert.search.hybrid_search`).
        writes: Whether to embed documents that are written through the gateway.
        on_embedding_failure: Policy for a document that cannot be embedded.
        hide_vectors: Whether search hits are returned without vectors and their metadata.
    """

    virtual_field: str = "semantic"
    k: int = Field(default=100, ge=1, le=10_000)
    min_cosine: float | None = Field(default=None, ge=-1.0, le=1.0)
    num_candidates: int | None = Field(default=None, ge=1, le=10_000)
    hybrid: bool = False
    semantic_weight: float | None = Field(default=None, gt=0)
    writes: bool = True
    on_embedding_failure: OnEmbeddingFailure = OnEmbeddingFailure.FAIL
    hide_vectors: HideVectors = HideVectors.AUTO

    @field_validator("virtual_field")
    @classmethod
    def _is_a_field_name(cls, value: str) -> str:
        if not value or value[0] == "_" or any(character in value for character in '.*?,{}[]"\\^: \t\n()'):
            raise UsageError(
                f"{value!r} is not a valid name of the virtual field",
                "Use letters, digits and underscores, e.g. semantic.",
            )
        return value


class ListenSettings(FrozenSettings):
    """Listening address of the gateway.

    Attributes:
        host: Address to listen on. Any address other than 127.0.0.1 makes it reachable from other machines.
        port: TCP port.
        path_prefix: Path before the gateway's own endpoints (`/ui`, `/healthz`, …), if indices have such names.
        cors_origins: Origins of web pages that may call the gateway; none by default.
        allowed_hosts: Names or IP addresses by which clients may call the gateway; any by default.
        certificate, key: PEM files for https.
        drain_seconds: Time from SIGTERM until the gateway stops listening.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65_535)
    path_prefix: str = ""
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    drain_seconds: float = Field(default=0.0, ge=0, le=3600)

    @model_validator(mode="after")
    def _goes_together(self) -> ListenSettings:
        if self.path_prefix and (not self.path_prefix.startswith("/") or self.path_prefix.endswith("/")):
            raise UsageError(
                f"{self.path_prefix!r} is not a valid path prefix",
                "Start it with a slash, and do not end it with one: /-/sbert.",
            )
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"{origin!r} is not a valid origin",
                    "Use scheme and host without a path: https://app.example:8443.",
                )
        for host in self.allowed_hosts:
            if not host or not host.isprintable() or any(character in host for character in "/[]@ "):
                raise UsageError(
                    f"{host!r} is not a host name or IP address", "Write it without a port: search.example, ::1."
                )
        if self.key is not None and self.certificate is None:
            raise UsageError("a TLS key requires its certificate", "Set `certificate` too.")
        return self


class GatewaySettings(FrozenSettings):
    """Settings of a gateway.

    Attributes:
        upstream: The engine. Its credentials are the gateway's own: the gateway reads mappings and writes its search
            log with them, and never uses them for a client's request.
        listen, limits, semantic, models, embedding, embeddings_api: See their classes.
        metrics_key: Bearer token that `/metrics` requires; None for none.
        search_log: None turns the search log off.
    """

    upstream: EngineSettings
    listen: ListenSettings = ListenSettings()
    limits: Limits = Limits()
    semantic: SemanticSettings = SemanticSettings()
    models: ModelSettings = ModelSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    embeddings_api: EmbeddingsApiSettings = EmbeddingsApiSettings()
    metrics_key: SecretStr | None = None
    search_log: SearchLogSettings | None = None
