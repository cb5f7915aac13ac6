"""Settings of the gateway, validated once and frozen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

from es_sbert.config import DEFAULT_MODEL, EngineSettings, FrozenSettings, expand_home
from es_sbert.errors import ModelNotFound, UsageError
from es_sbert.messages import setting

DEFAULT_SEARCH_LOG_INDEX = "es-sbert-searches"
_INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")


def check_index_name(name: str) -> str:
    """Check the name of a log, which is the part of its index names before the month.

    Raises:
        UsageError: the name is not a valid index name.
    """
    if not _INDEX_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a valid index name",
            "Use lowercase letters, digits, hyphens and underscores; start with a letter or digit.",
        ).about("search_log", name)
    return name


@dataclass(frozen=True)
class SearchLogSettings:
    """Settings of the search log.

    Attributes:
        path: File to which the lines are appended; `-` for stdout.
        log_queries: With --search-log: also log the query texts, not only their keyed hashes.
        gateway: Name of this gateway.
        buffer: Maximum records that wait to be written; more are dropped and counted.
        close_seconds: Time to write the last records at shutdown.
    """

    path: Path
    log_queries: bool
    gateway: str
    buffer: int = 10_000
    close_seconds: float = 5.0


class ModelNotServed(ModelNotFound):
    """A client named a model that the gateway does not serve."""


class ModelSettings(FrozenSettings):
    """The models of a gateway.

    Attributes:
        models: Models that clients may name: folders, bundles, hub ids, installed or registered names. The first is
            the default.
        device, precision, runtime, threads: Options of `Encoder`, for all models.
    """

    models: tuple[str, ...] = Field(default=(DEFAULT_MODEL,), min_length=1)
    device: str = "auto"
    precision: str = "auto"
    runtime: str = "auto"
    threads: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _names_are_clear(self) -> ModelSettings:
        for name in self.public_names:
            if self.public_names.count(name) > 1:
                raise UsageError(f"two models would be served as {name!r}", "Rename the folder of one of them.").about(
                    "models"
                )
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
        for model, public in zip(self.models, self.public_names, strict=True):
            if name in (None, model, public):
                return model
        raise ModelNotServed(
            f"this gateway serves no model {name!r}",
            f"Use one of: {', '.join(self.public_names)}; --also-model adds more.",
        )


def public_name(model: str) -> str:
    """A model's name for clients: the last part of a folder's path, else the whole name."""
    folder = expand_home(model)
    return folder.resolve().name if folder.is_dir() or model.startswith((".", "/", "~")) else model


DEFAULT_PORT = 9280
MIB = 1024 * 1024


class Limits(FrozenSettings):
    """Limits on requests, connections and texts.

    Attributes:
        body_bytes: Maximum size of a request body. All bodies together may take ten times as much, but no more than
            1024 MiB or two bodies; more are refused (429).
        concurrency: Maximum concurrent requests; more are refused (429). A request counts once its body is complete.
        client_connections: Maximum open connections from one address; more are refused (429). Raise it if callers
            connect through a reverse proxy, which gives all of them one address.
        answer_seconds: Maximum time for the engine to respond. Long, because a synchronous reindex sends nothing until
            its end.
        unanswered_seconds: Time without a response after which a health request is sent to the node.
        health_seconds: Maximum time for a node to answer a health request. Two are sent; a node that answers neither
            counts as stopped.
        buffered_bytes: Maximum bytes of all bodies in memory; None to derive it from `body_bytes`. At least two bodies.
        search_bytes: Maximum bytes of a search that is read for semantic queries. Above any search that people write.
        bulk_actions: Maximum actions of one bulk request. A million take minutes, and clients send thousands.
        semantic_queries: Maximum semantic queries of one request. Each becomes a kNN query of the engine.
        semantic_text_bytes: Maximum bytes of the distinct texts to embed for one search request.
            Others wait for them.
        query_characters: Maximum characters of a semantic query's text. Models read a few thousand.
        connections: Maximum open connections; None for what the limit of open files allows, at most 10,000.
        connect_seconds: Timeout of a connection to the engine.
        idle_seconds: Timeout between two chunks of a request body, and of an idle connection, as in nginx.
        body_seconds: Maximum time to wait for the body of a request.
        body_rate, body_grace_seconds: Minimum bytes per second of a body, far below that of any network, and the time
            before that applies.
        embeddings_texts, embeddings_characters, embeddings_bytes: Maximum texts, characters and bytes of a request to
            `/v1/embeddings`.
        batch_tokens: Maximum padded tokens of a batch; the encoder's default if None.
        waiting_texts: Maximum texts that wait for their vectors, including running batches; more are refused.
        cached_vectors: Size of the vector cache (1.5 kB per vector of 384 dimensions).
    """

    body_bytes: int = Field(default=100 * MIB, ge=1)
    concurrency: int = Field(default=512, ge=1)
    client_connections: int = Field(default=1024, ge=1)
    answer_seconds: float = Field(default=3600.0, gt=0)
    unanswered_seconds: float = 5.0
    health_seconds: float = Field(default=3.0, gt=0)
    buffered_bytes: int | None = None
    search_bytes: int = 10 * MIB
    bulk_actions: int = 250_000
    semantic_queries: int = 256
    semantic_text_bytes: int = 256 * 1024
    query_characters: int = 10_000
    connections: int | None = None
    connect_seconds: float = 10.0
    idle_seconds: float = 75.0
    body_seconds: float = 600.0
    body_rate: int = 1024
    body_grace_seconds: float = 20.0
    embeddings_texts: int = 2048
    embeddings_characters: int = 2_000_000
    embeddings_bytes: int = 16 * MIB
    batch_tokens: int | None = None
    waiting_texts: int = 4096
    cached_vectors: int = 10_000

    @property
    def max_buffered_bytes(self) -> int:
        """Maximum bytes of all bodies in memory, as sent and decompressed.

        A body fits twice: a request that can never succeed must not be answered with 429.
        """
        return max(2 * self.body_bytes, self.buffered_bytes or min(10 * self.body_bytes, 1024 * MIB))


class HideVectors(StrEnum):
    """Whether search hits are returned without vectors and their metadata, unless the caller asks for them."""

    AUTO = "auto"  # if a document that is written back without them gets them again
    ALWAYS = "always"
    NEVER = "never"


class SemanticSettings(FrozenSettings):
    """Settings for rewriting semantic queries and embedding documents.

    Attributes:
        virtual_field: Name of the field that semantic queries search: semantic: "how do plants make energy".
        k: Number of documents per semantic query.
        min_cosine: Drop hits whose cosine is below this value. [default: that of `es-sbert index calibrate --save`]
        num_candidates: Candidates per shard. [default: twice k, at least 100]
        hybrid: Turn match and multi_match queries on an embedded text into hybrid queries.
        semantic_weight: Weight of the semantic ranking in hybrid queries; the keyword ranking has weight 1.
            [default: 3]
        writes: Embed documents that are written through the gateway.
        hide_vectors: Leave vectors and their metadata out of hits, unless the search asks for them. auto: only if a
            document that is written back without them gets them again.
    """

    virtual_field: str = "semantic"
    k: int = Field(default=100, ge=1, le=10_000)
    min_cosine: float | None = Field(default=None, ge=-1, le=1)
    num_candidates: int | None = Field(default=None, ge=1, le=10_000)
    hybrid: bool = False
    semantic_weight: float | None = Field(default=None, gt=0)
    writes: bool = True
    hide_vectors: HideVectors = HideVectors.AUTO

    @field_validator("virtual_field")
    @classmethod
    def _is_a_field_name(cls, value: str) -> str:
        if not value or value[0] == "_" or any(character in value for character in '.*?,{}[]"\\^: \t\n()'):
            raise UsageError(
                f"{value!r} is not a valid name of the virtual field",
                "Use letters, digits and underscores, e.g. semantic.",
            ).about("virtual_field", value)
        return value


class ListenSettings(FrozenSettings):
    """Listening address of the gateway.

    Attributes:
        host: Address to listen on. An address other than the default opens the gateway to other machines.
        port: TCP port.
        certificate: PEM file of the certificate, for HTTPS.
        key: PEM file of the certificate's key.
        allowed_hosts: Accept only requests to this host name (421 for others), to prevent DNS rebinding. May be given
            several times. [default: any]
        drain_seconds: On SIGTERM, fail /readyz and keep answering for this long, so that a load balancer notices before
            the gateway stops listening. Requests in progress then have 30 more seconds.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65_535)
    certificate: Path | None = None
    key: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    drain_seconds: float = Field(default=0.0, ge=0, le=3600)

    @model_validator(mode="after")
    def _goes_together(self) -> ListenSettings:
        for host in self.allowed_hosts:
            if not host or not host.isprintable() or any(character in host for character in "/[]@ "):
                raise UsageError(
                    f"{host!r} is not a host name or IP address", "Write it without a port: search.example, ::1."
                ).about("allowed_hosts", host)
        if self.key is not None and self.certificate is None:
            raise UsageError("a TLS key requires its certificate", f"Add {setting('certificate')}.").about("key")
        return self


class GatewaySettings(FrozenSettings):
    """Settings of a gateway.

    Attributes:
        upstream: The engine. Its credentials are the gateway's own: the gateway reads mappings and writes its search
            log with them, and never uses them for a client's request.
        listen, limits, semantic, models: See their classes.
        embeddings_key, metrics_key: Bearer tokens that `/v1/` and `/metrics` require; None for none.
        search_log: Append a line of JSON for each search to this file, or write it to stdout (-).
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    upstream: EngineSettings
    listen: ListenSettings = ListenSettings()
    limits: Limits = Limits()
    semantic: SemanticSettings = SemanticSettings()
    models: ModelSettings = ModelSettings()
    embeddings_key: SecretStr | None = None
    metrics_key: SecretStr | None = None
    search_log: SearchLogSettings | None = None
