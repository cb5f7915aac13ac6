"""Other programs write into an index while it is moved to another model, most of them in the mode without a block."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from es_sbert.errors import RequestFailed
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import SilentMeter
from es_sbert.migration.migrate import migrate
from es_sbert.migration.prepare_migration import MigrationRequest
from tests.engine.migration.support import Overheard, Place, document, everything

pytestmark = pytest.mark.one_engine


def test_writes_during_migration_are_caught_up(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """Writes at every step of the migration, the last of them between the last round and the swap."""
    expected = everything()
    steps: list[str] = []

    def meddle(step: str) -> None:
        if step not in ("create_index", "update_aliases", "shard_states"):
            return
        number = len(steps)
        steps.append(step)
        new, changed, gone = f"new-{number}", str(3 * number), str(3 * number + 7)
        sources = {new: document(1000 + number), changed: document(3 * number, version=1)}
        place.write(sources)
        place.delete(gone)
        expected.update(sources)
        expected.pop(gone, None)

    engine = place.engine
    place.engine = Overheard(engine, meddle)  # type: ignore[assignment]
    result = place.migrate(encoders[1], block_writes=False)
    place.engine = engine
    assert "update_aliases" in steps
    assert result.late > 0
    assert result.removed > 0
    place.embed(encoders[1], place.alias)  # what other writers have put into the new index itself
    place.assert_holds(expected, encoders[1])


def test_writes_to_new_index_win_after_swap(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """Documents written in the old index's last moment, and then again, or deleted, in the new one."""
    expected = everything()
    engine = place.engine
    late = {name: document(500 + number) for number, name in enumerate(["fresh", "again", "gone", "1", "2", "3"])}

    class Swapping(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            place.write(late)
            self._engine.update_aliases(actions)
            place.write({"again": document(601), "2": document(602)})
            place.delete("gone", "3", "4")

    place.engine = Swapping(engine)  # type: ignore[assignment]
    result = place.migrate(encoders[1], block_writes=False)
    place.engine = engine
    assert result.late == len(late)
    expected |= late | {"again": document(601), "2": document(602)}
    for name in ("gone", "3", "4"):
        del expected[name]
    place.embed(encoders[1], place.alias)
    place.assert_holds(expected, encoders[1])


def test_repeated_late_writes_to_old_index_are_copied_again(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine, expected = place9.engine, everything()
    first = {name: document(500 + number) for number, name in enumerate(["fresh", "1", "17", "2", "3"])}
    again = {name: document(600 + number) for number, name in enumerate(first)}
    rounds = 0

    class Swapping(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            nonlocal rounds
            place9.engine = engine
            place9.write(first, to=place9.index)
            self._engine.update_aliases(actions)
            rounds = 1

        def bulk(self, name: str, body: bytes, **options: object) -> object:
            nonlocal rounds
            results = self._engine.bulk(name, body, **options)
            if rounds == 1:
                rounds = 2
                place9.write({"2": document(700)})
                place9.write({name: source for name, source in again.items() if name != "3"}, to=place9.index)
                engine.bulk(place9.index, b'{"delete":{"_id":"3"}}\n')
            return results

    place9.engine = Swapping(engine)  # type: ignore[assignment]
    assert place9.migrate(encoders[1], block_writes=False).late == len(first) + 4
    expected |= again | {"2": document(700)}  # in the new index, that is
    del expected["3"]
    place9.embed(encoders[1], place9.alias)
    place9.assert_holds(expected, encoders[1])


def test_interrupted_deletions_are_applied_on_resume(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine = place9.engine
    swapped = False

    class Failing(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            nonlocal swapped
            place9.delete("1", "2")
            self._engine.update_aliases(actions)
            swapped = True

        def open_point_in_time(self, name: str, **options: object) -> object:
            if swapped:
                raise RequestFailed("the engine is gone", "Wait.", 400)
            return self._engine.open_point_in_time(name, **options)

    place9.engine = Failing(engine)  # type: ignore[assignment]
    with pytest.raises(RequestFailed, match="the engine is gone"):
        place9.migrate(encoders[1], block_writes=False)
    place9.engine = engine
    result = place9.migrate(encoders[1])  # what was begun without a block is finished so
    assert (result.resumed, result.finished, result.removed) == (True, True, 2)
    assert {"1", "2"} & set(place9.contents()) == set()


def test_catch_up_gives_up_on_writer_using_old_index_name(
    place9: Place, encoders: tuple[Encoder, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_sbert.migration.migrate.MAX_ROUNDS", 3)
    engine, said = place9.engine, []
    late = -1

    def meddle(step: str) -> None:
        nonlocal late
        late += step == "update_aliases" and late < 0
        if late >= 0 and step == "shard_states":
            late += 1
            assert late < 500
            place9.write({f"late-{late}": document(late)}, to=place9.index)

    overheard: Any = Overheard(engine, meddle)
    wanted = MigrationRequest(place9.alias, "embedding", block_writes=False)
    result = migrate(
        overheard,
        encoders[1],
        wanted,
        LoadControl(),
        SilentMeter,
        report=said.append,
        dead_letters=place9.dead,
        retry_seconds=1,
    )
    assert (result.finished, result.late > 0) == (True, True)
    assert any("instead of the alias" in message for message in said)


def test_document_written_during_comparison_is_not_a_difference(
    place9: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    engine, expected = place9.engine, everything()

    class Changing(Overheard):
        def search(self, name: str, body: Json, **options: object) -> Json:
            answer: Json = self._engine.search(name, body, **options)
            if name == place9.index:
                changed = {hit["_id"]: document(900 + int(hit["_id"])) for hit in answer["hits"]["hits"][:5]}
                place9.write(changed)
                engine.refresh(name)
                expected.update(changed)
            return answer

    place9.engine = Changing(engine)  # type: ignore[assignment]
    assert place9.migrate(encoders[1]).finished
    place9.engine = engine
    place9.embed(encoders[1], place9.alias)
    place9.assert_holds(expected, encoders[1])
