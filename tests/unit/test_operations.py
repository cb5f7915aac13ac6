"""docs/operations.md says what the program does: events, metrics, messages and files are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from es_sbert.engines.retry import Throttle
from es_sbert.ingest.ledger import DocumentOutcome, Ledger
from es_sbert.ingest.load_metrics import LoadMetrics, read_metrics_address
from es_sbert.ingest.progress import ProgressMeter, ProgressSnapshot

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()
CODE = {path: path.read_text() for path in (ROOT / "es_sbert").rglob("*.py")}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_columns(text: str) -> list[str]:
    """What stands in backquotes in the first column of the tables."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def exposed() -> CollectorRegistry:
    """Metrics of a load that has begun."""
    metrics = LoadMetrics(ProgressMeter())
    metrics.begin({"index": 'an "index"\n'}, Ledger(), Throttle(1000, 4))
    metrics.show(ProgressSnapshot(4, 2, 0.5, 1.0, waiting="429"))
    return metrics.registry


def samples() -> dict[str, list[dict[str, str]]]:
    """Name → labels of each sample, as Prometheus would read them."""
    from prometheus_client import generate_latest

    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(generate_latest(exposed()).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def names() -> set[str]:
    """Of all metrics of ours, a summary by its base name."""
    found = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in samples()}
    return {name for name in found if name.startswith("es_sbert_") and name != "es_sbert_bulk_bytes"}


def test_documented_metrics_match_the_served_ones() -> None:
    documented = {name for name in first_columns(section("Monitoring")) if name.startswith("es_sbert_")}
    assert documented == names()
    outcomes = {labels["outcome"] for labels in samples()["es_sbert_documents_total"]}
    assert outcomes == {outcome.value for outcome in DocumentOutcome}
    row = next(line for line in PAGE.splitlines() if line.startswith("| `es_sbert_documents_total`"))
    assert all(outcome in row for outcome in outcomes)
    [info] = samples()["es_sbert_load_info"]
    assert info["index"] == 'an "index"\n'


def test_documented_events_match_the_logged_ones() -> None:
    recorded = {name for text in CODE.values() for name in re.findall(r'\blog_event\(\s*"([a-z_]+)"', text)}
    extra = {"crashed", "log"}  # made by the formatter
    documented = {name for name in first_columns(section("Monitoring")) if not name.startswith("es_sbert_")}
    assert documented == recorded | extra


@pytest.mark.parametrize(
    ("text", "address"),
    [("9464", ("127.0.0.1", 9464)), ("0.0.0.0:9464", ("0.0.0.0", 9464)), ("[::1]:0", ("::1", 0)),
     ("loader.example:80", ("loader.example", 80))],
)  # fmt: skip
def test_read_metrics_address(text: str, address: tuple[str, int]) -> None:
    assert read_metrics_address(text) == address
