"""Settings of the gateway, validated once and frozen."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from es_sbert.config import DEFAULT_MODEL, EngineSettings, expand_home
from es_sbert.engines.protocol import Json
from es_sbert.errors import ModelNotFound, UsageError

DEFAULT_SEARCH_LOG_INDEX = "es-sbert-searches"
_INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
# BLAKE2's own limits on a key, in bytes; a shorter one could be tried out.
MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 64


@dataclass(frozen=True)
class QueryTextPolicy:
    """What the log says of a query's text.

    Attributes:
        queries: Whether the text itself is written. People type names, illnesses and passwords into search boxes.
        key: Otherwise its hash under this key (BLAKE2b, 16 bytes), so that repetitions can be counted and nobody
            without the key can try out texts.
    """

    queries: bool
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, *, queries: bool, key: bytes | None = None) -> QueryTextPolicy:
        """
        Args:
            queries: Whether texts are written.
            key: None makes one for this process: hashes of different processes then have nothing in common.

        Raises:
            UsageError: a key that is too short or too long.
        """
        if key is not None and not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
            raise UsageError(
                f"the key of the search log has {len(key)} bytes, not {MIN_KEY_BYTES} to {MAX_KEY_BYTES}",
                "Make one: openssl rand -hex 32.",
            )
        return cls(queries=queries, key=key or secrets.token_bytes(MAX_KEY_BYTES))

    def of_texts(self, texts: Sequence[str]) -> Json:
        """The fields of a document that stand for its texts."""
        if not texts:
            return {}
        hashes = {"query_hash": [self._hash(text) for text in texts]}
        return hashes | {"query": list(texts)} if self.queries else hashes

    def _hash(self, text: str) -> str:
        # Case and spaces make no other query of it.
        same = " ".join(text.casefold().split()).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(same, digest_size=16, key=self.key).hexdigest()


def check_index_name(name: str) -> str:
    """The name before the month.

    Raises:
        UsageError: engines do not take such a name.
    """
    if not _INDEX_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for an index",
            "Use small letters, digits, hyphens and underscores, with a letter or digit in front.",
        )
    return name


def monthly_index(name: str, at: datetime) -> str:
    """The index of a month: `es-sbert-searches-2026.01`. A month that nobody needs any more is deleted as a whole."""
    return f"{name}-{at.astimezone(UTC):%Y.%m}"


def monthly_index_pattern(name: str) -> str:
    """What Kibana, OpenSearch Dashboards and deletions call all months."""
    return f"{name}-*"


@dataclass(frozen=True)
class SearchLogSettings:
    """How searches are remembered.

    Attributes:
        index: Name of the log; each month is an index of its own.
        wording: What is written of the texts.
        gateway: Which gateway this is.
        buffer: Records that may wait; beyond it new ones are dropped and counted.
        batch: Most records of one bulk request.
        flush_seconds: How long a record waits for others.
        close_seconds: How long the end of the gateway waits for the last ones.
    """

    wording: QueryTextPolicy
    gateway: str
    index: str = DEFAULT_SEARCH_LOG_INDEX
    buffer: int = 10_000
    batch: int = 500
    flush_seconds: float = 5.0
    close_seconds: float = 5.0

    def __post_init__(self) -> None:
        check_index_name(self.index)


class EmbeddingsApiSettings(BaseModel):
    """Limits of the API, and who may use it.

    Attributes:
        max_texts: Most texts of a request.
        max_characters: Most characters of a request's texts together.
        max_body: Most bytes of a request.
        api_key: What callers must send as bearer token; None asks for nothing.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    max_texts: int = Field(default=2048, ge=1)
    max_characters: int = Field(default=2_000_000, ge=1)
    max_body: int = Field(default=16 << 20, ge=1)
    api_key: SecretStr | None = None


class EmbeddingSettings(BaseModel):
    """How texts of concurrent requests are put together.

    Attributes:
        batch_tokens: Most padded tokens of a batch; the encoder's own by default.
        waiting_texts: Most texts that wait for their vectors, or run; more are refused.
        cached_vectors: Vectors that are kept for texts that come again (1.5 kB each at 384 dimensions).
    """

    model_config = ConfigDict(frozen=True)

    batch_tokens: int | None = Field(default=None, ge=1)
    waiting_texts: int = Field(default=4096, ge=1)
    cached_vectors: int = Field(default=10_000, ge=0)


class ModelSettings(BaseModel):
    """The models of a gateway.

    Attributes:
        models: Model folders, bundles, hub ids, installed or registered names that clients may name; the first is the
            default.
        aliases: More names that clients may use (`text-embedding-3-small`) → one of `models`.
        device, precision, threads: As `Encoder` takes them, for all models.
        in_memory: How many models are kept loaded; at one more, the least recently used is dropped.
        download: Whether a model that only a mapping names may be fetched from the hub.
    """

    model_config = ConfigDict(frozen=True)

    models: tuple[str, ...] = Field(default=(DEFAULT_MODEL,), min_length=1)
    aliases: Mapping[str, str] = Field(default_factory=dict)
    device: str = "auto"
    precision: str = "auto"
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
                    f"the alias {alias!r} stands for {model!r}, which is not served",
                    f"Let it stand for one of: {', '.join(names)}.",
                )
            if alias in {*self.models, *names}:
                raise UsageError(f"{alias!r} is a model and cannot be an alias too", "Choose another name.")
        return self

    @property
    def public_names(self) -> tuple[str, ...]:
        """What clients call the models, the default first; where a model's folder is, is none of their business."""
        return tuple(map(public_name, self.models))

    def find(self, name: str | None) -> str:
        """The model that a client names; the default where it names none.

        Raises:
            ModelNotFound: the gateway serves none of that name.
        """
        names = dict(zip(self.public_names, self.models, strict=True)) | {model: model for model in self.models}
        name = self.models[0] if name is None else self.aliases.get(name, name)
        if name not in names:
            raise ModelNotFound(
                f"this gateway serves no model {name!r}",
                f"Name one of: {', '.join([*self.public_names, *self.aliases])}; --also-model adds more.",
            )
        return names[name]


def public_name(model: str) -> str:
    """A model's name for clients: of a folder, there or not, its own name; else all of it."""
    folder = expand_home(model)
    return folder.resolve().name if folder.is_dir() or model.startswith((".", "/", "~")) else model


DEFAULT_PORT = 9280
MIB = 1024 * 1024
_ORIGIN = re.compile(r"https?://[^/?#\s@]+")
_FROZEN = ConfigDict(frozen=True, extra="forbid")


class Limits(BaseModel):
    """What a caller may ask of the gateway before it says no.

    Attributes:
        body_bytes: Largest body of a request, as sent and when decompressed. The engines' own limit is 100 MiB.
        buffered_bytes: Bytes of all bodies that are kept in memory, as sent and when decompressed; beyond it requests
            are refused (429). None is 1 GiB, or twice `body_bytes` where that is more.
        concurrency: Requests whose body is complete that are answered at once; beyond it they are refused (429).
        connections: Open connections; None is what the limit of open files allows, at most 10,000.
        client_connections: Open connections from one address; all of a /64 of IPv6 count as one.
        query_characters: Longest text to search by.
        search_bytes: Largest search (for several, all of them together) that is read for semantic queries.
        semantic_queries: Semantic queries of one request.
        semantic_texts: Different texts that one search request has embedded.
        semantic_text_bytes: Bytes of these together.
        connect_seconds: To open a connection to the engine.
        answer_seconds: From the end of a request to the engine's answer, and between two parts of the answer. Long,
            since a reindex that is waited for says nothing until its end.
        idle_seconds: Between two parts of a request's body, and how long an idle connection is kept.
        body_seconds: Seconds that the gateway waits for the parts of one body, all together (408).
        body_rate: Bytes a second that a body must come at while the gateway waits for it (408).
        body_grace_seconds: Seconds that are given to each body before the rate counts.
    """

    model_config = _FROZEN

    body_bytes: int = Field(default=100 * MIB, ge=1)
    buffered_bytes: int | None = Field(default=None, ge=1)
    concurrency: int = Field(default=512, ge=1)
    connections: int | None = Field(default=None, ge=1)
    client_connections: int = Field(default=1024, ge=1)
    query_characters: int = Field(default=10_000, ge=1)
    search_bytes: int = Field(default=10 * MIB, ge=1)
    semantic_queries: int = Field(default=256, ge=1)
    semantic_texts: int = Field(default=256, ge=1)
    semantic_text_bytes: int = Field(default=256 * 1024, ge=1)
    connect_seconds: float = Field(default=10.0, gt=0)
    answer_seconds: float = Field(default=3600.0, gt=0)
    idle_seconds: float = Field(default=75.0, gt=0)
    body_seconds: float = Field(default=600.0, gt=0)
    body_rate: float = Field(default=1024.0, gt=0)
    body_grace_seconds: float = Field(default=20.0, gt=0)

    @property
    def max_buffered_bytes(self) -> int:
        """Bytes of all bodies in memory."""
        return max(1024 * MIB, 2 * self.body_bytes) if self.buffered_bytes is None else self.buffered_bytes

    @model_validator(mode="after")
    def _takes_one_body(self) -> Limits:
        # As sent and decompressed: a request that can never succeed must not be told to come again.
        if self.buffered_bytes is not None and self.buffered_bytes < 2 * self.body_bytes:
            raise UsageError(
                f"{self.buffered_bytes:,} bytes for all bodies are less than two of {self.body_bytes:,} bytes",
                "Give a --max-buffered of at least twice --max-body.",
            )
        return self


class OnEmbeddingFailure(StrEnum):
    """What becomes of a document whose vectors cannot be made."""

    FAIL = "fail"  # it is refused with a status that clients try again
    PASS = "pass"  # it is written without them


class SemanticSettings(BaseModel):
    """How requests are understood.

    Attributes:
        virtual_field: Field name by which a query means the index's vector field: `semantic: "…"`. A further vector
            field is `semantic.NAME`.
        k: Documents that a search by the virtual field keeps.
        min_cosine: Documents less near than this are no hits; None keeps all k.
        num_candidates: Vectors that each shard looks at; None is what suits k.
        hybrid: Whether plain `match` and `multi_match` on an embedded text are searched by meaning too, unless the
            request's header says otherwise.
        semantic_weight: What a cosine score of 1 adds to a hit's BM25 score in such searches; None is what was measured
            to be best (`es_sbert.search.hybrid_search`).
        writes: Whether documents written through the gateway get their vectors on the way in.
        on_embedding_failure: What becomes of a document whose vectors cannot be made.
    """

    model_config = _FROZEN

    virtual_field: str = "semantic"
    k: int = Field(default=100, ge=1, le=10_000)
    min_cosine: float | None = Field(default=None, ge=-1.0, le=1.0)
    num_candidates: int | None = Field(default=None, ge=1, le=10_000)
    hybrid: bool = False
    semantic_weight: float | None = Field(default=None, gt=0)
    writes: bool = True
    on_embedding_failure: OnEmbeddingFailure = OnEmbeddingFailure.FAIL

    @field_validator("virtual_field")
    @classmethod
    def _is_a_field_name(cls, value: str) -> str:
        if not value or value[0] == "_" or any(character in value for character in '.*?,{}[]"\\^: \t\n()'):
            raise UsageError(
                f"{value!r} is no name for the virtual field", "Use letters, digits and underscores, e.g. semantic."
            )
        return value


class ListenSettings(BaseModel):
    """Where callers find the gateway.

    Attributes:
        host: Address to listen on; everything else than 127.0.0.1 opens it to other machines.
        port: TCP port.
        path_prefix: Path before the gateway's own endpoints (`/ui`, `/healthz`, …), if indices have such names.
        cors_origins: Origins of pages that may call from a browser; none by default.
        certificate, key: PEM files, to serve https.
    """

    model_config = _FROZEN

    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65_535)
    path_prefix: str = ""
    cors_origins: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> ListenSettings:
        if self.path_prefix and (not self.path_prefix.startswith("/") or self.path_prefix.endswith("/")):
            raise UsageError(
                f"{self.path_prefix!r} is no prefix of a path",
                "Write it with a slash in front and none behind: /-/sbert.",
            )
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"{origin!r} is no origin of pages", "Write scheme and host, and no path: https://app.example:8443."
                )
        if self.key is not None and self.certificate is None:
            raise UsageError("a TLS key is given without its certificate", "Give --tls-certificate too.")
        return self


class GatewaySettings(BaseModel):
    """Everything about one gateway.

    Attributes:
        upstream: The one engine that requests go to. Credentials here are the gateway's own: it reads mappings and
            writes its search log by them. They are never lent to a caller, whose requests carry their own.
        listen, limits, semantic, models, embedding, embeddings_api: See there.
        metrics_key: What callers of `/metrics` must send as bearer token; None asks for nothing.
        search_log: How searches are remembered; None for not at all.
    """

    model_config = _FROZEN

    upstream: EngineSettings
    listen: ListenSettings = ListenSettings()
    limits: Limits = Limits()
    semantic: SemanticSettings = SemanticSettings()
    models: ModelSettings = ModelSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    embeddings_api: EmbeddingsApiSettings = EmbeddingsApiSettings()
    metrics_key: SecretStr | None = None
    search_log: SearchLogSettings | None = None
