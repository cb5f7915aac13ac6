"""An engine that refuses, breaks off or goes away, seen through a proxy; nothing is lost and nothing doubled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.ingest.progress import ProgressMeter, ProgressSnapshot
from tests.engine.ingest_support import Loads, ask, sentences, write_jsonl
from tests.faulty_proxy import Exchange, Fault, FaultyProxy, answer, cut_after, cut_before, refuse_items, too_large

pytestmark = pytest.mark.one_engine

COUNT = 40
PATIENCE = 300.0  # seconds
# What a client library makes of an answer, or of none, is the same for every engine that it is for.
each_client = pytest.mark.parametrize("engine_url", ["es9", "opensearch"], indirect=True)


@pytest.fixture
def proxy(engine_url: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(engine_url) as proxy:
        yield proxy


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", sentences(COUNT))


def in_small_bodies(proxy: FaultyProxy, loads: Loads, docs: Path, **options: Any) -> Any:
    options = {"batch_window": 8, "bulk_bytes": 20_000, "retry_seconds": 60} | options
    return loads.load(docs, url=proxy.url, id_field="id", **options)


def assert_all_in_once(loads: Loads) -> None:
    stored = loads.contents()
    assert {key: source["price"] for key, source in stored.items()} == {d["id"]: d["price"] for d in sentences(COUNT)}
    assert all("embedding" in source for source in stored.values())


@each_client
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([answer(429), answer(429)], id="429"),
        pytest.param([answer(502), answer(503), answer(504)], id="5xx"),
        pytest.param([cut_before, cut_before], id="cut before"),
        pytest.param([cut_after, cut_after], id="cut after"),
        pytest.param([refuse_items(0), refuse_items(0, 1)], id="429 for some"),
        pytest.param([answer(429), cut_after, answer(503), refuse_items(0)], id="mixed"),
    ],
)
def test_transient_failures_are_retried(loads: Loads, proxy: FaultyProxy, docs: Path, faults: list[Fault]) -> None:
    proxy.faults = list(faults)
    summary = in_small_bodies(proxy, loads, docs)
    assert not proxy.faults
    assert (summary.indexed, summary.dead, summary.exit_code) == (COUNT, 0, 0)
    assert summary.retries >= len(faults)
    assert_all_in_once(loads)
    assert not loads.dead.exists()


@each_client
def test_bodies_too_large_are_split(loads: Loads, proxy: FaultyProxy) -> None:
    documents = sentences(COUNT)
    documents[7]["filler"] = "x" * 50_000
    docs = loads.write(documents)
    proxy.always = too_large(40_000)
    summary = in_small_bodies(proxy, loads, docs, batch_window=100, bulk_bytes=1 << 20)
    assert (summary.indexed, summary.dead) == (COUNT - 1, 1)
    assert max(proxy.bulk_sizes) > 100_000
    [letter] = loads.letters()
    assert letter["id"] == "d7"
    assert "413" in letter["reason"]
    assert set(loads.contents()) == {d["id"] for d in documents} - {"d7"}


@each_client
def test_unreachable_engine_leaves_rest_to_next_load(loads: Loads, proxy: FaultyProxy, docs: Path) -> None:
    proxy.faults = [last_of(proxy)]
    summary = in_small_bodies(proxy, loads, docs, retry_seconds=0.5)
    assert summary.stopped is not None
    assert "retried for 0.5 s" in summary.stopped
    assert 0 < summary.indexed < COUNT
    assert summary.exit_code == 1
    # Nothing is the matter with what was read and is not in: it is no dead letter.
    assert len(loads.contents()) == summary.indexed
    assert summary.left == summary.read - summary.indexed > 0
    assert not loads.dead.exists()
    proxy.down.clear()
    again = in_small_bodies(proxy, loads, docs)
    assert again.resumed
    assert (again.unchanged, again.indexed) == (summary.indexed, COUNT - summary.indexed)
    assert_all_in_once(loads)


@each_client
def test_poison_document_is_dead_lettered_without_blocking_others(loads: Loads, proxy: FaultyProxy, docs: Path) -> None:
    def fault(exchange: Exchange) -> tuple[int, bytes]:
        lines = exchange.body.splitlines()[::2]
        heads = [orjson.loads(line)["index"]["_id"] for line in lines]
        bad = [position for position, document_id in enumerate(heads) if document_id == "d9"]
        return refuse_items(*bad, status=500)(exchange) if bad else exchange.forward()

    proxy.always = fault
    summary = in_small_bodies(proxy, loads, docs, retry_seconds=1)
    assert (summary.indexed, summary.dead, summary.left, summary.stopped) == (COUNT - 1, 1, 0, None)
    [letter] = loads.letters()
    assert letter["id"] == "d9"
    assert "the engine kept failing on it for 1 s" in letter["reason"]


def last_of(proxy: FaultyProxy) -> Fault:
    """After this request the engine is unreachable."""

    def last(exchange: Exchange) -> tuple[int, bytes]:
        proxy.down.set()
        return exchange.forward()

    return last


def block_after_the_first(proxy: FaultyProxy, engine: Engine, index: str) -> None:
    """The first bulk request goes through, then the index is blocked; the others wait for that on their way."""
    blocked = threading.Event()

    def first(exchange: Exchange) -> tuple[int, bytes]:
        result = exchange.forward()
        engine.put_settings(index, {"index.blocks.write": "true"})
        blocked.set()
        return result

    def later(exchange: Exchange) -> tuple[int, bytes]:
        assert blocked.wait(PATIENCE)
        return exchange.forward()

    proxy.faults, proxy.always = [first], later


def test_temporary_block_is_waited_out_and_logged(engine: Engine, loads: Loads, proxy: FaultyProxy, docs: Path) -> None:
    waits: list[str] = []

    class Mending(ProgressMeter):
        """Whoever reads why the load waits lifts the block."""

        def show(self, snapshot: ProgressSnapshot) -> None:
            if snapshot.waiting is not None and not waits:
                waits.append(snapshot.waiting)
                engine.put_settings(loads.index, {"index.blocks.write": None})

    block_after_the_first(proxy, engine, loads.index)
    summary = in_small_bodies(proxy, loads, docs, batch_window=4, meter=Mending())
    assert (summary.indexed, summary.dead, summary.left, summary.exit_code) == (COUNT, 0, 0, 0)
    assert "block" in waits[0]
    assert_all_in_once(loads)


@pytest.mark.usefixtures("alone_on_engines")  # the engine's health is red while the index is opened
def test_index_closed_during_load_stops_without_dead_letters(
    engine: Engine, loads: Loads, proxy: FaultyProxy, docs: Path
) -> None:
    def close(exchange: Any) -> tuple[int, bytes]:
        ask(engine, "POST", f"/{loads.index}/_close")
        return exchange.forward()  # type: ignore[no-any-return]

    proxy.faults = [close]
    summary = in_small_bodies(proxy, loads, docs)
    assert (summary.dead, summary.left > 0) == (0, True)
    assert "is closed (Open it" in str(summary.stopped)
    ask(engine, "POST", f"/{loads.index}/_open", {"wait_for_active_shards": "1"})
    assert in_small_bodies(proxy, loads, docs).left == 0
    assert_all_in_once(loads)


@each_client
def test_engine_lost_during_lookup_leaves_the_rest(loads: Loads, proxy: FaultyProxy, docs: Path) -> None:
    in_small_bodies(proxy, loads, write_jsonl(loads.folder / "one.jsonl", sentences(1)))
    changed = [document | {"text": document["text"] + " Again."} for document in sentences(COUNT)]
    proxy.faults = [last_of(proxy)]
    summary = in_small_bodies(proxy, loads, write_jsonl(docs, changed), retry_seconds=0.3, batch_window=4)
    assert summary.stopped is not None
    assert summary.left == summary.read - summary.indexed > 0
    assert not loads.dead.exists()


@pytest.mark.parametrize(
    ("paths", "reason"), [("/_refresh", "the last refresh failed"), ("/_mget", "documents could not be read back")]
)
def test_failure_after_the_last_write_is_named_and_loses_nothing(
    loads: Loads, proxy: FaultyProxy, docs: Path, paths: str, reason: str
) -> None:
    proxy.paths, proxy.faults, proxy.always = paths, [lambda exchange: exchange.forward()], answer(503)
    summary = in_small_bodies(proxy, loads, docs, retry_seconds=0)
    assert reason in str(summary.stopped)
    assert (summary.indexed, summary.left, summary.exit_code) == (COUNT, 0, 1)
    assert_all_in_once(loads)


@each_client
def test_lost_update_response_is_not_a_conflict(loads: Loads, proxy: FaultyProxy, docs: Path) -> None:
    loads.load(docs, id_field="id", vector_field="first")
    proxy.faults = [cut_after, cut_after]
    summary = loads.load(url=proxy.url, batch_window=8, retry_seconds=60)
    assert (summary.read, summary.indexed, summary.unchanged, summary.dead) == (COUNT, COUNT, 0, 0)
    assert_all_in_once(loads)
