"""Prometheus metrics of a running load (extra `metrics`).

Counts that the load keeps anyway are read on scrape by a custom collector; only times and bytes are recorded here.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from es_sbert import __version__
from es_sbert.encoder.encoder import EncoderInfo
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.retry import Throttle
from es_sbert.errors import UsageError
from es_sbert.ingest.ledger import Ledger
from es_sbert.ingest.progress import LoadObserver, ProgressSnapshot
from es_sbert.messages import log_event

DEFAULT_HOST = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:\s\[\]]+):)?(?P<port>\d{1,5})")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class LoadMetrics(LoadObserver, Collector):
    """A `LoadObserver` that Prometheus can read. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._load: tuple[dict[str, str], Ledger, Throttle] | None = None
        self._snapshot: ProgressSnapshot | None = None
        histogram = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        self._sent = Counter(
            "es_sbert_bulk_bytes", "Bytes of bulk requests, including retries.", registry=self.registry
        )
        self._bulk = histogram("es_sbert_bulk_request_seconds", "Time of one bulk request.")
        self._embed = histogram("es_sbert_embed_window_seconds", "Time to embed one window of texts.")
        # Memory, processor time and open files of this process.
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def load_started(
        self, index: str, engine: EngineInfo, encoder: EncoderInfo, ledger: Ledger, throttle: Throttle
    ) -> None:
        labels = {
            "index": index, "engine": engine.label, "model": encoder.model, "fingerprint": encoder.fingerprint,
            "provider": encoder.provider, "device": encoder.device, "precision": encoder.precision,
            "version": __version__,
        }  # fmt: skip
        self._load = labels, ledger, throttle

    def show(self, snapshot: ProgressSnapshot) -> None:
        self._snapshot = snapshot

    @contextmanager
    def bulk_request(self, body_bytes: int) -> Iterator[None]:
        self._sent.inc(body_bytes)
        with self._bulk.time():
            yield

    @contextmanager
    def embed_window(self) -> Iterator[None]:
        with self._embed.time():
            yield

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the load; none before it has started."""
        if self._load is not None:
            labels, ledger, throttle = self._load
            yield InfoMetricFamily("es_sbert_load", "Index, engine and model of the load.", value=labels)
            yield from _counts(ledger)
            requests, bytes_limit = throttle.requests, throttle.body_bytes
            yield _gauge("es_sbert_bulk_body_limit_bytes", "Current limit of the size of a bulk body.", bytes_limit)
            yield _gauge("es_sbert_bulk_requests_allowed", "Current limit of concurrent bulk requests.", requests)
        if self._snapshot is not None:
            yield from _progress(self._snapshot)


def _counts(ledger: Ledger) -> Iterator[Metric]:
    documents = CounterMetricFamily("es_sbert_documents", "Documents by outcome.", labels=["outcome"])
    for outcome, count in ledger.counts().items():
        documents.add_metric([outcome.value], count)
    yield documents
    truncated = ledger.truncated
    for name, description, count in (
        ("es_sbert_documents_read", "Documents read from the source.", ledger.read),
        ("es_sbert_documents_truncated", "Documents written whose text is longer than the model reads.", truncated),
        ("es_sbert_tokens_lost", "Tokens cut off in truncated documents.", ledger.lost_tokens),
        ("es_sbert_retries", "Requests and documents sent again.", ledger.retries),
    ):
        yield CounterMetricFamily(name, description, value=count)


def _progress(snapshot: ProgressSnapshot) -> Iterator[Metric]:
    waiting = int(snapshot.waiting is not None)
    yield _gauge("es_sbert_load_seconds", "Time since the load began.", snapshot.seconds)
    yield _gauge("es_sbert_waiting", "1 while requests are being retried, else 0.", waiting)
    if snapshot.fraction is not None:
        yield _gauge("es_sbert_fraction_done", "Part of the source that is done.", snapshot.fraction)


def _gauge(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(name, description, value=value)


def read_metrics_address(text: str) -> tuple[str, int]:
    """Parse `9464`, `0.0.0.0:9464` or `[::1]:9464` into host and port; 0 lets the system choose the port.

    Raises:
        UsageError: the text is not such an address.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise UsageError(f"{text!r} is not a valid metrics address", "Set `metrics` to PORT or HOST:PORT, e.g. 9464.")
    return (match["host"] or DEFAULT_HOST).strip("[]"), int(match["port"])


@contextmanager
def serve_metrics(metrics: LoadMetrics, address: str) -> Iterator[str | None]:
    """Serve the metrics until the block ends.

    Args:
        address: `[HOST:]PORT`.

    Yields:
        Their URL; None if another process listens there. That is only a warning: the load matters more, and which of
        two watches starts first changes with every restart of the machine.

    Raises:
        UsageError: the address is invalid, or does not belong to this machine or this user.
    """
    host, port = read_metrics_address(address)
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        problem = f"metrics cannot be served at {host}:{port}: {error.strerror or error}"
        if error.errno != errno.EADDRINUSE:
            raise UsageError(problem, "Set `metrics` to a port and an address that this user may open.") from error
        remedy = "Set `metrics` to another port: every load needs its own"
        message = f"{problem}. The load goes on without metrics. {remedy}"
        log_event("metrics_not_served", message, logging.WARNING, host=host, port=port)
        yield None
        return
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
