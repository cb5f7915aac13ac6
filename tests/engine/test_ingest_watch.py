"""Watching an index: what other writers add or change gets its vector, whatever way they write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch, IndexMissing, VectorIndexError
from es_sbert.ingest.backfill import IndexWatcher
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from tests.engine.ingest_support import (
    Interposed,
    Loads,
    Rounds,
    bulk,
    put,
    same_vectors,
    sentences,
    update,
    vector_of,
    wait_until,
)
from tests.faulty_proxy import Exchange, FaultyProxy

pytestmark = pytest.mark.one_engine

PATIENCE = 180.0  # seconds


@contextmanager
def watching(loads: Loads, **options: Any) -> Iterator[tuple[list[Any], Rounds]]:
    """A watch in another thread that has looked at everything once, ended with the block: its result, and its rounds.

    The result is in the list afterwards, be it an error.
    """
    control, rounds = LoadControl(), Rounds()
    control.stop_reading = rounds
    done: list[Any] = []

    def work() -> None:
        try:
            done.append(loads.load(control=control, watch_seconds=0.05, **options))
        except BaseException as error:  # for the test's thread
            done.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        until(lambda: rounds.begun > 0, done)
        yield done, rounds
    finally:
        control.interrupt()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def until(condition: Callable[[], bool], watch: list[Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert not watch, watch
        assert time.monotonic() < deadline
        time.sleep(0.05)


def put_text(engine: Engine, index: str, text: str, *ids: str) -> None:
    """Documents of one text."""
    put(engine, index, ({"id": key, "text": text} for key in ids))


def embedded(loads: Loads) -> set[str]:
    return {key for key, source in loads.contents().items() if source.get("embedding")}


def test_every_write_gets_a_vector(engine: Engine, loads: Loads) -> None:
    documents = {document["id"]: document for document in sentences(30)}
    path = loads.write(list(documents.values())[:20])
    loads.load(path, id_field="id")

    def is_right() -> bool:
        stored = loads.contents()
        texts = [document["text"] for document in documents.values()]
        vectors = loads.encoder.encode(texts, "document")
        return all(
            "embedding" in stored[key] and same_vectors(vector_of(stored[key]), vector)
            for key, vector in zip(documents, vectors, strict=True)
        )

    with watching(loads) as (done, rounds):
        # New documents, one after another.
        for key in list(documents)[20:]:
            put(engine, loads.index, [documents[key]])
        until(is_right, done)
        # A partial update leaves the old vector where it is.
        documents["d3"]["text"] = "It has changed."
        update(engine, loads.index, {"d3": {"text": "It has changed."}})
        # A replaced document has none.
        documents["d4"]["text"] = "It was replaced."
        put(engine, loads.index, [documents["d4"]])
        # One that no longer can be found by its words, one that goes, one that cannot be embedded.
        update(engine, loads.index, {"d5": {"text": " "}})
        bulk(engine, loads.index, {"delete": {"_id": "d6"}})
        put(engine, loads.index, [{"id": "odd", "text": ["a list", 7]}])
        del documents["d5"], documents["d6"]
        until(is_right, done)
        until(lambda: loads.contents()["d5"].get("embedding") is None, done)
        until(lambda: bool(loads.letters()), done)
        quiet = {key: value["_version"] for key, value in loads.contents().items()}
        seen = rounds.begun
        until(lambda: rounds.begun > seen + 5, done)  # whole rounds in which nothing is to be done
        assert {key: value["_version"] for key, value in loads.contents().items()} == quiet
    [summary] = done
    assert (summary.interrupted, summary.stopped, summary.exit_code) == (False, None, 1)
    assert [letter["id"] for letter in loads.letters()] == ["odd"]
    # The first look at everything, then the ones that lacked a vector: its own writes are not counted again.
    assert summary.unchanged == 20
    assert summary.indexed >= 12
    assert "d6" not in loads.contents()


def test_watch_waits_for_a_shard_that_is_missing_in_the_statistics(engine: Engine, tiny_loads: Loads) -> None:
    """A shard without an active primary is left out there: the numbers of the others are not taken for its."""
    lost: list[str] = []

    def lose_a_shard(exchange: Exchange) -> tuple[int, bytes]:
        status, body = exchange.forward()
        if "/_stats" in exchange.path and lost and status == 200:
            answer = orjson.loads(body)
            for state in answer["indices"].values():
                state["shards"].pop("0")
            answer["_shards"]["total"] -= 1
            lost.append("answer")
            return status, orjson.dumps(answer)
        return status, body

    engine.create_index(tiny_loads.index, {"settings": {"number_of_shards": 3, "number_of_replicas": 0}})
    put_text(engine, tiny_loads.index, "a man", *(f"a{n}" for n in range(30)))
    with (
        FaultyProxy(tiny_loads.url, always=lose_a_shard, paths="") as proxy,
        watching(tiny_loads, url=proxy.url) as (done, _),
    ):
        until(lambda: len(embedded(tiny_loads)) == 30, done)
        lost.append("shard 0")
        put_text(engine, tiny_loads.index, "cat", *(f"b{n}" for n in range(60)))
        until(lambda: len(lost) > 3, done)
        lost.clear()
        put_text(engine, tiny_loads.index, "a dog", "c")
        until(lambda: len(embedded(tiny_loads)) == 91, done)
    [summary] = done
    assert (summary.lacking, summary.exit_code) == (0, 0)
    assert summary.retries
    assert any("every document has its vector" in line for line in summary.lines())


def test_watch_finds_and_embeds_documents_that_it_has_missed(
    engine: Engine, tiny_loads: Loads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Writes are made to count as seen without being read, which must never happen."""
    monkeypatch.setattr("es_sbert.ingest.backfill.CHECK_SECONDS", 0.5)
    missed: list[str] = []
    is_quiet = threading.Event()
    has_changes = IndexWatcher.has_changes

    def skip(watcher: IndexWatcher) -> bool:
        changed = has_changes(watcher)
        if changed and is_quiet.is_set() and not missed:
            missed.append("writes")
            watcher._seen = {
                shard: (state.history, state.global_checkpoint) for shard, state in watcher._latest.items()
            }
            return False
        return changed

    monkeypatch.setattr(IndexWatcher, "has_changes", skip)
    engine.create_index(tiny_loads.index, {})
    put(engine, tiny_loads.index, [{"id": "first", "text": "a dog"}, {"id": "empty", "text": " "}])
    with caplog.at_level("INFO", "es_sbert"), watching(tiny_loads) as (done, rounds):
        until(lambda: rounds.begun > 5, done)  # the watch has seen its own writes
        is_quiet.set()
        put(engine, tiny_loads.index, [{"id": "x", "text": "a man"}, {"id": "no", "other": 1}])
        until(lambda: "x" in embedded(tiny_loads), done)
    [summary] = done
    assert missed
    assert (summary.lacking, summary.indexed, summary.exit_code) == (0, 2, 0)
    events = [getattr(record, "event", "") for record in caplog.records]
    assert "watch_missed" in events


def test_rejected_documents_of_a_watch_are_not_embedded_again(
    engine: Engine, tiny_loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that the engine refuses with its vector lacks one for good: it is one dead letter, not one a check."""
    monkeypatch.setattr("es_sbert.ingest.backfill.CHECK_SECONDS", 0.0)
    engine.create_index(tiny_loads.index, {})
    with FaultyProxy(tiny_loads.url) as proxy, watching(tiny_loads, url=proxy.url) as (done, rounds):
        proxy.always = lambda exchange: refuse_without_writing(exchange, tiny_loads.index)
        put_text(engine, tiny_loads.index, "a man", "x")
        until(lambda: bool(tiny_loads.letters()), done)
        seen = rounds.begun
        until(lambda: rounds.begun > seen + 3, done)
    [summary] = done
    assert len(tiny_loads.letters()) == 1
    assert (summary.dead, summary.lacking) == (1, 0)


def test_document_that_others_keep_changing_is_embedded_later_and_no_dead_letter(
    engine: Engine, tiny_loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.ingest.backfill.CONFLICT_ROUNDS", 0)
    changes: list[str] = []

    def change_first(exchange: Exchange) -> tuple[int, bytes]:
        if len(changes) < 2:
            changes.append("x")
            put_text(engine, tiny_loads.index, f"a cat {len(changes)}", "x")
        return exchange.forward()

    engine.create_index(tiny_loads.index, {})
    with FaultyProxy(tiny_loads.url, always=change_first) as proxy, watching(tiny_loads, url=proxy.url) as (done, _):
        put_text(engine, tiny_loads.index, "a man", "x")
        until(lambda: "x" in embedded(tiny_loads), done)
    [summary] = done
    assert len(changes) == 2
    assert (summary.dead, summary.skipped.superseded, summary.indexed, summary.exit_code) == (0, 2, 1, 0)


def run_watch(
    loads: Loads, control: LoadControl, on_round: Callable[[int], None] = lambda number: None, **options: Any
) -> LoadReport:
    """A watch until it is stopped through its control; `on_round` is called before each round, from 1."""

    class ActingRounds(Rounds):
        def wait(self, timeout: float | None = None) -> bool:
            on_round(self.begun + 1)
            return super().wait(timeout)

    control.stop_reading = ActingRounds()
    return loads.load(control=control, watch_seconds=0.05, **options)


def stop_at_window(loads: Loads, window: int, on_round: Callable[[int], None] = lambda number: None) -> LoadReport:
    """A watch that is stopped while it embeds its window of this number, from 0."""
    control = LoadControl()
    stopping = Interposed(loads.encoder, lambda number: control.interrupt() if number == window else None)
    return run_watch(loads, control, on_round, encoder=stopping, batch_window=8)


def assert_counts_are_open(report: LoadReport, lacking: int) -> None:
    assert (report.lacking, report.exit_code) == (lacking, 1), report
    assert report.left
    assert not any("every document" in line and "has its vector" in line for line in report.lines())
    assert any(f"{lacking} documents lack a current vector" in note for note in report.notes)


def test_watch_counts_what_it_leaves_when_it_is_stopped(
    engine: Engine, tiny_loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its first look at everything; among new documents; among those that have a vector of an earlier text."""
    monkeypatch.setattr("es_sbert.ingest.backfill.SCAN_PAGE", 16)
    keys = [f"d{number}" for number in range(240)]
    engine.create_index(tiny_loads.index, {})
    put_text(engine, tiny_loads.index, "a man", *keys[:40])

    def lacking() -> int:
        return sum(source.get("embedding") is None for source in tiny_loads.contents().values())

    first = stop_at_window(tiny_loads, 1)
    assert_counts_are_open(first, lacking())
    assert first.stopped is not None
    assert first.stopped.startswith("interrupted before every document was compared with its vector")

    def add(number: int) -> None:
        if number == 1:
            put_text(engine, tiny_loads.index, "a cat", *keys[40:])

    second = stop_at_window(tiny_loads, -(-lacking() // 8) + 1, add)
    assert_counts_are_open(second, lacking())
    assert second.stopped is None

    tiny_loads.load()

    def change(number: int) -> None:
        if number == 1:
            update(engine, tiny_loads.index, {key: {"text": "a dog"} for key in keys})

    third = stop_at_window(tiny_loads, 1, change)
    assert lacking() == 0
    assert third.left < (third.lacking or 0)
    # What is open is what the next run embeds.
    assert_counts_are_open(third, tiny_loads.load().indexed)
    assert third.stopped is None


def test_watch_counts_documents_that_changed_after_its_last_look(
    engine: Engine, tiny_loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial update keeps the vector of the earlier text, so the document does not lack one."""
    engine.create_index(tiny_loads.index, {})
    put_text(engine, tiny_loads.index, "a man", "changed", "emptied", "recreated", "priced", "untouched")

    def change() -> None:
        changes: dict[str, Any] = {"changed": {"text": "a dog"}, "emptied": {"text": " "}, "priced": {"price": 1.0}}
        update(engine, tiny_loads.index, changes)
        bulk(engine, tiny_loads.index, {"delete": {"_id": "recreated"}})
        put_text(engine, tiny_loads.index, "a cat", "recreated", "added")

    def stop_and(act: Callable[[], None]) -> LoadReport:
        """A watch that is stopped right before the index changes, when it has seen its own writes."""
        control = LoadControl()

        def on_round(number: int) -> None:
            if number == 5:
                control.interrupt()
                act()

        return run_watch(tiny_loads, control, on_round)

    report = stop_and(change)
    assert (report.indexed, report.left, report.lacking, report.stopped, report.exit_code) == (5, 0, 4, None, 1)
    assert f"`es-sbert ingest --index {tiny_loads.index} --vector embedding`" in report.notes[0]
    assert not any("has its vector" in line for line in report.lines())
    again = tiny_loads.load()
    assert (again.indexed, again.skipped.empty) == (3, 1)

    # More changes than are read at the end.
    monkeypatch.setattr("es_sbert.ingest.backfill._LAST_WRITES", 2)
    report = stop_and(lambda: put_text(engine, tiny_loads.index, "a storm", "changed", "priced", "added"))
    assert (report.lacking, report.exit_code) == (3, 1)
    assert report.stopped is not None
    assert report.stopped.startswith("interrupted before all of the latest changes were compared with their vectors")


def refuse_without_writing(exchange: Exchange, index: str) -> tuple[int, bytes]:
    error = {"type": "document_parsing_exception", "reason": "refused by the test"}
    answer = {"items": [{"update": {"_id": "x", "_index": index, "status": 400, "error": error}}]}
    return 200, orjson.dumps(answer)


def test_watch_on_filtered_alias_embeds_only_its_documents(engine: Engine, loads: Loads) -> None:
    alias = f"{loads.index}-cheap"
    properties = {"price": {"type": "float"}}
    engine.create_index(loads.index, {"mappings": {"properties": properties}})
    filtered = {"index": loads.index, "alias": alias, "filter": {"range": {"price": {"lt": 10}}}}
    engine.update_aliases([{"add": filtered}])
    documents = [
        {"id": "dear", "text": "A dear one.", "price": 20.0},
        {"id": "cheap", "text": "A cheap one.", "price": 2.0},
    ]
    put(engine, loads.index, documents)
    with watching(loads, index=alias) as (done, _):
        until(lambda: "cheap" in embedded(loads), done)
        put(engine, loads.index, ({**document, "id": f"{document['id']}, too"} for document in documents))
        # It was written last: what looks at it has looked at the other one.
        until(lambda: "cheap, too" in embedded(loads), done)
        update(engine, loads.index, {"dear": {"price": 1.0}})
        until(lambda: "dear" in embedded(loads), done)
        assert embedded(loads) == {"cheap", "cheap, too", "dear"}


def test_watch_ends_when_index_is_deleted(engine: Engine, tiny_loads: Loads) -> None:
    tiny_loads.load(tiny_loads.write(sentences(2)))
    with watching(tiny_loads) as (done, _):
        engine.delete_index(tiny_loads.index)
        wait_until(lambda: bool(done))
    [error] = done
    assert isinstance(error, IndexMissing | VectorIndexError)


def test_watch_ends_when_alias_moves(engine: Engine, tiny_loads: Loads, fresh_index: Callable[[str], str]) -> None:
    """Both indices have seen as many writes: their numbers tell nothing."""
    one, two = tiny_loads.index, fresh_index(tiny_loads.url)
    alias = f"{one}-alias"
    path = tiny_loads.write(sentences(2))
    for index in (one, two):
        tiny_loads.load(path, index=index)
    engine.update_aliases([{"add": {"index": one, "alias": alias}}])
    with watching(tiny_loads, index=alias) as (done, _):
        engine.update_aliases([{"remove": {"index": one, "alias": alias}}, {"add": {"index": two, "alias": alias}}])
        wait_until(lambda: bool(done))
    [error] = done
    assert isinstance(error, IndexMismatch)
    assert f"{alias} pointed to {one} when the load began, and points to {two} now" in error.message
