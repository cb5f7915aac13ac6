"""The `Engine` protocol on each real engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import orjson
import pytest

from es_sbert.engines.bulk_request import BulkItemResult
from es_sbert.engines.engine import Engine, document_key
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_scan import IndexSlice, close_snapshots, multi_get, open_snapshots, scan_index
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import is_transient, without_retries
from es_sbert.errors import EngineError, IndexMismatch, PointInTimeLost, RequestFailed
from tests.conftest import also_es8
from tests.engine.ingest_support import ask, update, wait_until
from tests.engine.sources import read_sources
from tests.engine.vectors import state_of
from tests.raised import raises_as_recorded

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


def test_an_index_is_as_the_engine_holds_it_lists_included(engine: Engine, index_name: str) -> None:
    settings = {"index.query.default_field": ["word", "n"], "index.max_result_window": "50", "index.hidden": "true"}
    engine.create_index(index_name, MAPPING | {"settings": settings})
    engine.put_mapping(index_name, {"_meta": {"owner": "x"}, "properties": {"more": {"type": "boolean"}}})
    state = state_of(engine, index_name)
    assert (state.name, state.shards, state.mappings["_meta"]) == (index_name, 1, {"owner": "x"})
    assert state.mappings["properties"].keys() == {"word", "n", "more"}
    assert {name: state.settings[name] for name in settings} == settings
    assert (state.result_window, state.has_setting("index.hidden"), state.setting("index.codec")) == (50, True, None)
    assert engine.store_size(index_name) > 0
    with raises_as_recorded(RequestFailed) as caught:
        engine.put_mapping(index_name, {"properties": {"n": {"type": "keyword"}}})
    assert caught.value.status == 400


@also_es8
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
    with raises_as_recorded(RequestFailed) as caught:
        engine.bulk(index, b'{"nonsense": {"_id": "1"}}\n{}\n')
    assert caught.value.status == 400
    assert read_sources(engine, index, ["1"], source_includes=["n", "word"]) == {"1": {"n": 1, "word": "später"}}


def test_documents_are_found_in_all_routings(engine: Engine, index_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.create_index(index_name, {"settings": {"number_of_shards": 8}})
    heads: list[Json] = [{"_id": key, "routing": routing} for key in "abc" for routing in "0123456789"]
    assert all(result.ok for result in engine.bulk(index_name, actions(*(({"index": head}, {}) for head in heads))))
    engine.refresh(index_name)
    everything = [document_key(hit) for hit in engine.search(index_name, {"size": 100})["hits"]["hits"]]
    for most in (1024, 8):  # one page; pages that are full
        monkeypatch.setattr("es_sbert.engines.index_scan._MAX_SHARDS", most)
        found = multi_get(engine, index_name, ["b", "c", "no such", "c"], shards=True)
        assert found.keys() == {(key, routing) for key, routing in everything if key != "a"}
        assert all({"_seq_no", "_primary_term", "_shard"} <= hit.keys() for hit in found.values())
    matching = multi_get(engine, index_name, [everything[0][0]], query={"term": {"_routing": everything[0][1]}})
    assert list(matching) == everything[:1]


def scanned(engine: Engine, name: str, **options: Any) -> Iterator[list[Json]]:
    """The hits of each page of a scan; none may be of a point in time that was opened again."""
    options = {"query": {"match_all": {}}, "source_includes": []} | options
    for page in scan_index(engine, name, **options):
        assert not page.is_rewritten
        yield page.hits


def test_scan_of_rare_documents_needs_few_requests(engine: Engine, index: str) -> None:
    """Sequence numbers are read in ranges, which grow where there is little."""
    engine.bulk(index, numbered(5000))
    engine.bulk(index, b"".join(b'{"delete":{"_id":"%d"}}\n' % n for n in range(4990)))
    engine.refresh(index)
    requests = []
    send = engine.send
    engine.send = lambda *args, **kwargs: (requests.append(args), send(*args, **kwargs))[1]  # type: ignore[method-assign]
    hits = [hit for page in scanned(engine, index, page=10) for hit in page]
    assert sorted(hit["_id"] for hit in hits) == [str(n) for n in range(4990, 5000)]
    assert len(requests) < 60


@also_es8
def test_scan_reads_each_shard_from_a_point_in_time(engine: Engine, fresh_index: Callable[[str], str]) -> None:
    index = fresh_index(engine.info.url)
    engine.create_index(index, MAPPING | {"settings": {"number_of_shards": 1, "number_of_replicas": 0}})
    engine.bulk(index, numbered(20))
    engine.refresh(index)
    seen: list[str] = []
    for page in scanned(engine, index, query={"range": {"n": {"gte": 5}}}, page=4):
        seen += [hit["_id"] for hit in page]
        # Documents that arrive, change or vanish meanwhile are not part of it.
        engine.bulk(index, actions(({"index": {"_id": f"new{len(seen)}"}}, {"n": 100})) + b'{"delete":{"_id":"19"}}\n')
        engine.refresh(index)
    assert sorted(seen, key=int) == [str(n) for n in range(5, 20)]


def test_slices_cover_every_document_once(engine: Engine, index: str) -> None:
    engine.bulk(index, numbered(1000))
    engine.refresh(index)
    snapshots = open_snapshots(engine, index, without_retries)
    seen: list[str] = []
    try:
        for number in range(8):
            found = [
                hit["_id"]
                for page in scanned(engine, index, page=50, slice=IndexSlice(number, 8, snapshots))
                for hit in page
            ]
            assert found
            seen += found
            # What a load in place does: the documents that were read are written again.
            update(engine, index, {key: {"word": "seen"} for key in found})
            engine.refresh(index)
    finally:
        close_snapshots(engine, snapshots)
    assert sorted(seen, key=int) == [str(n) for n in range(1000)]


def wait_until_closed(engine: Engine, index: str) -> None:
    """An engine counts a context until the last thread has let go of it, be it after the answer."""
    begun = time.monotonic()
    wait_until(lambda: not open_contexts(engine, index))
    assert time.monotonic() < begun + 60  # what nobody closes stays open for minutes


def open_contexts(engine: Engine, index: str) -> int:
    """Search contexts that are open on an index: the points in time of the running scans, one a shard."""
    return int(ask(engine, "GET", f"/{index}/_stats/search")["_all"]["total"]["search"]["open_contexts"])


def test_point_in_time_is_closed_on_end_break_and_error(engine: Engine, index: str) -> None:
    engine.bulk(index, numbered(10))
    engine.refresh(index)
    wait_until_closed(engine, index)

    pages = scan_index(engine, index, query={"match_all": {}}, source_includes=[], page=2)
    next(pages)
    assert open_contexts(engine, index) > 0
    pages.close()  # type: ignore[attr-defined]
    wait_until_closed(engine, index)

    list(scanned(engine, index, page=2))
    wait_until_closed(engine, index)

    with raises_as_recorded(RequestFailed):
        list(scanned(engine, index, query={"foo": {}}))
    wait_until_closed(engine, index)

    snapshots = open_snapshots(engine, index, without_retries)
    list(scanned(engine, index, slice=IndexSlice(0, 2, snapshots)))
    assert open_contexts(engine, index) > 0  # the other slices are still to be read
    close_snapshots(engine, snapshots)
    close_snapshots(engine, snapshots)  # are none any more: no error
    wait_until_closed(engine, index)


@pytest.fixture
def losing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that ends all points in time that the engine has opened."""
    opened: list[str] = []
    open_point_in_time = engine.open_point_in_time

    def remember(name: str, **options: Any) -> str:
        opened.append(open_point_in_time(name, **options))
        return opened[-1]

    monkeypatch.setattr(engine, "open_point_in_time", remember)

    def lose() -> None:
        while opened:
            engine.close_point_in_time(opened.pop())

    return lose


def retry_at_once(call: Callable[[], Any]) -> Any:
    for _ in range(3):
        try:
            return call()
        except EngineError as error:
            if not is_transient(error):
                raise
    return call()


def test_shard_search_tells_a_moved_shard_from_a_bad_query(engine: Engine, index: str) -> None:
    bad = {"query": {"query_string": {"query": "no data nodes with criteria (("}}}
    for node, status in ((engine.shard_states(index)[0].node, 400), ("gone", 503)):
        with raises_as_recorded(RequestFailed) as caught:
            engine.search_shard(index, 0, bad, node)
        assert caught.value.status == status


def test_scan_goes_on_where_it_was_after_loss_of_point_in_time(
    engine: Engine, index: str, losing: Callable[[], None]
) -> None:
    """Nothing is read twice and nothing is left out, although documents are written and deleted in between."""
    engine.bulk(index, numbered(200))
    engine.refresh(index)
    pages = scan_index(engine, index, query={"match_all": {}}, source_includes=["n"], page=7, retrying=retry_at_once)
    read: list[str] = []
    rewritten: dict[str, int] = {}
    for page in pages:
        if page.is_rewritten:
            rewritten |= {hit["_id"]: hit["_source"]["n"] for hit in page.hits}
            continue
        read += [hit["_id"] for hit in page.hits]
        if len(read) in range(60, 67):
            # Of those that were read, some are written again; of the others, one is changed and one is deleted.
            changed, deleted = [str(n) for n in range(200) if str(n) not in read][:2]
            update(engine, index, {key: {"n": -1} for key in [*read[:3], changed]})
            engine.bulk(index, b'{"delete":{"_id":"%s"}}\n' % deleted.encode())
        losing()
    assert len(read) == len(set(read))
    # Another shard may have been opened after the change.
    assert {*read, *rewritten} >= {str(n) for n in range(200)} - {deleted}
    assert changed in read or rewritten[changed] == -1


def test_lost_point_in_time_and_replaced_index_end_a_scan(
    engine: Engine, index: str, losing: Callable[[], None]
) -> None:
    engine.bulk(index, numbered(10))
    engine.refresh(index)
    scan = partial(scan_index, engine, index, query={"match_all": {}}, source_includes=[], page=1)
    pages = scan()
    next(pages)
    losing()
    with raises_as_recorded(PointInTimeLost):
        list(pages)
    pages = scan(retrying=retry_at_once)
    next(pages)
    engine.delete_index(index)
    engine.create_index(index, MAPPING)
    engine.bulk(index, numbered(10))
    with raises_as_recorded(IndexMismatch):
        list(pages)


@also_es8
def test_vectors_excluded_from_source_are_fetched(engine: Engine, index_name: str) -> None:
    vector: Any = {"type": "dense_vector", "dims": 2, "index": False}
    if engine.info.engine_type is EngineType.OPENSEARCH:
        vector = {"type": "knn_vector", "dimension": 2, "space_type": "cosinesimil"}
    engine.create_index(index_name, {"mappings": {"properties": {"v": vector}}})
    engine.bulk(index_name, actions(({"index": {"_id": "1"}}, {"v": [1.0, 2.0], "t": "x"})))
    found = read_sources(engine, index_name, ["1"], source_includes=["v", "t"])
    assert found == {"1": {"v": [1.0, 2.0], "t": "x"}}
