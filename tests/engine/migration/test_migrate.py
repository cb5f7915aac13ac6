"""An index moved to another model behind its alias, on real engines: compared document by document."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied, EngineError, IndexMismatch, IndexMissing, UsageError
from es_sbert.index.mapping import merge_field_meta, vector_fields, with_meta_entry
from es_sbert.index.vector_field import read_vector_field
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.migration.alias_swap import cancel_migration
from es_sbert.migration.migration_state import MigrationPhase, read_migration_state, read_target_pointer
from es_sbert.migration.prepare_migration import new_index_name
from tests.conftest import on_every_version
from tests.engine.ingest_support import Interposed
from tests.engine.migration.support import COUNT, Overheard, Place, everything
from tests.engine.vectors import state_of

pytestmark = pytest.mark.one_engine


@on_every_version
def test_alias_moves_to_equal_index_with_new_vectors(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    second, engine = encoders[1], place.engine
    engine.update_aliases(
        [{"add": {"index": place.index, "alias": f"{place.alias}-read", "filter": {"term": {"tags": "t1"}}}}]
    )
    before = place.contents(place.index)
    result = place.migrate(second)
    assert (result.finished, result.copied, result.embedded, result.dead) == (True, COUNT, COUNT, 0)
    assert result.compared == 50
    assert place.behind() == result.target == f"{place.alias}-{second.info.fingerprint[:8]}"
    place.assert_holds(everything(), second)

    new, old = state_of(engine, result.target), state_of(engine, place.index)
    assert read_vector_field(engine, place.alias, "embedding").meta.text == "{text}"
    for setting in ("index.number_of_shards", "index.number_of_replicas", "index.refresh_interval", "index.gc_deletes"):
        assert new.settings.get(setting) == old.settings.get(setting), setting
    untouched = {"theirs", "number", "text", "version"}
    assert {name: new.mappings["properties"][name] for name in untouched} == {
        name: old.mappings["properties"][name] for name in untouched
    }
    aliases = engine.get_aliases(result.target)[result.target]
    assert aliases[place.alias]["is_write_index"] is True
    assert aliases[f"{place.alias}-read"]["filter"] == {"term": {"tags": "t1"}}

    # The old index is unchanged, and kept until the user deletes it.
    assert place.contents(place.index) == before
    assert engine.get_aliases(place.index)[place.index] == {}
    assert result.kept == [place.index]
    with pytest.raises(IndexMismatch, match="already") as caught:
        place.migrate(second)
    assert f"`DELETE /{place.index}`" in caught.value.remedy
    with pytest.raises(IndexMismatch, match="already exists") as caught:
        place.migrate(encoders[0], name=place.index)
    assert f"`DELETE /{place.index}`" in caught.value.remedy
    assert place.migrate(encoders[0]).kept == [result.target]
    engine.delete_index(result.target)
    engine.delete_index(place.index)
    assert place.migrate(second).kept == [f"{place.alias}-{encoders[0].info.fingerprint[:8]}"]


def test_stopped_migration_resumes_or_is_cancelled(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    control = LoadControl()
    control.interrupt()
    stopped = place.migrate(encoders[1], control=control)
    assert (stopped.finished, stopped.exit_code, place.behind()) == (False, 130, place.index)
    state = state_of(place.engine, stopped.target)
    note = read_migration_state(state)
    assert note is not None
    assert note.phase is MigrationPhase.COPYING
    with pytest.raises(IndexMismatch, match="is being migrated to .* already"):
        place.migrate(encoders[1], name=f"{place.alias}-other")

    assert cancel_migration(place.engine, place.alias) == (place.index, stopped.target)
    assert place.engine.get_index(stopped.target) is None
    old = state_of(place.engine, place.index)
    assert read_target_pointer(old) is None
    with pytest.raises(IndexMismatch, match="no migration of"):
        cancel_migration(place.engine, place.alias)
    place.assert_holds(everything(), encoders[0])

    again = place.migrate(encoders[1], control=control)
    assert not again.finished
    finished = place.migrate(encoders[1])
    assert (finished.resumed, finished.finished) == (True, True)
    place.assert_holds(everything(), encoders[1])
    with pytest.raises(IndexMismatch, match="already"):
        place.migrate(encoders[1])


def test_engine_that_refuses_vectors_is_an_error_and_no_interrupt(
    place9: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    place, engine, embedding = place9, place9.engine, threading.Event()

    def refuse(name: str) -> None:
        if name == "bulk" and embedding.is_set():
            raise AccessDenied("bulk is refused by the test", "Grant it.")

    place.engine = Overheard(engine, refuse)  # type: ignore[assignment]
    refused = Interposed(encoders[1], lambda window: embedding.set())
    with pytest.raises(EngineError, match=r"bulk is refused by the test \(Grant it\)") as caught:
        place.migrate(refused)  # type: ignore[arg-type]
    assert "same command again" in caught.value.remedy
    place.engine = engine
    assert place.behind() == place.index
    assert place.migrate(encoders[1]).resumed
    place.assert_holds(everything(), encoders[1])


def test_index_with_a_small_result_window_is_migrated_completely(
    place: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    place.engine.put_settings(place.index, {"index.max_result_window": "70"})
    result = place.migrate(encoders[1])
    assert result.finished
    place.engine.put_settings(result.target, {"index.max_result_window": None})
    place.assert_holds(everything(), encoders[1])


def test_replace_index_turns_index_into_alias(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine = place.engine
    engine.update_aliases([{"remove": {"index": place.index, "alias": place.alias}}])
    engine.put_settings(place.index, {"index.hidden": "true"})
    alias, place.alias = place.alias, place.index
    with pytest.raises(UsageError, match="is an index, not an alias") as caught:
        place.migrate(encoders[1])
    assert "`replace_index`" in caught.value.remedy
    result = place.migrate(encoders[1], replace_index=True)
    assert (result.finished, result.dropped) == (True, True)
    assert place.behind() == result.target != place.index
    place.assert_holds(everything(), encoders[1])
    # A pattern finds neither the hidden index nor the alias in its place.
    assert engine.resolve_indices(f"{place.index}*") == []
    with pytest.raises(UsageError, match="an alias already"):
        place.migrate(encoders[0], replace_index=True)
    engine.update_aliases([{"add": {"index": result.target, "alias": alias}}])
    place.alias = alias


def test_index_type_change_is_a_migration(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    result = place.migrate(encoders[0], index_type="int8_hnsw")
    assert result.finished
    assert read_vector_field(place.engine, place.alias, "embedding").meta.index_type == "int8_hnsw"
    place.assert_holds(everything(), encoders[0])
    back = place.migrate(encoders[0], index_type="hnsw")
    assert back.target == f"{result.target}-2"
    place.assert_holds(everything(), encoders[0])
    place.engine.delete_index(result.target)


def test_unembeddable_documents_are_copied_and_reported(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    place.write({"bad": {"text": ["a string", 7], "number": 1}, "empty": {"text": "", "number": 2}})
    result = place.migrate(encoders[1])
    assert (result.finished, result.dead, result.exit_code) == (True, 1, 1)
    assert "bad" in place.dead.read_text()
    found = place.contents()
    assert found["bad"]["text"] == ["a string", 7]
    assert "embedding" not in found["bad"]
    assert len(found) == COUNT + 2


def test_tampered_target_index_is_not_swapped(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine = place.engine
    target = new_index_name(place.alias, encoders[1].info.fingerprint, place.index)

    class Spoiling(Overheard):
        def count(self, name: str, query: Json | None = None) -> int:
            if name == target:
                vector = [1.0] * 15 + [-1.0]
                lines = [{"update": {"_id": str(number)}} for number in range(COUNT) if number % 10 != 7]
                body = b"".join(json_line(head) + json_line({"doc": {"embedding": vector}}) for head in lines)
                assert all(result.ok for result in self._engine.bulk(target, body))
                self._engine.refresh(target)
            return self._engine.count(name, query)

    place.engine = Spoiling(engine)  # type: ignore[assignment]
    with pytest.raises(IndexMismatch, match="is not the one that"):
        place.migrate(encoders[1])
    place.engine = engine
    assert place.behind() == place.index


def json_line(value: Json) -> bytes:
    return orjson.dumps(value) + b"\n"


def test_invalid_migrations_are_refused_without_changes(
    place9: Place, encoders: tuple[Encoder, Encoder], fresh_index: Callable[[str], str]
) -> None:
    place, engine, second = place9, place9.engine, encoders[1]
    before = engine.get_index(place.index)
    alias, place.alias = place.alias, "test-no-such-alias"
    with pytest.raises(IndexMissing):
        place.migrate(second)
    place.alias = alias
    with pytest.raises(IndexMismatch, match="already"):
        place.migrate(encoders[0])
    with pytest.raises(UsageError, match="does not support the index type int9"):
        place.migrate(second, index_type="int9")
    with pytest.raises(UsageError, match="needs at least 64 dimensions"):
        place.migrate(second, index_type="bbq_hnsw")
    taken = fresh_index(engine.info.url)
    engine.create_index(taken, {})
    with pytest.raises(IndexMismatch, match="already exists"):
        place.migrate(second, name=taken)
    assert engine.get_index(place.index) == before
    assert before is not None
    killed = {"before": {"index.refresh_interval": "5s"}, "run": "r"}  # noted by a load of an earlier version
    engine.put_mapping(place.index, {"_meta": with_meta_entry(before.mappings["_meta"], "load", killed)})
    engine.put_settings(place.index, {"index.refresh_interval": "-1"})
    with pytest.raises(IndexMismatch, match=r"left index\.refresh_interval of .* off") as caught:
        place.migrate(second)
    assert f'PUT {place.index}/_settings` with {{"index.refresh_interval":"5s"}}' in caught.value.remedy


def test_concurrent_migrations_only_one_finishes(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    place, errors, results = place9, [], []
    start = threading.Barrier(2)

    def go() -> None:
        start.wait()
        try:
            results.append(place.migrate(encoders[1]))
        except (UsageError, IndexMismatch) as error:
            errors.append(error)

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.finished for result in results] == [True]
    assert len(errors) == 1
    place.assert_holds(everything(), encoders[1])


def test_migration_whose_pointer_was_erased_is_resumed(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """By a program on another machine, which replaced `_meta` of the old index; the migration was killed."""
    place, second = place9, encoders[1]
    stopped = LoadControl()
    stopped.stop_reading.set()
    first = place.migrate(second, control=stopped)
    assert not first.finished
    state = state_of(place.engine, place.index)
    assert read_target_pointer(state) == first.target
    place.engine.put_mapping(place.index, {"_meta": with_meta_entry(state.mappings["_meta"], "migrating_to", None)})
    result = place.migrate(second)
    assert (result.target, result.resumed, result.finished) == (first.target, True, True)
    place.assert_holds(everything(), second)


def test_never_loaded_field_keeps_the_refresh_interval(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine, old = place9.engine, place9.index
    state = state_of(engine, old)
    meta = vector_fields(state.mappings, old)["embedding"].model_copy(update={"text": None})
    engine.put_mapping(old, {"_meta": merge_field_meta(state.mappings["_meta"], "embedding", meta)})
    result = place9.migrate(encoders[1])
    new = state_of(engine, result.target)
    assert new.settings["index.refresh_interval"] == state.settings["index.refresh_interval"]
    assert len(place9.contents()) == COUNT


def test_data_stream_is_refused_before_copying(
    opensearch_url: str, open_engine: Callable[[str], Engine], encoders: tuple[Encoder, Encoder], tmp_path: Path
) -> None:
    stream = f"test-{uuid.uuid4().hex[:12]}"
    url = opensearch_url
    template = {"index_patterns": [stream], "data_stream": {}, "priority": 500}
    httpx.put(f"{url}/_index_template/{stream}", json=template, trust_env=False).raise_for_status()
    try:
        httpx.put(f"{url}/_data_stream/{stream}", trust_env=False).raise_for_status()
        place = Place(open_engine(url), stream, "", tmp_path / "dead.jsonl")
        with pytest.raises(IndexMismatch, match="data stream") as caught:
            place.migrate(encoders[1])
        assert "--vector-field" in caught.value.remedy
    finally:
        httpx.delete(f"{url}/_data_stream/{stream}", trust_env=False)
        httpx.delete(f"{url}/_index_template/{stream}", trust_env=False)
