"""The summary: words, JSON and exit codes."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.encoder.encoder import EncoderInfo
from es_sbert.ingest.ledger import DocumentOutcome, Ledger
from es_sbert.ingest.load_report import ConcurrentChanges, LoadReport

INFO = EncoderInfo(
    model="tiny",
    fingerprint="0123456789abcdef",
    dimensions=16,
    max_tokens=24,
    variant="int8",
    precision="int8",
    provider="CPUExecutionProvider",
    device="cpu",
    threads=2,
    warnings=("int8 misses its bar",),
)


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
