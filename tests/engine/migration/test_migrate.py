"""An index moved to another model behind its alias, on real engines: compared document by document."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, EngineError, IndexMismatch, IndexMissing, UsageError
from es_sbert.index.mapping import index_body, with_meta_entry
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.migration.alias_swap import cancel_migration
from es_sbert.migration.migration_state import migration_lock, read_target_pointer
from es_sbert.migration.prepare_migration import new_index_name
from tests.conftest import on_every_version
from tests.engine.ingest_support import Interposed, ask, open_engine
from tests.engine.migration.support import COUNT, Encoders, Overheard, Place, everything, interrupted, migrate_as
from tests.engine.vectors import field_of, state_of
from tests.raised import raises, raises_as_recorded

pytestmark = pytest.mark.one_engine


@on_every_version
def test_alias_moves_to_equal_index_with_new_vectors(place: Place, encoders: Encoders) -> None:
    second, engine = encoders[1], place.engine
    before = place.contents(place.index)
    result = place.migrate(second)
    assert (result.finished, result.copied, result.embedded, result.dead) == (True, COUNT, COUNT, 0)
    assert result.compared == 50
    assert place.alias_target() == result.target == f"{place.alias}-{second.info.fingerprint[:8]}"
    place.assert_holds(everything(), second)

    # The old index is unchanged, and kept until the user deletes it.
    assert place.contents(place.index) == before
    assert engine.get_aliases(place.index)[place.index] == {}
    assert result.kept == [place.index]
    with raises_as_recorded(IndexMismatch):
        place.migrate(second)
    with raises_as_recorded(IndexMismatch):
        place.migrate(encoders[0], name=place.index)
    assert place.migrate(encoders[0]).kept == [result.target]
    engine.delete_index(result.target)
    engine.delete_index(place.index)
    assert place.migrate(second).kept == [f"{place.alias}-{encoders[0].info.fingerprint[:8]}"]


def test_stopped_migration_resumes_or_is_cancelled(place: Place, encoders: Encoders) -> None:
    control = interrupted()
    stopped = place.migrate(encoders[1], control=control)
    assert (stopped.finished, stopped.exit_code, place.alias_target()) == (False, 130, place.index)
    with raises_as_recorded(IndexMismatch):
        place.migrate(encoders[1], name=f"{place.alias}-other")

    used = {"index": stopped.target, "alias": f"{place.alias}-used"}
    place.engine.update_aliases([{"add": used}])
    with raises_as_recorded(IndexMismatch):
        cancel_migration(place.alias, place.engine)
    place.engine.update_aliases([{"remove": used}])
    assert cancel_migration(place.alias, place.engine) == (place.index, stopped.target)
    assert place.engine.get_index(stopped.target) is None
    assert read_target_pointer(state_of(place.engine, place.index)) is None
    with raises_as_recorded(IndexMismatch):
        cancel_migration(place.alias, place.engine)
    place.assert_holds(everything(), encoders[0])

    assert not place.migrate(encoders[1], control=control).finished
    # A program on another machine has replaced `_meta`.
    meta = state_of(place.engine, place.index).mappings["_meta"]
    place.engine.put_mapping(place.index, {"_meta": with_meta_entry(meta, "migrating_to", None)})
    finished = place.migrate(encoders[1])
    assert (finished.resumed, finished.finished, finished.target) == (True, True, stopped.target)
    place.assert_holds(everything(), encoders[1])
    with raises_as_recorded(IndexMismatch):
        place.migrate(encoders[1])


@pytest.mark.parametrize(
    ("step", "times"), [("bulk", 1), ("mget", 6), ("search", 2), ("shard_states", 19), ("refresh", 16), ("count", 10)]
)
def test_migration_interrupted_at_any_step_does_not_swap_and_resumes(
    step: str, times: int, place9: Place, encoders: Encoders
) -> None:
    control, calls = LoadControl(), []

    def interrupt(name: str) -> None:
        calls.append(name)
        if calls.count(step) == times:
            control.interrupt()

    stopped = migrate_as(place9, Overheard(place9.engine, interrupt), encoders[1], control=control)
    assert (stopped.finished, stopped.exit_code, place9.alias_target()) == (False, 130, place9.index)
    assert place9.migrate(encoders[1]).resumed
    place9.assert_holds(everything(), encoders[1])


@pytest.mark.parametrize("cancels", [False, True])
def test_migration_that_another_machine_takes_over_or_cancels_ends(
    cancels: bool, place9: Place, encoders: Encoders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, calls = place9.engine, list[str]()

    def interfere(name: str) -> None:
        calls.append(name)
        if name == "get_index" and "bulk" in calls:
            calls.clear()
            monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path))  # that of the other machine
            if cancels:
                cancel_migration(place9.alias, engine)
            else:
                migrate_as(place9, engine, encoders[1], control=interrupted())

    with raises_as_recorded(IndexMismatch):
        migrate_as(place9, Overheard(engine, interfere), encoders[1])
    assert place9.alias_target() == place9.index


def test_engine_that_refuses_vectors_is_an_error_and_no_interrupt(place9: Place, encoders: Encoders) -> None:
    embedding = threading.Event()

    def refuse(name: str) -> None:
        if name == "bulk" and embedding.is_set():
            raise AccessDenied("bulk is refused by the test", "Grant it.")

    interposed: Any = Interposed(encoders[1], lambda window: embedding.set())
    with raises_as_recorded(EngineError):
        migrate_as(place9, Overheard(place9.engine, refuse), interposed)
    assert place9.alias_target() == place9.index
    assert place9.migrate(encoders[1]).resumed
    place9.assert_holds(everything(), encoders[1])


def test_replace_index_turns_index_into_alias(place: Place, encoders: Encoders) -> None:
    engine = place.engine
    engine.update_aliases([{"remove": {"index": place.index, "alias": place.alias}}])
    engine.put_settings(place.index, {"index.hidden": "true"})
    alias, place.alias = place.alias, place.index
    with raises_as_recorded(UsageError):
        place.migrate(encoders[1])
    result = place.migrate(encoders[1], replace_index=True)
    assert (result.finished, result.dropped) == (True, True)
    assert place.alias_target() == result.target != place.index
    place.assert_holds(everything(), encoders[1])
    # A pattern finds neither the hidden index nor the alias in its place.
    assert engine.resolve_indices(f"{place.index}*") == []
    with raises(UsageError, "replace_index"):
        place.migrate(encoders[0], replace_index=True)
    engine.update_aliases([{"add": {"index": result.target, "alias": alias}}])
    place.alias = alias


def test_unembeddable_documents_are_copied_and_reported(place: Place, encoders: Encoders) -> None:
    place.write({"bad": {"text": ["a string", 7], "number": 1}, "empty": {"text": "", "number": 2}})
    result = place.migrate(encoders[1])
    assert (result.finished, result.dead, result.exit_code) == (True, 1, 1)
    assert "bad" in place.dead.read_text()
    found = place.contents()
    assert found["bad"]["text"] == ["a string", 7]
    assert "embedding" not in found["bad"]
    assert len(found) == COUNT + 2


def test_tampered_target_index_is_not_swapped(place: Place, encoders: Encoders) -> None:
    target = new_index_name(place.alias, encoders[1].info.fingerprint, place.index)

    class Spoiling(Overheard):
        def count(self, name: str, query: Json | None = None) -> int:
            if name == target:
                doc = {"embedding": [1.0] * 15 + [-1.0]}
                lines = [{"update": {"_id": str(number)}} for number in range(COUNT) if number % 10 != 7]
                body = b"".join(orjson.dumps(line) + b"\n" for head in lines for line in (head, {"doc": doc}))
                assert all(result.ok for result in self._engine.bulk(target, body))
                self._engine.refresh(target)
            return self._engine.count(name, query)

    with raises_as_recorded(IndexMismatch):
        migrate_as(place, Spoiling(place.engine), encoders[1])
    assert place.alias_target() == place.index


@pytest.mark.parametrize("step", ["open_point_in_time", "block_writes"])  # before the comparison, and before the swap
def test_target_that_has_lost_documents_is_not_swapped(step: str, place9: Place, encoders: Encoders) -> None:
    engine = place9.engine
    target = new_index_name(place9.alias, encoders[1].info.fingerprint, place9.index)

    def lose(name: str) -> None:
        if name == step and engine.get_index(target) is not None:
            engine.bulk(target, b'{"delete":{"_id":"1"}}\n{"delete":{"_id":"2"}}\n')

    with raises_as_recorded(IndexMismatch):
        migrate_as(place9, Overheard(engine, lose), encoders[1])
    assert place9.alias_target() == place9.index


def test_invalid_migrations_are_refused_without_changes(place9: Place, encoders: Encoders) -> None:
    place, engine, second = place9, place9.engine, encoders[1]
    before = engine.get_index(place.index)
    alias, place.alias = place.alias, "test-no-such-alias"
    with pytest.raises(IndexMissing):
        place.migrate(second)
    place.alias = alias
    with raises_as_recorded(IndexMismatch):
        place.migrate(encoders[0])
    with raises(UsageError, "index_type", "bbq_hnsw"):
        place.migrate(second, index_type="bbq_hnsw")
    with migration_lock(engine.info.url, place.alias), raises_as_recorded(UsageError):
        place.migrate(second)
    assert engine.get_index(place.index) == before


def test_data_stream_is_refused_before_copying(
    opensearch_url: str, fresh_index: Callable[[str], str], encoders: Encoders, tmp_path: Path
) -> None:
    stream = fresh_index(opensearch_url)
    with open_engine(opensearch_url) as engine:
        body = index_body(engine.info.engine_type, "embedding", field_of(encoders[0].info))
        template = {"index_patterns": [stream], "data_stream": {}, "priority": 500, "template": body}
        ask(engine, "PUT", f"/_index_template/{stream}", body=template)
        try:
            ask(engine, "PUT", f"/_data_stream/{stream}")
            with raises_as_recorded(IndexMismatch):
                Place(engine, stream, "", tmp_path / "dead.jsonl").migrate(encoders[1])
        finally:
            ask(engine, "DELETE", f"/_data_stream/{stream}")
            ask(engine, "DELETE", f"/_index_template/{stream}")
