"""Prometheus metrics of the gateway and the `/metrics` endpoint; `docs/operations.md` lists them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from es_sbert.gateway.admission import AdmissionControl, ConnectionLimiter, has_bearer_key
from es_sbert.gateway.upstream_nodes import UpstreamNode

_NAMESPACE = "es_sbert_gateway"
_SECONDS_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TEXTS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class RequestOutcome:
    """Kind and status of a request, set while it is handled.

    Attributes:
        kind: `embeddings`, `search`, `write`, `passed`, ….
        status: HTTP status; 499, as in nginx, if the client disconnected before the response.
    """

    kind: str
    status: int = 499


class GatewayMetrics:
    """Metrics of one gateway, in a separate registry.

    Args:
        models: Model names that may be labels. Other models were named by a mapping and count as `other`.

    Attributes:
        registry: Holds the metrics.
        upstream_errors: Requests without a response of the engine; the reason is `unreachable` or `timeout`.
        texts_waiting, cache_hits: Metrics of the embedder.
        documents: Documents with changed texts, by outcome.
        documents_without_vector: Documents written without the vector of a vector field, by reason.
        unread_writes: Write requests that pass through without being read, by reason.
    """

    def __init__(self, models: Collection[str] = ()) -> None:
        self.registry = registry = CollectorRegistry()
        self._named = frozenset(models)

        counter = partial(Counter, namespace=_NAMESPACE, registry=registry)
        gauge = partial(Gauge, namespace=_NAMESPACE, registry=registry)
        histogram = partial(Histogram, namespace=_NAMESPACE, registry=registry)
        self._requests = counter("requests", "Requests by kind and HTTP status.", ["kind", "status"])
        self._seconds = histogram("request_seconds", "Time to handle a request.", ["kind"], buckets=_SECONDS_BUCKETS)
        self._running = gauge("requests_running", "Requests in progress.")
        unanswered = "Requests without a response of the engine, by reason."
        self.upstream_errors = counter("upstream_errors", unanswered, ["reason"])
        self._nodes = gauge("upstream_up", "1 if requests are sent to the node, 0 if it is excluded.", ["node"])
        self.texts_waiting = gauge("texts_waiting", "Texts waiting to be embedded.")
        self._vectors = counter("vectors", "Vectors by source: cache or model.", ["source"])
        self.cache_hits = self._vectors.labels("cache")
        self._batch_texts = histogram("batch_texts", "Texts per batch.", buckets=_TEXTS_BUCKETS)
        self._batch_seconds = histogram("batch_seconds", "Time to embed one batch.", buckets=_SECONDS_BUCKETS)
        in_memory = "Models in memory, by name. Models that clients cannot name are `other`."
        self._models = gauge("model_loaded", in_memory, ["model", "fingerprint"])
        self._connections = gauge("connections", "Open connections.")
        self._refused = counter("connections_refused", "Connections refused because too many were open.")
        self._buffered = gauge("buffered_bytes", "Bytes of request bodies in memory.")
        self.documents = counter(
            "documents", "Documents with changed texts, by outcome: embedded, without vectors or refused.", ["outcome"]
        )
        lacking = "Documents written without the vector of a vector field, by reason."
        self.documents_without_vector = counter("documents_without_vector", lacking, ["reason"])
        unread = "Write requests that pass through without being read, by reason."
        self.unread_writes = counter("unread_writes", unread, ["reason"])
        # Memory, CPU time and open files of this process.
        ProcessCollector(registry=registry)

    @contextmanager
    def request(self, kind: str) -> Iterator[RequestOutcome]:
        """Measure one request.

        Args:
            kind: Its kind (`embeddings`, `search`, `write`, `passed`, …), which may be changed in the outcome.
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

    def observe_batch(self, texts: int, seconds: float) -> None:
        """Count the texts of an embedded batch and its time."""
        self._vectors.labels("model").inc(texts)
        self._batch_texts.observe(texts)
        self._batch_seconds.observe(seconds)

    def model_loaded(self, model: str, fingerprint: str) -> None:
        """Count a loaded model."""
        self._models.labels(*(model, fingerprint) if model in self._named else ("other", "")).inc()

    def track_nodes(self, nodes: Sequence[UpstreamNode]) -> None:
        """At each scrape, report which nodes of the engine get requests: by number, since addresses are not public."""
        for node in nodes:
            self._nodes.labels(str(node.number)).set_function(lambda node=node: float(node.is_alive))  # type: ignore[misc]

    def track(self, admission: AdmissionControl, connections: ConnectionLimiter) -> None:
        """Report connections and buffered bytes at each scrape, and count refused connections."""
        self._buffered.set_function(lambda: admission.buffered_bytes)
        self._connections.set_function(lambda: connections.open)
        connections.on_refused = self._refused.inc


def metrics_routes(metrics: GatewayMetrics, key: SecretStr | None = None) -> list[Route]:
    """Create the route `GET /metrics`.

    Args:
        key: Required bearer token; None for none.
    """

    async def show(request: Request) -> Response:
        if not has_bearer_key(request, key):
            return PlainTextResponse(
                "The key is missing or wrong. Send the key in --metrics-key-file as `Authorization: Bearer KEY`.\n",
                401,
                {"www-authenticate": "Bearer"},
            )
        return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return [Route("/metrics", show, methods=["GET"])]
