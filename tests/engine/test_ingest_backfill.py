"""Documents that an index holds already, embedded where they stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from tests.conftest import also_opensearch2
from tests.engine.ingest_support import (
    Interposed,
    Loads,
    bulk,
    contents,
    put,
    same_vectors,
    sentences,
    update,
    vector_of,
)
from tests.engine.vectors import state_of
from tests.faulty_proxy import FaultyProxy, answer


def while_embedding(encoder: Encoder, meddle: Callable[[], None]) -> Interposed:
    """Another program writes to the index while the first window is embedded."""
    return Interposed(encoder, lambda window: meddle() if window == 0 else None)


@also_opensearch2
def test_backfill_equals_direct_load_and_changes_nothing_else(
    engine: Engine, loads: Loads, fresh_index: Callable[[str], str]
) -> None:
    documents, direct = sentences(620), fresh_index(loads.url)  # more than a page of the scan
    # A mapping of the application's own, with what a backfill must leave alone.
    settings = {"index.knn": True} if engine.info.needs_index_knn else {}
    mappings = {"_meta": {"owner": "app"}, "properties": {"id": {"type": "keyword"}}}
    engine.create_index(loads.index, {"settings": settings, "mappings": mappings})
    put(engine, loads.index, documents)
    summary = loads.load(batch_window=200)
    assert (summary.source, summary.read, summary.indexed, summary.exit_code) == ("index", 620, 620, 0)
    loads.load(loads.write(documents), index=direct, id_field="id")
    one, two = loads.contents(), contents(loads.url, direct)
    assert one.keys() == two.keys()
    for document in documents:
        found, wanted = one[document["id"]], two[document["id"]]
        assert same_vectors(vector_of(found), vector_of(wanted))
        assert {key: found[key] for key in document} == document
        assert found["embedding_meta"]["text_hash"] == wanted["embedding_meta"]["text_hash"]
        assert found["embedding_meta"]["document_hash"] is None
    assert state_of(engine, loads.index).mappings["_meta"]["owner"] == "app"
    again = loads.load()
    assert (again.unchanged, again.indexed) == (620, 0)
    assert loads.contents() == one


@also_opensearch2
def test_only_documents_without_current_vector_are_embedded(engine: Engine, loads: Loads) -> None:
    loads.load(loads.write(sentences(40)), id_field="id")
    before = loads.contents()
    update(engine, loads.index, {"d0": {"text": "Changed by the application."}, "d1": {"price": 99}})
    update(engine, loads.index, {"d2": {"embedding": None}, "d3": {"embedding_meta": {"fingerprint": "0" * 64}}})
    update(engine, loads.index, {"d4": {"text": ""}})
    put(engine, loads.index, [{"id": "new", "text": "New."}, {"id": "none"}, {"id": "empty", "text": " "}])
    put(engine, loads.index, [{"id": "number", "text": 5}])
    # Engines take half of an emoji, and numbers of any size.
    odd = b'{"index":{"_id":"half"}}\n{"text":"half \\ud83d"}\n{"index":{"_id":"big"}}\n{"text":%d}\n' % 10**30
    assert all(result.ok for result in engine.bulk(loads.index, odd))
    summary = loads.load()
    assert (summary.indexed, summary.unchanged, summary.skipped.empty, summary.dead) == (5, 36, 3, 2)
    again = loads.load()
    assert (again.indexed, again.unchanged, again.dead) == (0, 41, 2)
    after = loads.contents()
    changed = loads.encoder.encode(["Changed by the application."], "document")[0]
    assert same_vectors(vector_of(after["d0"]), changed)
    assert after["d1"]["price"] == 99
    assert same_vectors(vector_of(after["d2"]), vector_of(before["d2"]))
    assert after["d3"]["embedding_meta"]["fingerprint"] == loads.encoder.info.fingerprint
    assert "embedding" not in after["empty"]
    # Its text is gone, so is its vector: no search may find it by what it said before.
    assert (after["d4"].get("embedding"), after["d4"]["price"]) == (None, 0.5)
    assert loads.load().skipped.empty == 3
    reasons = {letter["id"]: letter["reason"] for letter in loads.letters()}
    assert reasons["number"] == "the text field text is a JSON number, not a string"
    assert "none" not in reasons
    assert summary.missing_fields == {"text": 1}
    assert loads.letters()[0]["source"] == f"index {loads.index}"


def test_document_changed_during_backfill_is_reembedded(engine: Engine, loads: Loads) -> None:
    engine.create_index(loads.index, {})
    put(engine, loads.index, sentences(10))

    def meddle() -> None:
        update(engine, loads.index, {"d1": {"text": "Changed since.", "price": 5}, "d2": {"price": 6}})
        bulk(engine, loads.index, {"delete": {"_id": "d3"}})

    summary = loads.load(encoder=while_embedding(loads.encoder, meddle))
    assert (summary.read, summary.indexed, summary.skipped.deleted, summary.dead) == (10, 9, 1, 0)
    after = loads.contents()
    assert same_vectors(vector_of(after["d1"]), loads.encoder.encode(["Changed since."], "document")[0])
    assert (after["d1"]["price"], after["d2"]["price"]) == (5, 6)
    assert "d3" not in after
    assert all("embedding" in source for source in after.values())


@pytest.mark.parametrize(("patience", "left"), [(60.0, 0), (0.0, 1)])
def test_engine_error_while_rereading_is_retried_or_left(
    engine: Engine, tiny_loads: Loads, patience: float, left: int
) -> None:
    def meddle() -> None:
        update(engine, tiny_loads.index, {"d1": {"price": 5}})
        proxy.faults = [answer(503), answer(503)]

    engine.create_index(tiny_loads.index, {})
    put(engine, tiny_loads.index, sentences(3))
    with FaultyProxy(tiny_loads.url, paths="/_refresh") as proxy:
        meddling = while_embedding(tiny_loads.encoder, meddle)
        summary = tiny_loads.load(url=proxy.url, encoder=meddling, retry_seconds=patience)
    assert (summary.indexed, summary.left, summary.dead) == (3 - left, left, 0)
    assert (summary.stopped is not None) == bool(left)
    assert tiny_loads.load().indexed == left


def test_changed_document_is_reread_by_its_routing(engine: Engine, tiny_loads: Loads) -> None:
    index = tiny_loads.index

    def put_all(routings: str, text: str) -> None:
        for routing in routings:
            bulk(engine, index, {"index": {"_id": "same", "routing": routing}}, {"text": f"{text} {routing}."})

    engine.create_index(index, {"settings": {"index.number_of_shards": 8}})
    put_all("abcdefghijkl", "The")
    engine.refresh(index)
    hits = engine.search(index, {"size": 20})["hits"]["hits"]
    count = len(hits)
    assert count > 4
    # The one that a search would find last.
    meddling = while_embedding(tiny_loads.encoder, lambda: put_all(hits[-1]["_routing"], "Another"))
    summary = tiny_loads.load(encoder=meddling)
    assert (summary.read, summary.indexed) == (count, count)
    assert tiny_loads.load().unchanged == count
