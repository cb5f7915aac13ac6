"""Concurrent changes of `_meta.es_sbert` of every kind: none is lost, and a killed command is completed by the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from es_sbert.analysis.field_writer import FieldWriter, written_fields
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import RetryPolicy, without_retries
from es_sbert.errors import IndexMismatch, IndexMissing
from es_sbert.index import index_meta
from es_sbert.index.adopt import put_adopted_field, read_adoptable_field
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import vector_fields, with_meta_entry
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.migration.migration_state import (
    MigrationState,
    MigrationStateStore,
    read_migration_state,
    read_target_pointer,
    set_target_pointer,
)
from tests.engine.vectors import state_of
from tests.raised import raises, raises_as_recorded

pytestmark = pytest.mark.one_engine

FINGERPRINT = "a" * 32
MIGRATION = MigrationState(alias="docs", source="docs-1", source_uuid="u", fields=("embedding",), run="r", copied=(-1,))


def request(name: str, **changed: Any) -> FieldRequest:
    return FieldRequest(name=name, fingerprint=FINGERPRINT, model_name="m", dimensions=4, **changed)


class Change(NamedTuple):
    """One of the kinds of changes that es-sbert makes to `_meta`; both functions get a name that no other has."""

    run: Callable[[Engine, str, str], object]
    check: Callable[[Engine, str, str], None]


def write_field(engine: Engine, index: str, name: str) -> None:
    FieldWriter(engine, index, "embedding", name, policy=RetryPolicy(0)).write([])


def check_written_field(engine: Engine, index: str, name: str) -> None:
    state = state_of(engine, index)
    assert name in written_fields(state)
    assert state.mappings["properties"][name] == {"type": "keyword"}


def check_field(engine: Engine, index: str, name: str) -> None:
    assert vector_fields(state_of(engine, index).mappings, index)[name].fingerprint == FINGERPRINT


def check_text(engine: Engine, index: str, name: str) -> None:
    assert vector_fields(state_of(engine, index).mappings, index)["embedding"].text == "{title}"


def adopt(engine: Engine, index: str, name: str) -> None:
    adoptable = read_adoptable_field(engine, index, "plain", TextTemplate.parse("{title}"))
    put_adopted_field(engine, adoptable, adoptable.meta(FINGERPRINT, "m", 4))


def check_pointer(engine: Engine, index: str, name: str) -> None:
    assert read_target_pointer(state_of(engine, index)) == "docs-2"


def check_migration(engine: Engine, index: str, name: str) -> None:
    stored = read_migration_state(state_of(engine, index))
    assert stored is not None
    assert stored.run == MIGRATION.run


def start_migration(engine: Engine, index: str, name: str) -> None:
    MigrationStateStore(engine, state_of(engine, index), MIGRATION, without_retries).write(run=MIGRATION.run)


CHANGES = {
    "written field": Change(write_field, check_written_field),
    "field added": Change(lambda engine, index, name: ensure_vector_field(engine, index, request(name)), check_field),
    "text set": Change(
        lambda engine, index, name: ensure_vector_field(engine, index, request("embedding", text="{title}")), check_text
    ),
    "field adopted": Change(adopt, lambda engine, index, name: check_field(engine, index, "plain")),
    "pointer": Change(
        lambda engine, index, name: set_target_pointer(engine, state_of(engine, index), "docs-2"), check_pointer
    ),
    "migration": Change(start_migration, check_migration),
}
# What erases other changes on OpenSearch; on Elasticsearch, every kind does.
OPENSEARCH_ERASERS = {"written field"}


@dataclass
class Place:
    """An index with a vector field, one of another program, and a `_meta` of a user."""

    engine: Engine
    index: str
    initial_meta: Json
    numbers: Iterator[int]

    def reset(self) -> None:
        """As at the beginning, but for fields, which cannot be removed."""
        self.engine.put_mapping(self.index, {"_meta": self.initial_meta})

    def new_name(self) -> str:
        """Of a field that is not there yet."""
        return f"f{next(self.numbers)}"

    @property
    def erasers(self) -> list[str]:
        is_elasticsearch = self.engine.info.engine_type is EngineType.ELASTICSEARCH
        return [kind for kind in CHANGES if is_elasticsearch or kind in OPENSEARCH_ERASERS]


@pytest.fixture
def place(engine: Engine, fresh_index: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(index_meta, "_MAX_PAUSE_SECONDS", 0.0)
    index = fresh_index(engine.info.url)
    ensure_vector_field(engine, index, request("embedding"), shards=1, replicas=0)
    state = state_of(engine, index)
    meta = state.mappings["_meta"] | {"owner": {"team": "search"}}
    meta["es_sbert"] = meta["es_sbert"] | {"later": {"version": 2}}
    engine.put_mapping(index, {"_meta": meta, "properties": {"plain": state.mappings["properties"]["embedding"]}})
    return Place(engine, index, meta, iter(range(1000)))


class Intercepted:
    """An engine whose first change of a mapping is made by a function of the test.

    Args:
        put: Gets the change, which it has to make.
    """

    def __init__(self, engine: Engine, put: Callable[[Callable[[], None]], None]) -> None:
        self._engine, self._put, self.puts = engine, put, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def put_mapping(self, name: str, body: Json) -> None:
        self.puts += 1
        if self.puts == 1:
            self._put(lambda: self._engine.put_mapping(name, body))
        else:
            self._engine.put_mapping(name, body)


@pytest.mark.parametrize("erased", CHANGES)
def test_change_that_another_machine_erases_is_made_again(
    place: Place, erased: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for eraser in place.erasers:
        first, second = CHANGES[erased], CHANGES[eraser]
        place.reset()
        names = place.new_name(), place.new_name()

        def put_inside(put_first: Callable[[], None], second: Change = second, name: str = names[1]) -> None:
            """The other machine has read the mapping before this change, and writes after it."""

            def put_both(put_second: Callable[[], None]) -> None:
                put_first()
                put_second()

            with monkeypatch.context() as patch:
                patch.setenv("ES_SBERT_CACHE", str(tmp_path / "of-the-other-machine"))
                other = Intercepted(place.engine, put_both)
                second.run(other, place.index, name)  # type: ignore[arg-type]
                assert other.puts >= 1

        one = Intercepted(place.engine, put_inside)
        first.run(one, place.index, names[0])  # type: ignore[arg-type]
        assert one.puts >= 1
        meta = state_of(place.engine, place.index).mappings["_meta"]
        assert meta["owner"] == {"team": "search"}, eraser
        assert meta["es_sbert"]["later"] == {"version": 2}, eraser
        first.check(place.engine, place.index, names[0])
        second.check(place.engine, place.index, names[1])


@pytest.mark.parametrize("kind", CHANGES)
def test_processes_of_one_machine_change_the_mapping_one_after_the_other(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path))
    place.reset()
    change, names = CHANGES[kind], (place.new_name(), place.new_name())
    later = Intercepted(place.engine, lambda put: put())
    thread = threading.Thread(target=write_field, args=(later, place.index, names[1]))

    def put_inside(put: Callable[[], None]) -> None:
        thread.start()
        thread.join(0.2)  # without a lock it writes now
        put()

    one = Intercepted(place.engine, put_inside)
    change.run(one, place.index, names[0])  # type: ignore[arg-type]
    thread.join()
    change.check(place.engine, place.index, names[0])
    check_written_field(place.engine, place.index, names[1])
    assert later.puts == 1  # nobody had erased it


class Killed(BaseException):
    """The process ends here."""


class Dying:
    """An engine whose process is killed at one of the requests that change the index.

    Args:
        steps: Requests before that.
        is_answered: Whether the engine still executes the request.
    """

    def __init__(self, engine: Engine, steps: int, *, is_answered: bool) -> None:
        self._engine, self._steps, self._is_answered = engine, steps, is_answered

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._engine, name)
        if name not in ("put_mapping", "put_settings"):
            return method

        def call(*arguments: Any) -> Any:
            self._steps -= 1
            if self._steps >= 0:
                return method(*arguments)
            if self._is_answered:
                method(*arguments)
            raise Killed

        return call


@pytest.mark.parametrize("kind", CHANGES)
def test_same_command_completes_a_killed_one(place: Place, kind: str) -> None:
    change = CHANGES[kind]
    for steps in range(3):
        for is_answered in (False, True):
            place.reset()
            name = place.new_name()
            with suppress(Killed):
                change.run(Dying(place.engine, steps, is_answered=is_answered), place.index, name)  # type: ignore[arg-type]
            change.run(place.engine, place.index, name)
            change.check(place.engine, place.index, name)
            assert state_of(place.engine, place.index).mappings["_meta"]["owner"] == {"team": "search"}


def add_entry(state: IndexState) -> Json | None:
    meta = state.mappings["_meta"]
    return None if "new" in meta["es_sbert"] else {"_meta": with_meta_entry(meta, "new", 1)}


def test_program_that_keeps_replacing_meta_is_reported(place: Place) -> None:
    class Replacing(Intercepted):
        def put_mapping(self, name: str, body: Json) -> None:
            super().put_mapping(name, body)
            place.engine.put_mapping(name, {"_meta": place.initial_meta})

    with raises_as_recorded(IndexMismatch):
        update_mapping(Replacing(place.engine, lambda put: put()), state_of(place.engine, place.index), add_entry)  # type: ignore[arg-type]


def test_deleted_or_replaced_index_is_reported(place: Place) -> None:
    state = state_of(place.engine, place.index)
    place.engine.delete_index(place.index)
    with pytest.raises(IndexMissing):
        update_mapping(place.engine, state, add_entry)
    place.engine.create_index(place.index, {})
    with raises_as_recorded(IndexMismatch):
        update_mapping(place.engine, state, add_entry)


def test_fields_of_two_models_are_not_mixed(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that adds a field while another adds it for another model is refused, and erases nothing."""
    place.reset()
    name = place.new_name()
    other = FieldRequest(name=name, fingerprint="b" * 32, model_name="other", dimensions=4)

    def put_inside(put: Callable[[], None]) -> None:
        put()
        with monkeypatch.context() as patch:
            patch.setenv("ES_SBERT_CACHE", str(tmp_path))
            with raises(IndexMismatch, "model", "other"):
                ensure_vector_field(place.engine, place.index, other)

    ensure_vector_field(Intercepted(place.engine, put_inside), place.index, request(name))  # type: ignore[arg-type]
    check_field(place.engine, place.index, name)
    adoptable = read_adoptable_field(place.engine, place.index, "plain", TextTemplate.parse("{title}"))
    adopt(place.engine, place.index, name)
    with raises(IndexMismatch, "model"):
        put_adopted_field(place.engine, adoptable, adoptable.meta("b" * 32, "other", 4))
