"""The summary: words, JSON and exit codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from es_sbert.encoder.encoder import EncoderInfo
from es_sbert.ingest.ledger import DocumentOutcome, Ledger, LedgerError
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
        ({"indexed": 1, "empty": 2, "duplicate": 3, "unchanged": 4}, 0),
        ({"indexed": 3, "dead": 1}, 1),
        ({"dead": 59}, 2),
        ({"dead": 1, "empty": 2, "duplicate": 3}, 2),
        ({"dead": 1, "unchanged": 1}, 1),
        ({"dead": 1, "updated": 1}, 1),
        ({"dead": 1, "pruned": 1}, 1),
        ({"dead": 1, "superseded": 1}, 1),
        ({"indexed": 3, "missing": 1}, 1),
        ({"indexed": 3, "stopped": "reading the index failed"}, 1),
        ({"indexed": 3, "dead": 2, "stopped": "the engine is gone"}, 1),
        ({"dead": 2, "stopped": "the engine is gone"}, 2),
        ({"left": 2, "stopped": "the engine is gone"}, 2),
        ({"indexed": 3, "left": 2, "stopped": "the engine is gone"}, 1),
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


def test_languages_of_another_model_are_a_warning() -> None:
    texts = [
        "Der Drucker im zweiten Stock druckt seit dem Update nicht mehr.",
        "The printer on the second floor does not print after the update.",
    ]
    ledger, part = Ledger(), Ledger()
    ledger.add_texts(texts[:1] * 3)
    part.add_texts(texts * 2)
    ledger.merge(part)
    report = LoadReport.from_ledger(ledger, replace(INFO, model="all-MiniLM-L6-v2"), **FACTS)
    assert report.languages == report.model_dump()["languages"] == {"de": 5, "en": 2}
    assert report.warnings[0] == INFO.warnings[0]
    [line] = [line for line in report.lines() if "German" in line]
    assert line.startswith("Warning: about 71% of the 7 sampled texts")
    assert report.exit_code == 0
    assert LoadReport.from_ledger(ledger, INFO, **FACTS).warnings == INFO.warnings


def test_unbalanced_counts_raise_ledger_error() -> None:
    ledger = Ledger()
    ledger.add(read=1)
    with pytest.raises(LedgerError):
        LoadReport.from_ledger(ledger, INFO, **FACTS)


def test_summary_lines() -> None:
    lines = summary(
        indexed=1200,
        updated=3,
        unchanged=4,
        empty=5,
        duplicate=6,
        deleted=7,
        dead=8,
        left=9,
        stopped="it broke",
        resumed=True,
        notes=("The state file was broken",),
        pruned=10,
    ).lines()
    assert lines == [
        "docs on Elasticsearch 9.5.0: 1,242 documents read (resumed)",
        "        1,200  embedded and indexed",
        "            3  updated, text unchanged",
        "            4  unchanged",
        "            5  skipped: no text",
        "            6  skipped: duplicate in this load",
        "            7  skipped: deleted from the index during the load",
        "            8  not loaded: see docs.dead",
        "            9  left for the next run",
        "           10  removed: no longer in the source",
        "2.0 s, 616 documents/s",
        "tiny (0123456789ab), int8, CPUExecutionProvider on cpu, 2 threads",
        "Warning: int8 misses its bar",
        "The state file was broken",
        "Stopped before the end: it broke",
    ]


def test_json_has_dead_letter_file_only_if_written() -> None:
    assert summary(indexed=1).model_dump()["dead_letters"] is None
    dumped = summary(dead=1, indexed=1).model_dump()
    assert dumped["dead_letters"] == "docs.dead"
    assert dumped["documents_per_second"] == 1.0
    assert dumped["warnings"] == ("int8 misses its bar",)
