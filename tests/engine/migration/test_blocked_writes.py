"""Writes are held for the swap: what was acknowledged before is in the new index, what comes late is refused."""

from __future__ import annotations

import re
import time

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.errors import EngineError, EngineUnreachable, IndexMismatch, RequestFailed
from es_sbert.migration.alias_swap import WRITE_BLOCK_SETTING, cancel_migration, remove_leftover_block
from es_sbert.migration.migrate import MAX_HOLDS
from tests.engine.migration.support import Encoders, Overheard, Place, document, everything, migrate_as
from tests.engine.vectors import state_of
from tests.raised import raises_as_recorded

pytestmark = pytest.mark.one_engine

LATE = {"x": document(700)}


def send(engine: Engine, alias: str, action: Json, body: Json) -> bool:
    """One write by the alias; False where it is refused by a block on writes. Anything else is an error."""
    [result] = engine.bulk(alias, orjson.dumps(action) + b"\n" + orjson.dumps(body) + b"\n")
    assert result.ok or "cluster_block_exception" in result.reason, result
    return result.ok


def is_blocked(place: Place) -> bool:
    return state_of(place.engine, place.index).settings.get(WRITE_BLOCK_SETTING) == "true"


def assert_takes_writes_and_finishes(place: Place, encoder: Encoder) -> None:
    """The alias still points to the old index, which accepts a write; another run resumes and loses nothing."""
    assert place.alias_target() == place.index
    assert not is_blocked(place)
    place.write(LATE)
    result = place.migrate(encoder)
    assert (result.resumed, result.finished, result.holds) == (True, True, 1)
    place.assert_holds(everything() | LATE, encoder)


def is_swap(actions: list[Json]) -> bool:
    return len(actions) > 1


class SwapRefused(Overheard):
    def update_aliases(self, actions: list[Json]) -> None:
        if is_swap(actions):
            raise IndexMismatch("no swap today", "Wait.")
        self._engine.update_aliases(actions)


def test_acknowledged_writes_are_in_new_index_at_swap(place: Place, encoders: Encoders) -> None:
    """Writes of all kinds between the last short round and the block, to an index that rarely puts them on disk."""
    engine, expected, in_hold = place.engine, everything(), False
    new = {"fresh": document(1000), "3": document(3, version=1), "27": document(27, version=1)}
    compared_in_hold: list[str] = []

    class Watching(Overheard):
        def block_writes(self, name: str, timeout: float) -> None:
            nonlocal in_hold
            place.write(new)
            place.delete("4", "7")
            self._engine.block_writes(name, timeout)
            in_hold = True

        def update_aliases(self, actions: list[Json]) -> None:
            self._engine.update_aliases(actions)
            if is_swap(actions):
                nonlocal in_hold
                in_hold = False
                Place(engine, place.alias, place.index, place.dead).assert_holds(expected, encoders[1])

        def search_point_in_time(self, pit_id: str, body: Json) -> object:
            if in_hold and body.get("query", {}).get("bool", {}).get("must") == [{"match_all": {}}]:
                compared_in_hold.append(pit_id)
            return self._engine.search_point_in_time(pit_id, body)

    expected |= new
    for gone in ("4", "7"):
        del expected[gone]
    engine.put_settings(place.index, {"index.translog.durability": "async", "index.translog.sync_interval": "1h"})
    result = migrate_as(place, Watching(engine), encoders[1])
    assert (result.finished, result.removed, result.holds) == (True, 2, 1)
    # What takes the longer the more documents there are is done before.
    assert compared_in_hold == []
    # A writer that still has the old index in mind is told.
    assert not send(engine, place.index, {"index": {"_id": "x"}}, {"text": "man"})


def test_failed_swap_unblocks_writes_and_resumes(place: Place, encoders: Encoders) -> None:
    """Also where the response to the removal of the permit is lost."""
    engine, lost = place.engine, []

    class Failing(SwapRefused):
        def update_aliases(self, actions: list[Json]) -> None:
            assert not is_swap(actions) or not send(engine, place.alias, {"index": {"_id": "x"}}, {"text": "man"})
            super().update_aliases(actions)
            if "remove" in actions[0] and not lost:
                lost.append(actions)
                raise EngineUnreachable("the answer is lost", "Wait.")

    with raises_as_recorded(IndexMismatch):
        migrate_as(place, Failing(engine), encoders[1])
    assert lost
    assert_takes_writes_and_finishes(place, encoders[1])


def test_swap_with_lost_response_counts_as_done(place9: Place, encoders: Encoders) -> None:
    class Forgetful(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            self._engine.update_aliases(actions)
            if is_swap(actions):
                raise EngineUnreachable("the answer is lost", "Wait.")

    result = migrate_as(place9, Forgetful(place9.engine), encoders[1])
    assert (result.finished, place9.alias_target()) == (True, result.target)
    assert is_blocked(place9)
    place9.assert_holds(everything(), encoders[1])


def test_delayed_swap_after_unblock_is_rejected(place: Place, encoders: Encoders) -> None:
    engine, on_its_way = place.engine, []

    class Slow(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            if is_swap(actions) and not on_its_way:
                on_its_way.extend(actions)
                raise EngineUnreachable("no answer in time", "Wait.")
            if is_swap(actions):
                # The request of the first attempt is carried out now: it must not swap.
                with raises_as_recorded(RequestFailed):
                    self._engine.update_aliases(on_its_way)
                assert place.alias_target() == place.index
            self._engine.update_aliases(actions)

        def shard_states(self, name: str) -> object:
            if on_its_way and not written and not is_blocked(place):
                written.append("x")
                place.engine = engine
                place.write(LATE)
            return self._engine.shard_states(name)

    written: list[str] = []
    result = migrate_as(place, Slow(engine), encoders[1])
    assert (result.finished, result.holds, written) == (True, 2, ["x"])
    place.assert_holds(everything() | LATE, encoders[1])


def test_process_that_lost_the_migration_does_not_swap(place9: Place, encoders: Encoders) -> None:
    engine = place9.engine

    class Overtaken(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            if is_swap(actions):
                assert remove_leftover_block(engine, place9.alias) == place9.index
            self._engine.update_aliases(actions)

    with raises_as_recorded(IndexMismatch):
        migrate_as(place9, Overtaken(engine), encoders[1])
    assert_takes_writes_and_finishes(place9, encoders[1])


def test_leftover_write_block_is_reported_and_removed_by_cancel(place9: Place, encoders: Encoders) -> None:
    engine, gone = place9.engine, False

    class Vanishing(Overheard):
        def block_writes(self, name: str, timeout: float) -> None:
            nonlocal gone
            self._engine.block_writes(name, timeout)
            gone = True

    def fail(name: str) -> None:
        if gone and name not in ("info", "close_point_in_time"):
            raise RequestFailed("the engine is gone", "Start it.", 400)

    with raises_as_recorded(RequestFailed) as caught:
        migrate_as(place9, Vanishing(engine, fail), encoders[1])
    [note] = caught.value.__notes__
    assert re.search("writes to .* are still refused.*--cancel", note)
    assert is_blocked(place9)
    assert cancel_migration(place9.alias, engine)[0] == place9.index
    place9.write(LATE)


def test_alias_that_was_removed_is_not_swapped(place9: Place, encoders: Encoders) -> None:
    engine, alias = place9.engine, {"index": place9.index, "alias": place9.alias}

    def remove(name: str) -> None:
        if name == "block_writes" and engine.get_indices(place9.alias):
            engine.update_aliases([{"remove": alias}])

    with raises_as_recorded(IndexMismatch):
        migrate_as(place9, Overheard(engine, remove), encoders[1])
    assert engine.get_indices(place9.alias) == []
    engine.update_aliases([{"add": alias}])
    assert_takes_writes_and_finishes(place9, encoders[1])


def test_write_in_flight_that_does_not_end_is_waited_for_in_another_hold(place9: Place, encoders: Encoders) -> None:
    engine, waits = place9.engine, list[float]()

    class Stuck(Overheard):
        def block_writes(self, name: str, timeout: float) -> None:
            waits.append(timeout)
            self._engine.block_writes(name, timeout)
            if len(waits) == 1:
                raise RequestFailed("a request in flight takes too long", "Wait.", 503)

    result = migrate_as(place9, Stuck(engine), encoders[1], max_write_block=8.0)
    assert (result.finished, result.holds, waits[0]) == (True, 2, 3.0)
    assert 3.0 < waits[1] < 6.0
    place9.assert_holds(everything(), encoders[1])


def test_read_only_index_stays_read_only(place: Place, encoders: Encoders) -> None:
    """Also Elasticsearch's note that the block was verified, which a new index must not have."""
    place.engine.block_writes(place.index, timeout=10)
    with raises_as_recorded(IndexMismatch):
        migrate_as(place, SwapRefused(place.engine), encoders[1])
    assert is_blocked(place)
    assert place.migrate(encoders[1]).finished
    place.assert_holds(everything(), encoders[1])
    place.write(LATE)


class SlowHold(Overheard):
    """An engine whose refresh fails, as it does without a node, during the first holds; it measures the blocks."""

    def __init__(self, engine: Engine, place: Place, holds: int) -> None:
        super().__init__(engine)
        self._place, self._holds = place, holds
        self.begun, self.seconds, self._since = 0, 0.0, 0.0

    def block_writes(self, name: str, timeout: float) -> None:
        self._since = time.monotonic()
        self._engine.block_writes(name, timeout)
        self.begun += 1

    def put_settings(self, name: str, settings: Json) -> None:
        self._engine.put_settings(name, settings)
        if "index.blocks.write" in settings:
            self.seconds += time.monotonic() - self._since

    def refresh(self, name: str) -> None:
        self._engine.refresh(name)
        if self.begun <= self._holds and is_blocked(self._place):
            raise RequestFailed("a node is gone", "Wait.", 503)


def test_hold_is_ended_after_its_time_and_tried_again(place: Place, encoders: Encoders) -> None:
    engine, written = place.engine, LATE | {"3": document(3, 1)}

    class Writing(SlowHold):
        def put_settings(self, name: str, settings: Json) -> None:
            super().put_settings(name, settings)
            if settings == {WRITE_BLOCK_SETTING: None}:
                Place(engine, place.alias, place.index, place.dead).write(written)

    result = migrate_as(place, Writing(engine, place, holds=1), encoders[1], max_write_block=8.0)
    assert (result.finished, result.holds) == (True, 2)
    assert 2.0 < result.writes_refused_seconds < 8.0
    assert any("in 2 attempts" in line for line in result.lines())
    place.assert_holds(everything() | written, encoders[1])


def test_all_holds_together_end_after_the_time_allowed(place9: Place, encoders: Encoders) -> None:
    slow = SlowHold(place9.engine, place9, holds=99)
    with raises_as_recorded(EngineError):
        migrate_as(place9, slow, encoders[1], max_write_block=6.0)
    assert 2 <= slow.begun <= MAX_HOLDS
    assert slow.seconds < 6.0
    assert_takes_writes_and_finishes(place9, encoders[1])
