"""Prometheus metrics of a running load (extra `metrics`), read from its counts on scrape."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from es_sbert import __version__
from es_sbert.engines.retry import Throttle
from es_sbert.errors import UsageError
from es_sbert.ingest.ledger import Ledger
from es_sbert.ingest.progress import ProgressMeter, ProgressSnapshot
from es_sbert.messages import log_event

DEFAULT_HOST = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:\s\[\]]+):)?(?P<port>\d{1,5})")


class LoadMetrics(ProgressMeter, Collector):
    """Shows the progress by another meter, and all counts to Prometheus. Thread-safe."""

    def __init__(self, meter: ProgressMeter) -> None:
        self.registry = CollectorRegistry()
        self._meter = meter
        self._load: tuple[dict[str, str], Ledger, Throttle] | None = None
        self._snapshot: ProgressSnapshot | None = None
        # Memory, processor time and open files of this process.
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def begin(self, labels: dict[str, str], ledger: Ledger, throttle: Throttle) -> None:
        self._load = labels | {"version": __version__}, ledger, throttle

    def show(self, snapshot: ProgressSnapshot) -> None:
        self._snapshot = snapshot
        self._meter.show(snapshot)

    def close(self) -> None:
        self._meter.close()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the load; none before it has started."""
        if self._load is None:
            return
        labels, ledger, throttle = self._load
        yield InfoMetricFamily("es_sbert_load", "Index, engine and model of the load.", value=labels)
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
            ("es_sbert_bulk_bytes", "Bytes of bulk requests, including retries.", ledger.bulk_bytes),
        ):
            yield CounterMetricFamily(name, description, value=count)
        for name, description, count, seconds in (
            ("bulk_request", "Time of bulk requests.", ledger.bulk_requests, ledger.bulk_seconds),
            ("embed_window", "Time to embed windows of texts.", ledger.windows, ledger.window_seconds),
        ):
            yield SummaryMetricFamily(f"es_sbert_{name}_seconds", description, count_value=count, sum_value=seconds)
        gauges: list[tuple[str, str, float | None]] = [
            ("es_sbert_bulk_body_limit_bytes", "Current limit of the size of a bulk body.", throttle.body_bytes),
            ("es_sbert_bulk_requests_allowed", "Current limit of concurrent bulk requests.", throttle.requests),
        ]
        if (now := self._snapshot) is not None:
            gauges += [
                ("es_sbert_load_seconds", "Time since the load began.", now.seconds),
                ("es_sbert_waiting", "1 while requests are being retried, else 0.", int(now.waiting is not None)),
                ("es_sbert_fraction_done", "Part of the source that is done.", now.fraction),
            ]
        for name, description, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(name, description, value=value)


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
def serve_metrics(meter: ProgressMeter, address: str) -> Iterator[LoadMetrics]:
    """Serve the metrics of a load until the block ends.

    If another process listens at the address, that is only a warning: the load matters more, and which of two watches
    starts first changes with every restart of the machine.

    Args:
        meter: Shows the progress to the user.
        address: `[HOST:]PORT`.

    Yields:
        The meter of the load.

    Raises:
        UsageError: the address is invalid, or does not belong to this machine or this user.
    """
    host, port = read_metrics_address(address)
    metrics = LoadMetrics(meter)
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        problem = f"metrics cannot be served at {host}:{port}: {error.strerror or error}"
        if error.errno != errno.EADDRINUSE:
            raise UsageError(problem, "Set `metrics` to a port and an address that this user may open.") from error
        remedy = "Set `metrics` to another port: every load needs its own"
        message = f"{problem}. The load goes on without metrics. {remedy}"
        log_event("metrics_not_served", message, logging.WARNING, host=host, port=port)
        yield metrics
        return
    url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    log_event("metrics_served", f"metrics at {url}", text=f"Metrics at {url}", url=url)
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
