"""Prometheus metrics of the gateway and the `/metrics` endpoint; `docs/operations.md` lists them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from es_sbert.gateway.admission import AdmissionControl, ConnectionLimiter, has_bearer_key

_SECONDS_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TEXTS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class RequestOutcome:
    """How a request ended, set by whoever answers it.

    Attributes:
        kind: What it asked for, one of few words.
        status: HTTP status; 499, as nginx writes it, where the client went away before there was one.
    """

    kind: str
    status: int = 499


class GatewayMetrics:
    """Counts and times of one gateway, in a registry of its own.

    Args:
        models: Names of models that may stand in a label: whatever else is loaded was named by a mapping.
    """

    def __init__(self, models: Collection[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._named = frozenset(models)
        self._requests = Counter(
            "es_sbert_gateway_requests", "Requests by kind and HTTP status.", ["kind", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "es_sbert_gateway_request_seconds",
            "Time until a request was answered.",
            ["kind"],
            buckets=_SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._running = Gauge(
            "es_sbert_gateway_requests_running", "Requests that are being answered.", registry=self.registry
        )
        self._upstream = Counter(
            "es_sbert_gateway_upstream_errors",
            "Requests that the engine did not answer, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._waiting = Gauge(
            "es_sbert_gateway_texts_waiting", "Texts that wait for their vectors.", registry=self.registry
        )
        self._refused = Counter(
            "es_sbert_gateway_texts_refused", "Texts refused because too many waited.", registry=self.registry
        )
        self._vectors = Counter(
            "es_sbert_gateway_vectors",
            "Vectors given out, by where they came from: cache or model.",
            ["source"],
            registry=self.registry,
        )
        self._batch_texts = Histogram(
            "es_sbert_gateway_batch_texts", "Texts embedded together.", buckets=_TEXTS_BUCKETS, registry=self.registry
        )
        self._batch_seconds = Histogram(
            "es_sbert_gateway_batch_seconds",
            "Time to embed one batch.",
            buckets=_SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._models = Gauge(
            "es_sbert_gateway_model_loaded",
            "Models in memory, by name; those that only mappings name are `other`.",
            ["model", "fingerprint"],
            registry=self.registry,
        )
        self._connections = Gauge("es_sbert_gateway_connections", "Open connections.", registry=self.registry)
        self._connections_refused = _CallbackCounter(
            "es_sbert_gateway_connections_refused", "Connections refused because too many were open.", self.registry
        )
        self._buffered = Gauge(
            "es_sbert_gateway_buffered_bytes", "Bytes of requests' bodies in memory.", registry=self.registry
        )
        self._documents = Counter(
            "es_sbert_gateway_documents",
            "Documents written whose vectors change, by what became of these: embedded, without or refused.",
            ["outcome"],
            registry=self.registry,
        )
        # Memory, processor time and open files of this process.
        ProcessCollector(registry=self.registry)

    @contextmanager
    def request(self, kind: str) -> Iterator[RequestOutcome]:
        """Around one request.

        Args:
            kind: What it asks for (`embeddings`, `search`, `write`, `passed`, …), as far as that is known yet.
        """
        outcome = RequestOutcome(kind)
        start = time.perf_counter()
        self._running.inc()
        try:
            yield outcome
        except Exception:
            outcome.status = 500
            raise
        finally:
            self._running.dec()
            self._seconds.labels(outcome.kind).observe(time.perf_counter() - start)
            self._requests.labels(outcome.kind, str(outcome.status)).inc()

    def upstream_failed(self, reason: str) -> None:
        """The engine did not answer; `reason` is one of few words (`unreachable`, `timeout`, …)."""
        self._upstream.labels(reason).inc()

    def waiting(self, change: int) -> None:
        """So many texts more (or fewer, negative) wait for their vectors."""
        self._waiting.inc(change)

    def refused(self, texts: int) -> None:
        """Texts were refused because too many waited."""
        self._refused.inc(texts)

    def from_cache(self, texts: int) -> None:
        """Vectors came from the cache."""
        self._vectors.labels("cache").inc(texts)

    def batch(self, texts: int, seconds: float) -> None:
        """A batch was embedded."""
        self._vectors.labels("model").inc(texts)
        self._batch_texts.observe(texts)
        self._batch_seconds.observe(seconds)

    def documents(self, *, embedded: int, without: int, refused: int) -> None:
        """Documents were written with their vectors, without because they could not be made, or refused for that."""
        for outcome, count in (("embedded", embedded), ("without", without), ("refused", refused)):
            self._documents.labels(outcome).inc(count)

    def model_loaded(self, model: str, fingerprint: str) -> None:
        """A model is in memory now."""
        self._models.labels(*self._labels(model, fingerprint)).inc()

    def model_dropped(self, model: str, fingerprint: str) -> None:
        """A model is not kept in memory any more."""
        self._models.labels(*self._labels(model, fingerprint)).dec()

    def _labels(self, model: str, fingerprint: str) -> tuple[str, str]:
        return (model, fingerprint) if model in self._named else ("other", "")

    def watch(self, admission: AdmissionControl, connections: ConnectionLimiter) -> None:
        """Show what is open and in memory whenever somebody looks."""
        self._buffered.set_function(lambda: admission.buffered_bytes)
        self._connections.set_function(lambda: connections.open)
        self._connections_refused.read = lambda: connections.refused


class _CallbackCounter:
    """A counter that something else counts.

    Attributes:
        read: Its value now.
    """

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self.read: Callable[[], float] = lambda: 0
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """As `prometheus_client` asks for it."""
        yield CounterMetricFamily(self._name, self._documentation, value=self.read())


def metrics_routes(metrics: GatewayMetrics, key: SecretStr | None = None) -> list[Route]:
    """`GET /metrics`.

    Args:
        key: What callers must send as bearer token; None asks for nothing.
    """

    async def show(request: Request) -> Response:
        if not has_bearer_key(request, key):
            return PlainTextResponse(
                "The key is missing or wrong. Send the one of --metrics-key-file as `Authorization: Bearer KEY`.\n",
                401,
                {"www-authenticate": "Bearer"},
            )
        return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return [Route("/metrics", show, methods=["GET"])]
