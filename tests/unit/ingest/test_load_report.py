"""Exit codes of a load, and how many documents may fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.errors import UsageError
from es_sbert.ingest.ingest_settings import DEFAULT_LIMIT, NO_LIMIT, ErrorLimit, IngestSettings
from es_sbert.ingest.ledger import DocumentOutcome, Ledger
from es_sbert.ingest.load_report import ConcurrentChanges, LoadReport
from tests.raised import raises

INFO = EncoderInfo(
    model="tiny", fingerprint="0123456789abcdef", dimensions=16, max_tokens=24, variant="int8", precision="int8",
    provider="CPUExecutionProvider", device="cpu", threads=2, warnings=("int8 misses its bar",),
)  # fmt: skip


FACTS: dict[str, Any] = {
    "index": "docs", "engine": "Elasticsearch 9.5.0", "source": "files", "dead_letters": "docs.dead", "seconds": 2.0,
    "interrupted": False, "stopped": None, "resumed": False, "notes": (), "pruned": 0,
}  # fmt: skip


def summary(*, unseen: int = 0, **options: Any) -> LoadReport:
    """A report of documents with these outcomes, and of other facts."""
    ledger, facts = Ledger(), FACTS | {"concurrent": ConcurrentChanges(unseen=unseen)}
    for name, value in options.items():
        if name in set(DocumentOutcome):
            ledger.add_outcome(DocumentOutcome(name), value)
            ledger.add(read=value)
        else:
            facts[name] = value
    return LoadReport.from_ledger(ledger, INFO, **facts)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"indexed": 3}, 0),
        ({}, 0),
        ({"indexed": 3, "dead": 1}, 1),
        ({"dead": 1, "empty": 2, "duplicate": 3}, 2),
        ({"dead": 1, "unchanged": 1}, 1),
        ({"dead": 1, "updated": 1}, 1),
        ({"dead": 1, "superseded": 1}, 1),
        ({"dead": 1, "pruned": 1}, 1),
        ({"indexed": 3, "missing": 1}, 1),
        ({"indexed": 3, "stopped": "reading the index failed"}, 1),
        ({"dead": 2, "stopped": "the engine is gone"}, 2),
        ({"left": 2, "stopped": "the engine is gone"}, 2),
        ({"lacking": 2}, 1),
        ({"left": 2}, 1),
        # A watch that the user stopped.
        ({"left": 2, "dead": 1, "lacking": 2, "stopped": "interrupted before every document was compared"}, 1),
        ({"indexed": 3, "lacking": 0}, 0),
        # A load in place during which an application has written.
        ({"indexed": 3, "unseen": 1}, 0),
        ({"indexed": 3, "stopped": "interrupted", "interrupted": True}, 130),
    ],
)
def test_exit_codes(options: dict[str, Any], code: int) -> None:
    assert summary(**options).exit_code == code


def test_repr_is_the_summary() -> None:
    report = summary(indexed=3, dead=1)
    assert repr(report) == "\n".join(report.lines())


def test_json_has_dead_letter_file_only_if_written() -> None:
    assert summary(indexed=1).model_dump()["dead_letters"] is None
    dumped = summary(dead=1, indexed=1).model_dump()
    assert dumped["dead_letters"] == "docs.dead"
    assert dumped["documents_per_second"] == 1.0
    assert dumped["warnings"] == ("int8 misses its bar",)


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("0", ErrorLimit(count=0), "0"), ("1000", ErrorLimit(count=1000), "1,000"),
        ("5%", ErrorLimit(share=0.05), "5%"), (" 0.5 % ", ErrorLimit(share=0.005), "0.5%"), ("OFF", NO_LIMIT, "off"),
    ],
)  # fmt: skip
def test_parse_valid_limits(text: str, limit: ErrorLimit, shown: str) -> None:
    assert ErrorLimit.parse(text) == limit
    assert str(limit) == shown
    with raises(UsageError, "max_errors", f"{text}!"):
        ErrorLimit.parse(f"{text}!")


@pytest.mark.parametrize(
    ("limit", "read", "failed", "exceeded"),
    [
        (DEFAULT_LIMIT, 999, 999, False), (DEFAULT_LIMIT, 1000, 100, False), (DEFAULT_LIMIT, 1000, 101, True),
        (ErrorLimit(count=3), 3, 3, False), (ErrorLimit(count=3), 4, 4, True), (ErrorLimit(count=0), 10, 1, True),
        (ErrorLimit(share=0.0), 1000, 1, True), (NO_LIMIT, 10**6, 10**6, False),
    ],
)  # fmt: skip
def test_is_exceeded(limit: ErrorLimit, read: int, failed: int, exceeded: bool) -> None:
    assert limit.is_exceeded(read, failed) == exceeded


def test_retries_watches_and_migrations_default_to_no_limit(tmp_path: Path) -> None:
    assert IngestSettings(index="docs").error_limit == DEFAULT_LIMIT
    kinds: list[dict[str, Any]] = [{"retry": tmp_path / "dead"}, {"watch_seconds": 1.0}, {"only_lacking": True}]
    for options in kinds:
        assert IngestSettings(index="docs", **options).error_limit == NO_LIMIT
        own = ErrorLimit(count=1)
        assert IngestSettings(index="docs", max_errors=own, **options).error_limit == own
