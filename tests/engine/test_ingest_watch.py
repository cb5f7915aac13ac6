"""Watching an index: what other writers add or change gets its vector, whatever way they write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch, IndexMissing, UsageError, VectorIndexError
from es_sbert.ingest.backfill import IndexWatcher
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from tests.engine.ingest_support import (
    Interposed,
    Loads,
    Rounds,
    ask,
    contents,
    letters,
    load,
    open_engine,
    same_vectors,
    sentences,
    vector_of,
    write_jsonl,
)
from tests.faulty_proxy import Exchange, FaultyProxy, answer, cut_before

pytestmark = pytest.mark.one_engine

PATIENCE = 180.0  # seconds


@contextmanager
def watching(
    url: str, encoder: Encoder, index: str, dead: Path
) -> Iterator[tuple[list[LoadReport | BaseException], Rounds]]:
    """A watch in another thread that has looked at everything once, ended with the block.

    Yields:
        A list in which its result stands afterwards, and its rounds.
    """
    control, rounds = LoadControl(), Rounds()
    control.stop_reading = rounds
    done: list[LoadReport | BaseException] = []

    def work() -> None:
        try:
            done.append(load(url, encoder, index, dead=dead, control=control, watch_seconds=0.05))
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


def send(engine: Engine, index: str, *lines: dict[str, Any]) -> None:
    results = engine.bulk(index, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert all(result.ok for result in results), results


def put(engine: Engine, index: str, text: str, *ids: str) -> None:
    """Documents of one text."""
    send(engine, index, *(line for key in ids for line in ({"index": {"_id": key}}, {"text": text})))


def test_every_write_gets_a_vector(loads: Loads) -> None:
    dead = loads.dead
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

    with open_engine(loads.url) as engine, watching(loads.url, loads.encoder, loads.index, dead) as (done, rounds):
        # New documents, one after another.
        for key in list(documents)[20:]:
            send(engine, loads.index, {"index": {"_id": key}}, documents[key])
        until(is_right, done)
        # A partial update leaves the old vector where it is.
        documents["d3"]["text"] = "It has changed."
        send(engine, loads.index, {"update": {"_id": "d3"}}, {"doc": {"text": "It has changed."}})
        # A replaced document has none.
        documents["d4"]["text"] = "It was replaced."
        send(engine, loads.index, {"index": {"_id": "d4"}}, documents["d4"])
        # One that no longer can be found by its words, one that goes, one that cannot be embedded.
        send(engine, loads.index, {"update": {"_id": "d5"}}, {"doc": {"text": " "}})
        send(engine, loads.index, {"delete": {"_id": "d6"}})
        send(engine, loads.index, {"index": {"_id": "odd"}}, {"text": ["a list", 7]})
        del documents["d5"], documents["d6"]
        until(is_right, done)
        until(lambda: loads.contents()["d5"].get("embedding") is None, done)
        until(lambda: bool(letters(dead)), done)
        quiet = {key: value["_version"] for key, value in loads.contents().items()}
        seen = rounds.begun
        until(lambda: rounds.begun > seen + 5, done)  # whole rounds in which nothing is to be done
        assert {key: value["_version"] for key, value in loads.contents().items()} == quiet
    [summary] = done
    assert isinstance(summary, LoadReport)
    assert (summary.interrupted, summary.stopped, summary.exit_code) == (False, None, 1)
    assert [letter["id"] for letter in letters(dead)] == ["odd"]
    # The first look at everything, then the ones that lacked a vector: its own writes are not counted again.
    assert summary.unchanged == 20
    assert summary.indexed >= 12
    assert "d6" not in loads.contents()


def test_watch_waits_for_a_shard_that_is_missing_in_the_statistics(tiny_loads: Loads) -> None:
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

    with open_engine(tiny_loads.url) as engine, FaultyProxy(tiny_loads.url, always=lose_a_shard, paths="") as proxy:
        engine.create_index(tiny_loads.index, {"settings": {"number_of_shards": 3, "number_of_replicas": 0}})
        send(
            engine,
            tiny_loads.index,
            *(line for n in range(30) for line in ({"index": {"_id": f"a{n}"}}, {"text": "a man"})),
        )

        def embedded() -> set[str]:
            return {key for key, source in tiny_loads.contents().items() if source.get("embedding")}

        with watching(proxy.url, tiny_loads.encoder, tiny_loads.index, tiny_loads.dead) as (done, _):
            until(lambda: len(embedded()) == 30, done)
            lost.append("shard 0")
            send(
                engine,
                tiny_loads.index,
                *(line for n in range(60) for line in ({"index": {"_id": f"b{n}"}}, {"text": "cat"})),
            )
            until(lambda: len(lost) > 3, done)
            lost.clear()
            send(engine, tiny_loads.index, {"index": {"_id": "c"}}, {"text": "a dog"})
            until(lambda: len(embedded()) == 91, done)
    [summary] = done
    assert isinstance(summary, LoadReport)
    assert (summary.lacking, summary.exit_code) == (0, 0)
    assert summary.retries
    assert any("every document has its vector" in line for line in summary.lines())


def test_watch_finds_and_embeds_documents_that_it_has_missed(
    tiny_loads: Loads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
    with open_engine(tiny_loads.url) as engine, caplog.at_level("INFO", "es_sbert"):
        engine.create_index(tiny_loads.index, {})
        put(engine, tiny_loads.index, "a dog", "first")
        send(engine, tiny_loads.index, {"index": {"_id": "empty"}}, {"text": " "})
        with watching(tiny_loads.url, tiny_loads.encoder, tiny_loads.index, tiny_loads.dead) as (done, rounds):
            until(lambda: rounds.begun > 5, done)  # the watch has seen its own writes
            is_quiet.set()
            send(
                engine,
                tiny_loads.index,
                {"index": {"_id": "x"}},
                {"text": "a man"},
                {"index": {"_id": "no"}},
                {"other": 1},
            )
            until(lambda: bool(tiny_loads.contents()["x"].get("embedding")), done)
    [summary] = done
    assert isinstance(summary, LoadReport)
    assert missed
    assert (summary.lacking, summary.indexed, summary.exit_code) == (0, 2, 0)
    events = [getattr(record, "event", "") for record in caplog.records]
    assert "watch_missed" in events


def test_rejected_documents_of_a_watch_are_not_embedded_again(
    es9_url: str, fresh_index: Callable[[str], str], tiny: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that the engine refuses with its vector lacks one for good: it is one dead letter, not one a check."""
    monkeypatch.setattr("es_sbert.ingest.backfill.CHECK_SECONDS", 0.0)
    index = fresh_index(es9_url)

    with open_engine(es9_url) as engine, FaultyProxy(es9_url, paths="") as proxy:
        engine.create_index(index, {})
        with watching(proxy.url, tiny, index, tmp_path / "dead") as (done, rounds):
            proxy.always = lambda exchange: (
                refuse_without_writing(exchange, index) if "/_bulk" in exchange.path else exchange.forward()
            )
            send(engine, index, {"index": {"_id": "x"}}, {"text": "a man"})
            until(lambda: bool(letters(tmp_path / "dead")), done)
            seen = rounds.begun
            until(lambda: rounds.begun > seen + 3, done)
    [summary] = done
    assert isinstance(summary, LoadReport)
    assert len(letters(tmp_path / "dead")) == 1
    assert (summary.dead, summary.lacking) == (1, 0)


def test_document_that_others_keep_changing_is_embedded_later_and_no_dead_letter(
    es9_url: str, fresh_index: Callable[[str], str], tiny: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.ingest.backfill.CONFLICT_ROUNDS", 0)
    index, changes = fresh_index(es9_url), []

    def change_first(exchange: Exchange) -> tuple[int, bytes]:
        if exchange.path.partition("?")[0].endswith("/_bulk") and len(changes) < 2:
            changes.append("x")
            put(engine, index, f"a cat {len(changes)}", "x")
        return exchange.forward()

    with open_engine(es9_url) as engine, FaultyProxy(es9_url, always=change_first, paths="") as proxy:
        engine.create_index(index, {})
        with watching(proxy.url, tiny, index, tmp_path / "dead") as (done, _):
            put(engine, index, "a man", "x")
            until(lambda: bool(contents(es9_url, index)["x"].get("embedding")), done)
    [summary] = done
    assert isinstance(summary, LoadReport)
    assert len(changes) == 2
    assert (summary.dead, summary.skipped.superseded, summary.indexed, summary.exit_code) == (0, 2, 1, 0)


def run_watch(
    url: str,
    encoder: Any,
    index: str,
    dead: Path,
    control: LoadControl,
    on_round: Callable[[int], None] = lambda number: None,
    **options: Any,
) -> LoadReport:
    """A watch until it is stopped through its control.

    Args:
        on_round: Called with the number of each round before it begins, from 1.
    """

    class ActingRounds(Rounds):
        def wait(self, timeout: float | None = None) -> bool:
            on_round(self.begun + 1)
            return super().wait(timeout)

    control.stop_reading = ActingRounds()
    return load(url, encoder, index, dead=dead, control=control, watch_seconds=0.05, **options)


def stop_at_window(
    url: str,
    encoder: Encoder,
    index: str,
    dead: Path,
    window: int,
    on_round: Callable[[int], None] = lambda number: None,
) -> LoadReport:
    """A watch that is stopped while it embeds its window of this number, from 0."""
    control = LoadControl()
    stopping = Interposed(encoder, lambda number: control.interrupt() if number == window else None)
    return run_watch(url, stopping, index, dead, control, on_round, batch_window=8)


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
    dead, keys = tiny_loads.dead, [f"d{number}" for number in range(240)]
    engine.create_index(tiny_loads.index, {})
    put(engine, tiny_loads.index, "a man", *keys[:40])

    def lacking() -> int:
        return sum(source.get("embedding") is None for source in tiny_loads.contents().values())

    first = stop_at_window(tiny_loads.url, tiny_loads.encoder, tiny_loads.index, dead, 1)
    assert_counts_are_open(first, lacking())
    assert first.stopped is not None
    assert first.stopped.startswith("interrupted before every document was compared with its vector")

    def add(number: int) -> None:
        if number == 1:
            put(engine, tiny_loads.index, "a cat", *keys[40:])

    second = stop_at_window(tiny_loads.url, tiny_loads.encoder, tiny_loads.index, dead, -(-lacking() // 8) + 1, add)
    assert_counts_are_open(second, lacking())
    assert second.stopped is None

    tiny_loads.load()

    def change(text: str) -> Callable[[int], None]:
        def act(number: int) -> None:
            if number == 1:
                lines = [line for key in keys for line in ({"update": {"_id": key}}, {"doc": {"text": text}})]
                send(engine, tiny_loads.index, *lines)

        return act

    third = stop_at_window(tiny_loads.url, tiny_loads.encoder, tiny_loads.index, dead, 1, change("a dog"))
    assert lacking() == 0
    assert third.left < (third.lacking or 0)
    # What is open is what the next run embeds.
    assert_counts_are_open(third, tiny_loads.load().indexed)
    assert third.stopped is None

    monkeypatch.setattr("es_sbert.ingest.backfill._LAST_WRITES", 16)
    fourth = stop_at_window(tiny_loads.url, tiny_loads.encoder, tiny_loads.index, dead, 1, change("a storm"))
    assert (fourth.lacking, fourth.exit_code) == (fourth.left, 1)
    assert fourth.stopped is not None  # there was more than could be counted


def test_watch_counts_documents_that_changed_after_its_last_look(
    engine: Engine, tiny_loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial update keeps the vector of the earlier text, so the document does not lack one."""
    dead = tiny_loads.dead
    engine.create_index(tiny_loads.index, {})
    put(engine, tiny_loads.index, "a man", "changed", "emptied", "recreated", "priced", "untouched")

    def change() -> None:
        send(
            engine,
            tiny_loads.index,
            *({"update": {"_id": "changed"}}, {"doc": {"text": "a dog"}}),
            *({"update": {"_id": "emptied"}}, {"doc": {"text": " "}}),
            *({"update": {"_id": "priced"}}, {"doc": {"price": 1.0}}),
            {"delete": {"_id": "recreated"}},
        )
        put(engine, tiny_loads.index, "a cat", "recreated", "added")

    def stop_and(act: Callable[[], None]) -> LoadReport:
        """A watch that is stopped right before the index changes, when it has seen its own writes."""
        control = LoadControl()

        def on_round(number: int) -> None:
            if number == 5:
                control.interrupt()
                act()

        return run_watch(tiny_loads.url, tiny_loads.encoder, tiny_loads.index, dead, control, on_round)

    report = stop_and(change)
    assert (report.indexed, report.left, report.lacking, report.stopped, report.exit_code) == (5, 0, 4, None, 1)
    assert report.notes == (
        "4 documents lack a current vector, which the next watch "
        f"computes, or `es-sbert ingest --index {tiny_loads.index} --vector embedding`",
    )
    assert not any("has its vector" in line for line in report.lines())
    again = tiny_loads.load()
    assert (again.indexed, again.skipped.empty) == (3, 1)

    # More changes than are read at the end.
    monkeypatch.setattr("es_sbert.ingest.backfill._LAST_WRITES", 2)
    report = stop_and(lambda: put(engine, tiny_loads.index, "a storm", "changed", "priced", "added"))
    assert (report.lacking, report.exit_code) == (3, 1)
    assert report.stopped is not None
    assert report.stopped.startswith("interrupted before all of the latest changes were compared with their vectors")
    assert not any("has its vector" in line for line in report.lines())


@pytest.mark.parametrize("is_before", [True, False])
def test_watch_counts_a_document_that_changes_during_its_last_bulk_request(
    engine: Engine, tiny_loads: Loads, *, is_before: bool
) -> None:
    """Before it, the document is left for the next run; after it, its vector is of the earlier text."""
    control = LoadControl()

    def change_and_stop(exchange: Exchange) -> tuple[int, bytes]:
        if "/_bulk" not in exchange.path:
            return exchange.forward()
        result = None if is_before else exchange.forward()
        send(engine, tiny_loads.index, {"update": {"_id": "x"}}, {"doc": {"text": "a dog"}})
        control.interrupt()
        return result or exchange.forward()

    def add(number: int) -> None:
        if number == 3:
            put(engine, tiny_loads.index, "a man", "x", "y")
            proxy.always = change_and_stop

    with FaultyProxy(tiny_loads.url, paths="") as proxy:
        engine.create_index(tiny_loads.index, {})
        report = run_watch(proxy.url, tiny_loads.encoder, tiny_loads.index, tiny_loads.dead, control, add)
    assert report.lacking == 1
    assert tiny_loads.load().indexed == 1


def test_watch_that_is_stopped_in_a_retry_counts_its_documents_and_those_after_it(
    es9_url: str, fresh_index: Callable[[str], str], tiny: Encoder, tmp_path: Path
) -> None:
    """With two vector fields: while the engine is too busy, right after other writes, and while it is unreachable."""
    index, dead = fresh_index(es9_url), tmp_path / "dead"
    fields: dict[str, Any] = {"vectors": ("one={text}", "two=About {text}")}

    def run(control: LoadControl, on_round: Callable[[int], None]) -> LoadReport:
        return run_watch(proxy.url, tiny, index, dead, control, on_round, **fields)

    with open_engine(es9_url) as engine, FaultyProxy(es9_url, paths="") as proxy:
        engine.create_index(index, {"mappings": {"properties": {"text": {"type": "text"}}}})

        def put_first(number: int) -> None:
            if number == 1:
                put(engine, index, "a man", "a", "b", "c")

        busy = LoadControl()

        def refuse_and_stop(exchange: Exchange) -> tuple[int, bytes]:
            if "/_bulk" not in exchange.path:
                return exchange.forward()
            busy.interrupt()
            return answer(429)(exchange)

        proxy.always = refuse_and_stop
        report = run(busy, put_first)
        assert (report.read, report.left, report.lacking, report.dead, report.exit_code) == (3, 3, 3, 0, 1)
        assert report.stopped is None
        [note] = report.notes
        assert f"`es-sbert ingest --index {index} --vector one --vector two`" in note

        proxy.always, control = None, LoadControl()

        def put_and_stop(number: int) -> None:
            if number == 5:
                control.interrupt()
                put(engine, index, "a cat", "d", "e")

        report = run(control, put_and_stop)
        assert (report.indexed, report.left, report.lacking, report.exit_code) == (3, 0, 2, 1)

        gone = LoadControl()

        def stop_and_cut(exchange: Exchange) -> tuple[int, bytes]:
            gone.interrupt()
            return cut_before(exchange)

        def lose_the_engine(number: int) -> None:
            if number == 3:
                proxy.always = stop_and_cut

        report = run(gone, lose_the_engine)
        assert (report.indexed, report.lacking, report.exit_code) == (2, None, 1)
        assert report.stopped is not None
        assert report.stopped.startswith("reading the index failed: ")
        assert not any("has its vector" in line for line in report.lines())


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
    documents = [{"text": "A dear one.", "price": 20.0}, {"text": "A cheap one.", "price": 2.0}]

    def put(*keys: str) -> None:
        for key, document in zip(keys, documents, strict=True):
            send(engine, loads.index, {"index": {"_id": key}}, document)

    def embedded() -> set[str]:
        return {key for key, source in loads.contents().items() if source.get("embedding")}

    put("dear", "cheap")
    with watching(loads.url, loads.encoder, alias, loads.dead) as (done, _):
        until(lambda: "cheap" in embedded(), done)
        put("dear, too", "cheap, too")
        # It was written last: whoever looks at it has looked at the other one.
        until(lambda: "cheap, too" in embedded(), done)
        send(engine, loads.index, {"update": {"_id": "dear"}}, {"doc": {"price": 1.0}})
        until(lambda: "dear" in embedded(), done)
        assert embedded() == {"cheap", "cheap, too", "dear"}


def test_watch_ends_when_index_is_deleted(
    es9_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    index = fresh_index(es9_url)
    load(es9_url, encoder, index, write_jsonl(tmp_path / "docs.jsonl", sentences(2)), dead=tmp_path / "dead")
    with open_engine(es9_url) as engine, watching(es9_url, encoder, index, tmp_path / "dead") as (done, _):
        ask(engine, "DELETE", f"/{index}")
        deadline = time.monotonic() + PATIENCE
        while not done and time.monotonic() < deadline:
            time.sleep(0.05)
    [error] = done
    assert isinstance(error, IndexMissing | VectorIndexError)


def test_watch_ends_when_alias_moves(
    es9_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path
) -> None:
    """Both indices have seen as many writes: their numbers tell nothing."""
    one, two = fresh_index(es9_url), fresh_index(es9_url)
    alias = f"{one}-alias"
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(2))
    for index in (one, two):
        load(es9_url, encoder, index, path, dead=tmp_path / "dead")
    with open_engine(es9_url) as engine:
        engine.update_aliases([{"add": {"index": one, "alias": alias}}])
        with watching(es9_url, encoder, alias, tmp_path / "dead") as (done, _):
            engine.update_aliases([{"remove": {"index": one, "alias": alias}}, {"add": {"index": two, "alias": alias}}])
            deadline = time.monotonic() + PATIENCE
            while not done and time.monotonic() < deadline:
                time.sleep(0.05)
    [error] = done
    assert isinstance(error, IndexMismatch)
    assert (
        error.message == f"{alias} pointed to {one} when the load began, and points to {two} now, as after a migration"
    )
    assert f"es-sbert index show {alias}" in error.remedy


def test_watch_rejects_files(es9_url: str, fresh_index: Callable[[str], str], encoder: Encoder, tmp_path: Path) -> None:
    docs = write_jsonl(tmp_path / "docs.jsonl", sentences(2))
    with pytest.raises(UsageError, match="`watch_seconds` cannot be combined with sources"):
        load(es9_url, encoder, fresh_index(es9_url), docs, dead=tmp_path / "dead", watch_seconds=1.0)
