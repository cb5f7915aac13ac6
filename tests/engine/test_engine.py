"""The `Engine` protocol on each real engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import BulkItemResult, Engine, EngineType, Json, PointInTimeSlice, document_key
from es_sbert.engines.multi_get import multi_get
from es_sbert.errors import EngineUnreachable, IndexMismatch, IndexMissing, RequestFailed, UsageError

MAPPING: Json = {
    "settings": {"number_of_shards": 2, "number_of_replicas": 0},
    "mappings": {"properties": {"word": {"type": "keyword"}, "n": {"type": "integer"}}},
}


def actions(*pairs: tuple[Json, Json]) -> bytes:
    return b"".join(orjson.dumps(part) + b"\n" for pair in pairs for part in pair)


def numbered(count: int) -> bytes:
    return actions(*[({"index": {"_id": f"{n}"}}, {"word": f"w{n}", "n": n}) for n in range(count)])


@pytest.fixture
def index(engine: Engine, index_name: str) -> str:
    engine.create_index(index_name, MAPPING)
    return index_name


def test_get_index_returns_mappings_and_settings(engine: Engine, index: str) -> None:
    state = engine.get_index(index)
    assert state is not None
    assert state.name == index
    assert state.mappings["properties"]["n"] == {"type": "integer"}
    assert state.settings["index.number_of_shards"] == "2"
    assert engine.store_size(index) > 0


def test_get_index_returns_none_for_missing_index(engine: Engine, index_name: str) -> None:
    assert engine.get_index(index_name) is None
    with pytest.raises(IndexMissing, match=index_name):
        engine.count(index_name)


def test_alias_is_resolved_unless_it_has_several_indices(
    engine: Engine, index: str, fresh_index: Callable[[str], str]
) -> None:
    alias, second = f"{index}-alias", fresh_index(engine.info.url)
    engine._request("PUT", f"/{index}/_alias/{alias}")
    state = engine.get_index(alias)
    assert state is not None
    assert state.name == index
    engine.create_index(second, MAPPING)
    engine._request("PUT", f"/{second}/_alias/{alias}")
    with pytest.raises(IndexMismatch, match="points to 2 indices"):
        engine.get_index(alias)


@pytest.mark.parametrize("name", ["", "_all", "a*", "a,b", "a/b", "..", "a b", "-a"])
def test_index_patterns_are_rejected(es9_url: str, name: str) -> None:
    with closing(connect(EngineSettings(url=es9_url))) as engine, pytest.raises(UsageError, match="name of one index"):
        engine.get_index(name)


def test_extend_mapping(engine: Engine, index: str) -> None:
    engine.put_mapping(index, {"_meta": {"owner": "x"}, "properties": {"more": {"type": "boolean"}}})
    state = engine.get_index(index)
    assert state is not None
    assert state.mappings["_meta"] == {"owner": "x"}
    assert set(state.mappings["properties"]) == {"word", "n", "more"}
    with pytest.raises(RequestFailed) as caught:
        engine.put_mapping(index, {"properties": {"n": {"type": "keyword"}}})
    assert caught.value.status == 400
    assert "[n]" in caught.value.message


def test_bulk_results_are_in_order_with_reasons(engine: Engine, index: str) -> None:
    body = actions(
        ({"index": {"_id": "1"}}, {"n": 1}),
        ({"index": {"_id": "2"}}, {"n": "no number"}),
        ({"create": {"_id": "1"}}, {"n": 3}),
        ({"update": {"_id": "gone"}}, {"doc": {"n": 4}}),
        ({"update": {"_id": "1"}}, {"doc": {"word": "später"}}),
    )
    results = engine.bulk(index, body)
    assert [(result.id, result.status) for result in results] == [
        ("1", 201),
        ("2", 400),
        ("1", 409),
        ("gone", 404),
        ("1", 200),
    ]
    assert results[0] == BulkItemResult(201, "1", "", index, "created", (0, 1))
    assert "failed to parse field [n] of type [integer]" in results[1].reason
    assert "version conflict" in results[2].reason
    assert "\n" not in "".join(result.reason for result in results)
    assert engine.mget_sources(index, ["1"], source_includes=["n", "word"]) == {"1": {"n": 1, "word": "später"}}


def test_bulk_from_four_threads(engine: Engine, index: str) -> None:
    start = threading.Barrier(4)

    def load(thread: int) -> list[BulkItemResult]:
        start.wait()
        ids = range(thread * 250, thread * 250 + 250)
        return engine.bulk(index, actions(*[({"index": {"_id": str(n)}}, {"n": n}) for n in ids]))

    with ThreadPoolExecutor(4) as pool:
        results = [result for part in pool.map(load, range(4)) for result in part]
    assert all(result.ok for result in results)
    engine.refresh(index)
    assert engine.count(index) == 1000
    assert engine.count(index, {"range": {"n": {"lt": 250}}}) == 250


def test_invalid_bulk_raises_with_status(engine: Engine, index: str) -> None:
    with pytest.raises(RequestFailed) as caught:
        engine.bulk(index, b'{"nonsense": {"_id": "1"}}\n{}\n')
    assert caught.value.status == 400


def test_mget_finds_documents_before_refresh(engine: Engine, index: str) -> None:
    engine.bulk(index, numbered(3))
    found = engine.mget_sources(index, ["2", "nowhere", "0"], source_includes=["word"])
    assert found == {"2": {"word": "w2"}, "0": {"word": "w0"}}
    assert engine.mget_sources(index, ["1"], source_includes=[]) == {"1": {}}
    assert engine.mget_sources(index, [], source_includes=["word"]) == {}


def test_documents_are_found_in_all_routings(engine: Engine, index_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.create_index(index_name, {"settings": {"number_of_shards": 8}})
    heads: list[Json] = [{"_id": key, "routing": routing} for key in "abc" for routing in "0123456789"]
    assert all(result.ok for result in engine.bulk(index_name, actions(*(({"index": head}, {}) for head in heads))))
    engine.refresh(index_name)
    everything = [document_key(hit) for hit in engine.search(index_name, {"size": 100})["hits"]["hits"]]
    for most in (1024, 8):  # one page; pages that are full
        monkeypatch.setattr("es_sbert.engines.multi_get._MAX_SHARDS", most)
        found = multi_get(engine, index_name, ["b", "c", "no such", "c"], shards=True)
        assert found.keys() == {(key, routing) for key, routing in everything if key != "a"}
        assert all({"_seq_no", "_primary_term", "_shard"} <= hit.keys() for hit in found.values())
    matching = multi_get(engine, index_name, [everything[0][0]], query={"term": {"_routing": everything[0][1]}})
    assert list(matching) == everything[:1]


def test_search_error_carries_engine_reason(engine: Engine, index: str) -> None:
    with pytest.raises(RequestFailed, match=r"unknown query \[foo\]") as caught:
        engine.search(index, {"query": {"foo": {}}})
    assert caught.value.status == 400


def test_scan_yields_every_document_once(engine: Engine, index: str) -> None:
    engine.bulk(index, numbered(1003))
    engine.refresh(index)
    pages = list(engine.scan(index, query={"match_all": {}}, source_includes=["n"], page=100))
    hits = [hit for page in pages for hit in page]
    assert [len(page) for page in pages] == [100] * 10 + [3]
    assert {hit["_id"] for hit in hits} == {str(n) for n in range(1003)}
    assert all(hit["_source"] == {"n": int(hit["_id"])} for hit in hits)
    assert all(hit["_seq_no"] >= 0 and hit["_primary_term"] >= 1 for hit in hits)


def test_scan_reads_a_point_in_time(engine: Engine, index: str) -> None:
    engine.bulk(index, numbered(20))
    engine.refresh(index)
    seen = []
    for page in engine.scan(index, query={"range": {"n": {"gte": 5}}}, source_includes=[], page=4):
        seen += [hit["_id"] for hit in page]
        # Documents that arrive, change or vanish meanwhile are not part of it.
        engine.bulk(index, actions(({"index": {"_id": f"new{len(seen)}"}}, {"n": 100})) + b'{"delete":{"_id":"19"}}\n')
        engine.refresh(index)
    assert sorted(seen, key=int) == [str(n) for n in range(5, 20)]


def test_slices_of_point_in_time_cover_every_document_once(engine: Engine, index: str) -> None:
    engine.bulk(index, numbered(1000))
    engine.refresh(index)
    point_in_time = engine.open_point_in_time(index)
    seen: list[str] = []
    try:
        for number in range(8):
            part = PointInTimeSlice(number, 8, point_in_time)
            pages = engine.scan(index, query={"match_all": {}}, source_includes=[], page=50, slice=part)
            found = [hit["_id"] for page in pages for hit in page]
            assert found
            seen += found
            # What a load in place does: the documents that were read are written, and get another place in the files.
            engine.bulk(index, actions(*[({"update": {"_id": key}}, {"doc": {"word": "seen"}}) for key in found]))
            engine.refresh(index)
    finally:
        engine.close_point_in_time(point_in_time)
    assert sorted(seen, key=int) == [str(n) for n in range(1000)]


def wait_until_closed(engine: Engine, index: str) -> None:
    """An engine counts a context until the last thread has let go of it, be it after the answer.

    What nobody closes stays open for minutes, longer than this waits.
    """
    deadline = time.monotonic() + 60
    while open_contexts(engine, index):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def open_contexts(engine: Engine, index: str) -> int:
    """Search contexts that are open on an index: the points in time of the running scans, one a shard."""
    stats = engine._request("GET", f"/{index}/_stats/search")
    return int(stats["_all"]["total"]["search"]["open_contexts"])


def test_point_in_time_is_closed_on_end_break_and_error(engine: Engine, index: str) -> None:
    engine.bulk(index, numbered(10))
    engine.refresh(index)
    wait_until_closed(engine, index)

    pages = engine.scan(index, query={"match_all": {}}, source_includes=[], page=2)
    next(pages)
    assert open_contexts(engine, index) > 0
    pages.close()  # type: ignore[attr-defined]
    wait_until_closed(engine, index)

    list(engine.scan(index, query={"match_all": {}}, source_includes=[], page=2))
    wait_until_closed(engine, index)

    with pytest.raises(RequestFailed, match="foo"):
        list(engine.scan(index, query={"foo": {}}, source_includes=[]))
    wait_until_closed(engine, index)

    point_in_time = engine.open_point_in_time(index)
    list(engine.scan(index, query={"match_all": {}}, source_includes=[], slice=PointInTimeSlice(0, 2, point_in_time)))
    assert open_contexts(engine, index) > 0  # the other slices are still to be read
    engine.close_point_in_time(point_in_time)
    engine.close_point_in_time(point_in_time)  # is none any more: no error
    wait_until_closed(engine, index)


def test_lost_point_in_time_error_has_remedy(engine: Engine, index: str) -> None:
    engine.bulk(index, numbered(10))
    engine.refresh(index)
    point_in_time = engine.open_point_in_time(index)
    part = PointInTimeSlice(0, 2, point_in_time)
    pages = engine.scan(index, query={"match_all": {}}, source_includes=[], page=1, slice=part)
    next(pages)
    engine.close_point_in_time(point_in_time)  # as a restart of the engine does
    with pytest.raises(RequestFailed, match="has lost the point in time") as caught:
        list(pages)
    assert "run the same command again" in caught.value.remedy


def test_scan_of_missing_index_raises(engine: Engine, index_name: str) -> None:
    with pytest.raises(IndexMissing):
        next(engine.scan(index_name, query={"match_all": {}}, source_includes=[]))


def test_dropped_connection_raises_unreachable_or_status_0(es9_url: str, opensearch_url: str) -> None:
    """Connections that break: as an error of its own, and from `bulk` as status 0, which callers may retry."""
    from tests.engine.relay import Relay

    for url in (es9_url, opensearch_url):
        with Relay(url) as relay:
            engine = connect(EngineSettings(url=relay.url))
            relay.stop()
            with pytest.raises(EngineUnreachable):
                engine.get_index("docs")
            with pytest.raises(RequestFailed) as caught:
                engine.bulk("docs", numbered(1))
            assert caught.value.status == 0
            engine.close()


def test_vectors_excluded_from_source_are_fetched(engine: Engine, index_name: str) -> None:
    vector: Any = {"type": "dense_vector", "dims": 2, "index": False}
    if engine.info.engine_type is EngineType.OPENSEARCH:
        vector = {"type": "knn_vector", "dimension": 2, "space_type": "cosinesimil"}
    engine.create_index(index_name, {"mappings": {"properties": {"v": vector}}})
    engine.bulk(index_name, actions(({"index": {"_id": "1"}}, {"v": [1.0, 2.0], "t": "x"})))
    found = engine.mget_sources(index_name, ["1"], source_includes=["v", "t"], vectors=True)
    assert found == {"1": {"v": [1.0, 2.0], "t": "x"}}
