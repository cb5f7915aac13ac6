"""Documents that an index holds already, embedded where they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMissing, RequestFailed
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import IngestSettings, plan_load
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import SilentMeter
from tests.conftest import also_opensearch2
from tests.engine.ingest_support import (
    Interposed,
    Loads,
    contents,
    load,
    open_engine,
    same_vectors,
    sentences,
    vector_of,
    write_jsonl,
)
from tests.faulty_proxy import Exchange, Fault, FaultyProxy, answer


def write(engine: Engine, index: str, documents: list[dict[str, Any]], action: str = "index") -> None:
    """Documents written by another program, under the id in their field `id`."""
    lines: list[bytes] = []
    for document in documents:
        lines += [orjson.dumps({action: {"_id": document["id"]}}), b"\n"]
        if action != "delete":
            lines += [orjson.dumps({"doc": document} if action == "update" else document), b"\n"]
    assert all(result.ok for result in engine.bulk(index, b"".join(lines)))


def while_embedding(encoder: Encoder, meddle: Callable[[], None], times: int = 1) -> Interposed:
    """Another program writes to the index while each of the first windows is embedded."""
    return Interposed(encoder, lambda window: meddle() if window < times else None)


def one_shard_refreshed(exchange: Exchange) -> tuple[int, bytes]:
    """Leave a refresh undone and answer as for an index of which one shard of two was refreshed."""
    reason = {"type": "already_closed_exception", "reason": "made by the test"}
    failure = {"shard": 1, "index": "docs", "status": "INTERNAL_SERVER_ERROR", "reason": reason}
    shards = {"total": 2, "successful": 1, "failed": 1, "failures": [failure]}
    return 200, orjson.dumps({"_shards": shards})


class Stumbling(FaultyProxy):
    """Has no time for some refreshes."""

    stumbles = 0
    stumble: Fault = staticmethod(answer(503))

    def _fault(self, exchange: Exchange) -> Fault | None:
        if not self.stumbles or "/_refresh" not in exchange.path:
            return None
        self.stumbles -= 1
        return self.stumble


@also_opensearch2
def test_backfill_equals_direct_load_and_changes_nothing_else(
    engine_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    documents = sentences(620)  # more than a page of the scan
    filled, direct = fresh_index(engine_url), fresh_index(engine_url)
    with open_engine(engine_url) as engine:
        # A mapping of the application's own, with what a backfill must leave alone.
        settings = {"index.knn": True} if engine.info.needs_index_knn else {}
        mappings = {"_meta": {"owner": "app"}, "properties": {"id": {"type": "keyword"}}}
        engine.create_index(filled, {"settings": settings, "mappings": mappings})
        write(engine, filled, documents)
    summary = load(engine_url, encoder, filled, dead=tmp_path / "dead", batch_window=200)
    assert (summary.source, summary.read, summary.indexed, summary.exit_code) == ("index", 620, 620, 0)
    load(
        engine_url, encoder, direct, write_jsonl(tmp_path / "d.jsonl", documents), dead=tmp_path / "dead", id_field="id"
    )
    one, two = contents(engine_url, filled), contents(engine_url, direct)
    assert one.keys() == two.keys()
    for document in documents:
        found, wanted = one[document["id"]], two[document["id"]]
        assert same_vectors(vector_of(found), vector_of(wanted))
        assert {key: found[key] for key in document} == document
        assert found["embedding_meta"]["text_hash"] == wanted["embedding_meta"]["text_hash"]
        assert found["embedding_meta"]["document_hash"] is None
    with open_engine(engine_url) as engine:
        state = engine.get_index(filled)
        assert state is not None
        assert state.mappings["_meta"]["owner"] == "app"
    again = load(engine_url, encoder, filled, dead=tmp_path / "dead")
    assert (again.unchanged, again.indexed) == (620, 0)
    assert contents(engine_url, filled) == one


@also_opensearch2
def test_only_documents_without_current_vector_are_embedded(loads: Loads) -> None:
    path = write_jsonl(loads.folder / "d.jsonl", sentences(40))
    loads.load(path, id_field="id")
    before = loads.contents()
    with open_engine(loads.url) as engine:
        write(engine, loads.index, [{"id": "d0", "text": "Changed by the application."}], "update")
        write(engine, loads.index, [{"id": "d1", "price": 99}], "update")
        write(engine, loads.index, [{"id": "d2", "embedding": None}], "update")
        write(engine, loads.index, [{"id": "d3", "embedding_meta": {"fingerprint": "0" * 64}}], "update")
        write(engine, loads.index, [{"id": "d4", "text": ""}], "update")
        write(engine, loads.index, [{"id": "new", "text": "New."}, {"id": "none"}, {"id": "empty", "text": " "}])
        write(engine, loads.index, [{"id": "number", "text": 5}])
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
    letter = loads.letters()[0]
    assert letter["source"] == f"index {loads.index}"


def test_document_changed_during_backfill_is_reembedded(loads: Loads) -> None:
    with open_engine(loads.url) as engine:
        engine.create_index(loads.index, {})
        write(engine, loads.index, sentences(10))

        def meddle() -> None:
            write(engine, loads.index, [{"id": "d1", "text": "Changed meanwhile.", "price": 5}], "update")
            write(engine, loads.index, [{"id": "d2", "price": 6}], "update")
            write(engine, loads.index, [{"id": "d3"}], "delete")

        meddling = while_embedding(loads.encoder, meddle)
        summary = load(loads.url, meddling, loads.index, dead=loads.dead)
    assert (summary.read, summary.indexed, summary.skipped.deleted, summary.dead) == (10, 9, 1, 0)
    after = loads.contents()
    assert same_vectors(vector_of(after["d1"]), loads.encoder.encode(["Changed meanwhile."], "document")[0])
    assert (after["d1"]["price"], after["d2"]["price"]) == (5, 6)
    assert "d3" not in after
    assert all("embedding" in source for source in after.values())


@pytest.mark.parametrize(("patience", "left"), [(60.0, 0), (0.0, 1)])
def test_engine_error_while_rereading_is_retried_or_left(
    es9_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path, patience: float, left: int
) -> None:
    index = fresh_index(es9_url)

    def meddle() -> None:
        write(engine, index, [{"id": "d1", "price": 5}], "update")
        proxy.stumbles = 2

    meddling = while_embedding(encoder, meddle)
    with open_engine(es9_url) as engine, Stumbling(es9_url) as proxy:
        engine.create_index(index, {})
        write(engine, index, sentences(3))
        summary = load(proxy.url, meddling, index, dead=tmp_path / "dead", retry_seconds=patience)
    assert (summary.indexed, summary.left, summary.dead) == (3 - left, left, 0)
    assert (summary.stopped is not None) == bool(left)
    assert load(es9_url, encoder, index, dead=tmp_path / "dead").indexed == left


def test_failed_refresh_of_a_shard_is_retried(
    es9_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine, Stumbling(es9_url) as proxy:
        engine.create_index(index, {"settings": {"index.refresh_interval": "-1"}})
        write(engine, index, sentences(3))
        proxy.stumbles, proxy.stumble = 1, one_shard_refreshed
        assert load(proxy.url, encoder, index, dead=tmp_path / "dead", retry_seconds=60.0).indexed == 3
        proxy.stumbles = 1
        with pytest.raises(RequestFailed, match="_refresh for only 1 of 2 shards: .*made by the test"):
            load(proxy.url, encoder, index, dead=tmp_path / "dead", retry_seconds=0.0)


def test_lasting_refusal_of_a_scan_ends_the_load_with_the_remedy(
    opensearch_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    reason = (
        "Keep alive for request (30m) is too large. It must be less than (20s). This limit can be set by changing the "
        "[point_in_time.max_keep_alive] cluster level setting."
    )
    error = {"error": {"type": "illegal_argument_exception", "reason": reason}, "status": 400}
    index = fresh_index(opensearch_url)

    def refuse(exchange: Exchange) -> tuple[int, bytes]:
        return 400, orjson.dumps(error)

    with (
        open_engine(opensearch_url) as engine,
        FaultyProxy(opensearch_url, always=refuse, paths="/_search/point_in_time") as proxy,
    ):
        engine.create_index(index, {"settings": {"index.knn": True}})
        write(engine, index, sentences(3))
        summary = load(proxy.url, encoder, index, dead=tmp_path / "dead", retry_seconds=60.0)
    assert (summary.indexed, summary.exit_code) == (0, 2)
    assert summary.stopped is not None
    assert "point_in_time.max_keep_alive" in summary.stopped
    assert "`PUT _cluster/settings`" in summary.stopped


def test_changed_document_is_reread_by_its_routing(
    es9_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    index = fresh_index(es9_url)

    def put(number: int, routings: Sequence[str]) -> None:
        lines = [
            {"index": {"_id": "same", "routing": routing}} if line == 0 else {"text": f"The {routing} {number}."}
            for routing in routings
            for line in range(2)
        ]
        assert all(result.ok for result in engine.bulk(index, b"".join(orjson.dumps(line) + b"\n" for line in lines)))

    with open_engine(es9_url) as engine:
        engine.create_index(index, {"settings": {"index.number_of_shards": 8}})
        put(0, "abcdefghijkl")
        engine.refresh(index)
        hits = engine.search(index, {"size": 20})["hits"]["hits"]
        count = len(hits)
        assert count > 4
        # The one that a search would find last.
        meddling = while_embedding(encoder, lambda: put(1, hits[-1]["_routing"]))
        summary = load(es9_url, meddling, index, dead=tmp_path / "dead")
        assert (summary.read, summary.indexed) == (count, count)
        assert load(es9_url, encoder, index, dead=tmp_path / "dead").unchanged == count


def test_index_deleted_before_backfill_is_not_recreated(
    es9_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        engine.create_index(index, {})
        wanted = plan_load(engine, IngestSettings(index=index, dead_letters=tmp_path / "dead"), sources=[])
        engine.delete_index(index)
        with pytest.raises(IndexMissing):
            run_load(engine, encoder, wanted, LoadControl(), SilentMeter())
        assert engine.get_index(index) is None


def test_index_with_a_small_result_window_is_read_completely(engine: Engine, loads: Loads) -> None:
    engine.create_index(loads.index, {"settings": {"index.max_result_window": 7}})
    write(engine, loads.index, sentences(40))
    summary = loads.load()
    assert (summary.read, summary.indexed, summary.exit_code) == (40, 40, 0)
    assert engine.count(loads.index, {"exists": {"field": "embedding"}}) == 40
