"""Metrics of the gateway for Prometheus, by its own client library; `docs/operations.md` lists them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class Outcome:
    """How a request ended, set by whoever answers it.

    Attributes:
        kind: What it asked for, one of few words.
        status: HTTP status; 499, as nginx writes it, where the client went away before there was one.
    """

    kind: str
    status: int = 499


class GatewayMetrics:
    """Counts and times of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "es_sbert_gateway_requests", "Requests by kind and HTTP status.", ["kind", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "es_sbert_gateway_request_seconds", "Time until a request was answered.", ["kind"], buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self._running = Gauge(
            "es_sbert_gateway_requests_running", "Requests that are being answered.", registry=self.registry
        )
        self._upstream = Counter(
            "es_sbert_gateway_upstream_errors", "Requests that the engine did not answer, by reason.", ["reason"],
            registry=self.registry,
        )  # fmt: skip
        self._waiting = Gauge(
            "es_sbert_gateway_texts_waiting", "Texts that wait for their vectors.", registry=self.registry
        )
        self._refused = Counter(
            "es_sbert_gateway_texts_refused", "Texts refused because too many waited.", registry=self.registry
        )
        self._vectors = Counter(
            "es_sbert_gateway_vectors", "Vectors given out, by where they came from: cache or model.", ["source"],
            registry=self.registry,
        )  # fmt: skip
        self._batch_texts = Histogram(
            "es_sbert_gateway_batch_texts", "Texts embedded together.", buckets=_TEXTS, registry=self.registry
        )
        self._batch_seconds = Histogram(
            "es_sbert_gateway_batch_seconds", "Time to embed one batch.", buckets=_SECONDS, registry=self.registry
        )
        self._models = Gauge(
            "es_sbert_gateway_model_loaded", "1 where the model is in memory, 0 where it was dropped.",
            ["model", "fingerprint"], registry=self.registry,
        )  # fmt: skip
        self._documents = Counter(
            "es_sbert_gateway_documents", "Documents written whose vectors change, by what became of these: embedded, "
            "without or refused.", ["outcome"], registry=self.registry,
        )  # fmt: skip
        # Memory, processor time and open files of this process.
        ProcessCollector(registry=self.registry)

    @contextmanager
    def request(self, kind: str) -> Iterator[Outcome]:
        """Around one request.

        Args:
            kind: What it asks for (`embeddings`, `search`, `write`, `passed`, …), as far as that is known yet.
        """
        outcome = Outcome(kind)
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
        self._models.labels(model, fingerprint).inc()

    def model_dropped(self, model: str, fingerprint: str) -> None:
        """A model is not kept in memory any more."""
        self._models.labels(model, fingerprint).dec()


def metrics_routes(metrics: GatewayMetrics) -> list[Route]:
    """`GET /metrics`."""

    async def show(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return [Route("/metrics", show, methods=["GET"])]
