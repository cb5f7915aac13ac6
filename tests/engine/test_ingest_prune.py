"""Removing what the source no longer has: never more than that, and never unasked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.ingest.reconcile import PruneCandidates
from tests.engine.ingest_support import Loads, put, sentences, write_jsonl
from tests.faulty_proxy import FaultyProxy, answer, cut_after

pytestmark = pytest.mark.one_engine

COUNT = 30
LEFT = [document for number, document in enumerate(sentences(COUNT)) if number % 3]
KEPT = {document["id"] for document in LEFT} | {"foreign"}


@pytest.fixture
def source(engine: Engine, loads: Loads) -> Path:
    """A source that has lost every third document since it was loaded; the index also has one of another writer."""
    loads.load(loads.write(sentences(COUNT)), id_field="id")
    put(engine, loads.index, [{"id": "foreign", "text": "somebody else's"}])
    return loads.write(LEFT)


@pytest.fixture
def prune(loads: Loads, source: Path) -> Callable[..., Any]:
    return lambda **options: loads.load(source, id_field="id", prune=True, retry_seconds=300, **options)


def refuse_to_ask(gone: PruneCandidates) -> bool:
    raise AssertionError(f"nothing may be removed: {gone}")


def test_prune_removes_documents_missing_from_source(loads: Loads, prune: Callable[..., Any]) -> None:
    asked: list[PruneCandidates] = []
    summary = prune(confirm=lambda gone: not asked.append(gone))
    assert (summary.read, summary.unchanged, summary.pruned, summary.exit_code) == (20, 20, 10, 0)
    [gone] = asked
    assert (gone.count, gone.loaded, len(gone.sample)) == (10, COUNT, 5)
    assert set(loads.contents()) == KEPT
    assert prune(confirm=refuse_to_ask).pruned == 0


def test_prune_needs_confirmation(loads: Loads, prune: Callable[..., Any]) -> None:
    summary = prune(confirm=lambda gone: False)
    assert summary.pruned == 0
    assert "10 documents of the index are no longer in the source; none of them was removed" in summary.notes
    assert len(loads.contents()) == COUNT + 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'%s{"id": "d0", "text": "cut o', "1 record of the source cannot be used"),
        (b'%s{"id": "d0", "text": ["a string", 7]}', "1 record of the source cannot be used"),
        (b"%.0s", "an export that failed looks the same"),
    ],
    ids=["cut off", "bad record", "empty"],
)
def test_prune_skipped_when_source_has_bad_records_or_none(
    loads: Loads, source: Path, prune: Callable[..., Any], content: bytes, reason: str
) -> None:
    source.write_bytes(content % source.read_bytes())
    summary = prune(confirm=refuse_to_ask)
    assert summary.pruned == 0
    assert reason in summary.notes[0]
    assert len(loads.contents()) == COUNT + 1


def test_rejected_document_is_not_pruned(loads: Loads, source: Path, prune: Callable[..., Any]) -> None:
    documents = [orjson.loads(line) for line in source.read_bytes().splitlines()]
    write_jsonl(source, [documents[0] | {"price": "not a number"}, *documents[1:]])
    summary = prune()
    assert (summary.dead, summary.pruned) == (1, 10)
    assert set(loads.contents()) == KEPT


def test_document_written_since_scan_is_not_pruned(engine: Engine, loads: Loads, prune: Callable[..., Any]) -> None:
    def confirm(gone: PruneCandidates) -> bool:
        put(engine, loads.index, [{"id": "d0", "text": "written while the question was open"}])
        return True

    assert prune(confirm=confirm).pruned == 9
    assert set(loads.contents()) == KEPT | {"d0"}


def test_transient_failures_are_retried(loads: Loads, prune: Callable[..., Any]) -> None:
    with FaultyProxy(loads.url) as proxy:

        def confirm(gone: PruneCandidates) -> bool:
            proxy.faults = [answer(429), cut_after, answer(503)]
            return True

        summary = prune(url=proxy.url, confirm=confirm)
        assert not proxy.faults
    assert summary.pruned == 10
    assert set(loads.contents()) == KEPT
