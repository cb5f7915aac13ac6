"""Removing what the source no longer has: never more than that, and never unasked."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.ingest.reconcile import PruneCandidates
from tests.engine.ingest_support import contents, load, open_engine, sentences, write_jsonl
from tests.faulty_proxy import Exchange, FaultyProxy, answer, cut_after

pytestmark = pytest.mark.one_engine

COUNT = 30


@pytest.fixture
def loaded(engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path) -> Path:
    """A source that has lost every third document since it was loaded; another writer's document stands beside."""
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(COUNT))
    load(engine_url, encoder, index_name, path, dead=tmp_path / "dead", id_field="id")
    put(engine_url, index_name, "foreign", {"text": "somebody else's"})
    return write_jsonl(path, [document for number, document in enumerate(sentences(COUNT)) if number % 3])


def put(url: str, index: str, document_id: str, document: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"{url}/{index}/_doc/{document_id}?refresh=true",
        orjson.dumps(document),
        {"content-type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        assert response.status in (200, 201)


@pytest.fixture
def prune(engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path) -> Callable[..., Any]:
    return lambda path, url=engine_url, **options: load(
        url, encoder, index_name, path, dead=tmp_path / "dead", id_field="id", prune=True, retry_seconds=300, **options
    )


def kept() -> set[str]:
    return {document["id"] for number, document in enumerate(sentences(COUNT)) if number % 3} | {"foreign"}


def test_prune_removes_documents_missing_from_source(
    engine_url: str, index_name: str, loaded: Path, prune: Callable[..., Any]
) -> None:
    asked: list[PruneCandidates] = []
    summary = prune(loaded, confirm=lambda gone: not asked.append(gone))
    assert (summary.read, summary.unchanged, summary.pruned, summary.exit_code) == (20, 20, 10, 0)
    [gone] = asked
    assert (gone.count, gone.loaded, len(gone.sample)) == (10, COUNT, 5)
    assert set(contents(engine_url, index_name)) == kept()
    assert prune(loaded, confirm=lambda gone: pytest.fail("there is nothing to ask")).pruned == 0


def test_prune_needs_confirmation(engine_url: str, index_name: str, loaded: Path, prune: Callable[..., Any]) -> None:
    summary = prune(loaded, confirm=lambda gone: False)
    assert summary.pruned == 0
    assert "10 documents of the index are no longer in the source; none of them was removed" in summary.notes
    assert len(contents(engine_url, index_name)) == COUNT + 1


@pytest.mark.parametrize("bad", [b'{"id": "d0", "text": "cut o', b'{"id": "d0", "text": ["a string", 7]}'])
def test_prune_skipped_when_source_has_bad_records(
    engine_url: str, index_name: str, loaded: Path, prune: Callable[..., Any], bad: bytes
) -> None:
    loaded.write_bytes(loaded.read_bytes() + bad)
    summary = prune(loaded, confirm=lambda gone: pytest.fail("it cannot be known what is gone"))
    assert summary.pruned == 0
    assert "1 record of the source cannot be used" in summary.notes[0]
    assert len(contents(engine_url, index_name)) == COUNT + 1


def test_prune_skipped_when_source_is_empty(
    engine_url: str, index_name: str, loaded: Path, prune: Callable[..., Any]
) -> None:
    loaded.write_bytes(b"")
    summary = prune(loaded, confirm=lambda gone: pytest.fail("nothing may be removed"))
    assert (summary.read, summary.pruned) == (0, 0)
    assert "an export that failed looks the same" in summary.notes[0]
    assert len(contents(engine_url, index_name)) == COUNT + 1


def test_rejected_document_is_not_pruned(
    engine_url: str, index_name: str, loaded: Path, prune: Callable[..., Any]
) -> None:
    documents = [orjson.loads(line) for line in loaded.read_bytes().splitlines()]
    documents[0]["price"] = "not a number"
    write_jsonl(loaded, documents)
    summary = prune(loaded, confirm=lambda gone: True)
    assert (summary.dead, summary.pruned) == (1, 10)
    assert set(contents(engine_url, index_name)) == kept()


def test_document_written_since_scan_is_not_pruned(
    engine_url: str, index_name: str, loaded: Path, prune: Callable[..., Any]
) -> None:
    def confirm(gone: PruneCandidates) -> bool:
        put(engine_url, index_name, "d0", {"text": "written while the question was open"})
        return True

    assert prune(loaded, confirm=confirm).pruned == 9
    assert set(contents(engine_url, index_name)) == kept() | {"d0"}


def test_routed_document_written_meanwhile_is_not_counted(
    es9_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    index, dead = fresh_index(es9_url), tmp_path / "dead"
    alias = f"{index}-alias"
    with open_engine(es9_url) as engine:
        engine.create_index(index, {"settings": {"index.number_of_shards": 5}})
        engine.update_aliases([{"add": {"index": index, "alias": alias, "index_routing": "r"}}])
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(10))
    load(es9_url, encoder, alias, path, dead=dead, id_field="id")
    write_jsonl(path, sentences(1))

    def written_meanwhile(exchange: Exchange) -> tuple[int, bytes]:
        for number in range(1, 9):
            put(es9_url, alias, f"d{number}", {"text": "written meanwhile"})
        return exchange.forward()

    with FaultyProxy(es9_url) as proxy:

        def confirm(gone: PruneCandidates) -> bool:
            proxy.faults = [written_meanwhile]
            return gone.count == 10

        summary = load(proxy.url, encoder, index, path, dead=dead, id_field="id", prune=True, confirm=confirm)
    # d9, and the copy of d0 with the routing of the alias.
    assert summary.pruned == 2
    with open_engine(es9_url) as engine:
        hits = engine.search(index, {"size": 20})["hits"]["hits"]
    expected = {("d0", None)} | {(f"d{number}", "r") for number in range(1, 9)}
    assert {(hit["_id"], hit.get("_routing")) for hit in hits} == expected


def test_transient_failures_are_retried(
    engine_url: str, index_name: str, loaded: Path, prune: Callable[..., Any]
) -> None:
    with FaultyProxy(engine_url) as proxy:

        def confirm(gone: PruneCandidates) -> bool:
            proxy.faults = [answer(429), cut_after, answer(503)]
            return True

        summary = prune(loaded, url=proxy.url, confirm=confirm)
        assert not proxy.faults
    assert summary.pruned == 10
    assert set(contents(engine_url, index_name)) == kept()
