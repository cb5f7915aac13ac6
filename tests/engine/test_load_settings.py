"""Refreshes and replicas are off during a load, and back afterwards, whatever becomes of the load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch, OutputError
from es_sbert.index.load_settings import (
    BULK_LOAD_SETTINGS,
    apply_load_settings,
    restore_load_settings,
    unrestored_settings,
)
from es_sbert.ingest.ingest_settings import BulkLoadSettings
from tests.engine.ingest_support import Interposed, contents, load, sentences, write_jsonl
from tests.faulty_proxy import FaultyProxy

pytestmark = pytest.mark.one_engine

REFRESH, REPLICAS = BULK_LOAD_SETTINGS
COUNT = 60


def settings_of(engine: Engine, index: str) -> tuple[str | None, str | None]:
    """(refresh interval, replicas), None for what is not set."""
    state = engine.get_index(index)
    assert state is not None
    return state.settings.get(REFRESH), state.settings.get(REPLICAS)


class Looking(Interposed):
    """The encoder, which notes the settings whenever it embeds: the load is under way then, for certain."""

    def __init__(self, encoder: Encoder, engine: Engine, index: str) -> None:
        self.seen: set[tuple[str | None, str | None]] = set()
        super().__init__(encoder, lambda window: self.seen.add(settings_of(engine, index)))


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", sentences(COUNT))


def test_new_index_has_no_refresh_or_replicas_during_load(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, docs: Path, tmp_path: Path
) -> None:
    looking = Looking(encoder, engine, index_name)
    summary = load(engine_url, looking, index_name, docs, dead=tmp_path / "dead", id_field="id")
    assert (summary.indexed, summary.notes) == (COUNT, ())
    assert looking.seen == {("-1", "0")}
    assert settings_of(engine, index_name) == (None, "1")
    state = engine.get_index(index_name)
    assert state is not None
    assert unrestored_settings(state) is None
    assert set(state.mappings["_meta"]["es_sbert"]) == {"fields"}


@pytest.mark.parametrize(
    ("wanted", "during"), [(BulkLoadSettings.AUTO, ("5s", "2")), (BulkLoadSettings.FAST, ("-1", "0"))]
)
def test_existing_index_settings_change_only_on_request(
    engine: Engine,
    engine_url: str,
    index_name: str,
    encoder: Encoder,
    docs: Path,
    tmp_path: Path,
    wanted: BulkLoadSettings,
    during: tuple[str, str],
) -> None:
    engine.create_index(index_name, {"settings": {REFRESH: "5s", REPLICAS: "2"}})
    looking = Looking(encoder, engine, index_name)
    load(engine_url, looking, index_name, docs, dead=tmp_path / "dead", id_field="id", load_settings=wanted)
    assert looking.seen == {during}
    assert settings_of(engine, index_name) == ("5s", "2")


def test_next_load_restores_settings_of_killed_load(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, docs: Path, tmp_path: Path
) -> None:
    engine.create_index(index_name, {"settings": {REPLICAS: "2"}, "mappings": {"_meta": {"owner": "somebody"}}})
    state = engine.get_index(index_name)
    assert state is not None
    apply_load_settings(engine, state)
    changed = engine.get_index(index_name)
    assert changed is not None
    apply_load_settings(engine, changed)  # a second load does not take these settings for the index's own
    assert settings_of(engine, index_name) == ("-1", "0")
    write_jsonl(docs, [])
    load(engine_url, encoder, index_name, docs, dead=tmp_path / "dead", index_type="flat")
    assert settings_of(engine, index_name) == (None, "2")
    state = engine.get_index(index_name)
    assert state is not None
    assert state.mappings["_meta"]["owner"] == "somebody"


def test_settings_changed_by_others_are_kept(engine: Engine, index_name: str) -> None:
    engine.create_index(index_name, {})
    state = engine.get_index(index_name)
    assert state is not None
    apply_load_settings(engine, state)
    engine.put_settings(index_name, {REPLICAS: "3"})
    assert restore_load_settings(engine, index_name) == {REFRESH: None}
    assert settings_of(engine, index_name) == (None, "3")
    assert restore_load_settings(engine, index_name) == {}


def test_settings_are_restored_after_the_alias_has_moved(
    engine: Engine, engine_url: str, fresh_index: Callable[[str], str], encoder: Encoder, docs: Path, tmp_path: Path
) -> None:
    loaded, other = fresh_index(engine_url), fresh_index(engine_url)
    for index in (loaded, other):
        engine.create_index(index, {"settings": {REFRESH: "5s", REPLICAS: "2"}})
    alias = f"{loaded}-alias"
    engine.update_aliases([{"add": {"index": loaded, "alias": alias}}])

    seen = []

    def move(window: int) -> None:
        seen.append(settings_of(engine, loaded))
        if window == 0:
            place = {"alias": alias}
            engine.update_aliases([{"remove": {"index": loaded} | place}, {"add": {"index": other} | place}])

    moving = Interposed(encoder, move)
    with pytest.raises(IndexMismatch, match=f"points to {other} now, as after a migration"):
        load(engine_url, moving, alias, docs, dead=tmp_path / "d", id_field="id", load_settings=BulkLoadSettings.FAST)
    assert set(seen) == {("-1", "0")}
    assert settings_of(engine, loaded) == settings_of(engine, other) == ("5s", "2")


def test_failed_load_restores_settings(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, docs: Path, tmp_path: Path
) -> None:
    dead = tmp_path / "dead"
    dead.symlink_to("/dev/full")
    docs.write_bytes(docs.read_bytes() + b"broken\n")
    with pytest.raises(OutputError):
        load(engine_url, encoder, index_name, docs, dead=dead, id_field="id")
    assert settings_of(engine, index_name) == (None, "1")


def test_unreachable_engine_leaves_restore_to_next_load(
    engine: Engine, engine_url: str, index_name: str, encoder: Encoder, docs: Path, tmp_path: Path
) -> None:
    with FaultyProxy(engine_url) as proxy:

        def last(exchange: object) -> tuple[int, bytes]:
            proxy.down.set()
            return exchange.forward()  # type: ignore[attr-defined, no-any-return]

        proxy.faults = [last]
        summary = load(
            proxy.url,
            encoder,
            index_name,
            docs,
            dead=tmp_path / "dead",
            id_field="id",
            batch_window=8,
            bulk_bytes=20_000,
            retry_seconds=0.3,
        )
    assert summary.left > 0
    assert f"es-sbert index repair {index_name}" in summary.notes[0]
    assert settings_of(engine, index_name) == ("-1", "0")
    again = load(engine_url, encoder, index_name, docs, dead=tmp_path / "dead", id_field="id")
    assert (again.resumed, again.notes) == (True, ())
    assert settings_of(engine, index_name) == (None, "1")
    assert len(contents(engine_url, index_name)) == COUNT
