"""Writes are held for the swap: what was acknowledged before is in the new index, what comes late is refused."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import EngineResponse, Json
from es_sbert.errors import EngineError, EngineUnreachable, IndexMismatch, RequestFailed
from es_sbert.migration.alias_swap import WRITE_BLOCK_SETTING, cancel_migration, remove_leftover_block
from es_sbert.migration.migrate import MAX_HOLDS
from tests.engine.migration.support import COUNT, Overheard, Place, document, everything, make_place
from tests.engine.vectors import state_of

pytestmark = pytest.mark.one_engine


def send(engine: Engine, alias: str, action: Json, body: Json | None = None) -> bool:
    """One write by the alias; False where it is refused by a block on writes. Anything else is an error."""
    lines = [action] if body is None else [action, body]
    [result] = engine.bulk(alias, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert result.ok or "cluster_block_exception" in result.reason, result
    return result.ok


def is_blocked(place: Place) -> bool:
    state = state_of(place.engine, place.index)
    return state.settings.get(WRITE_BLOCK_SETTING) == "true"


def migrate_as(place: Place, engine: Any, encoder: Encoder, **wanted: Any) -> Any:
    """A migration that sees this engine in place of the real one."""
    real, place.engine = place.engine, engine
    try:
        return place.migrate(encoder, **wanted)
    finally:
        place.engine = real


def is_swap(actions: list[Json]) -> bool:
    return len(actions) > 1


class SwapRefused(Overheard):
    def update_aliases(self, actions: list[Json]) -> None:
        if is_swap(actions):
            raise IndexMismatch("no swap today", "Wait.")
        self._engine.update_aliases(actions)


def test_partial_updates_before_and_after_the_swap_are_kept(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """One field changes in the last moment before the swap, another one of the same document right after it."""
    engine, expected = place.engine, everything()
    late: Json = {"number": 4711}
    acknowledged: list[bool] = []

    class Swapping(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            if is_swap(actions):
                acknowledged.append(send(engine, place.alias, {"update": {"_id": "5"}}, {"doc": late}))
            self._engine.update_aliases(actions)
            if is_swap(actions):
                assert send(engine, place.alias, {"update": {"_id": "5"}}, {"doc": {"version": 1}})

    result = migrate_as(place, Swapping(engine), encoders[1])
    assert result.writes_refused_seconds > 0
    if not acknowledged[0]:  # as a writer does that was refused
        assert send(engine, place.alias, {"update": {"_id": "5"}}, {"doc": late})
    expected["5"] |= late | {"version": 1}
    place.assert_holds(expected, encoders[1])
    # A writer that still has the old index in mind is told.
    assert not send(engine, place.index, {"index": {"_id": "x"}}, {"text": "man"})


def test_acknowledged_writes_are_in_new_index_at_swap(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """Writes of all kinds between the last short round and the block; looked at right after the swap."""
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
    result = migrate_as(place, Watching(engine), encoders[1])
    assert (result.finished, result.removed) == (True, 2)
    # What takes the longer the more documents there are is done before.
    assert compared_in_hold == []
    place.assert_holds(expected, encoders[1])


def test_failed_swap_unblocks_writes_and_resumes(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine = place.engine

    class Failing(SwapRefused):
        def update_aliases(self, actions: list[Json]) -> None:
            assert not is_swap(actions) or not send(engine, place.alias, {"index": {"_id": "x"}}, {"text": "man"})
            super().update_aliases(actions)

    with pytest.raises(IndexMismatch, match="no swap today"):
        migrate_as(place, Failing(engine), encoders[1])
    place.write({"x": document(700)})
    result = place.migrate(encoders[1])
    assert (result.resumed, result.finished) == (True, True)
    place.assert_holds(everything() | {"x": document(700)}, encoders[1])


def test_swap_with_lost_response_counts_as_done(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    class Forgetful(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            self._engine.update_aliases(actions)
            if is_swap(actions):
                raise EngineUnreachable("the answer is lost", "Wait.")

    result = migrate_as(place9, Forgetful(place9.engine), encoders[1])
    assert (result.finished, place9.behind()) == (True, result.target)
    assert is_blocked(place9)
    place9.assert_holds(everything(), encoders[1])


def test_delayed_swap_after_unblock_is_rejected(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine, on_its_way = place.engine, []

    class Slow(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            if is_swap(actions) and not on_its_way:
                on_its_way.extend(actions)
                raise EngineUnreachable("no answer in time", "Wait.")
            if is_swap(actions):
                # The request of the first attempt is carried out now: it must not swap.
                with pytest.raises(RequestFailed, match="missing"):
                    self._engine.update_aliases(on_its_way)
                assert place.behind() == place.index
            self._engine.update_aliases(actions)

        def shard_states(self, name: str) -> object:
            if on_its_way and "x" not in written and not is_blocked(place):
                written.append("x")
                place.engine = engine
                place.write({"x": document(700)})
            return self._engine.shard_states(name)

    written: list[str] = []
    result = migrate_as(place, Slow(engine), encoders[1])
    assert (result.finished, result.holds, written) == (True, 2, ["x"])
    place.assert_holds(everything() | {"x": document(700)}, encoders[1])


def test_process_that_lost_the_migration_does_not_swap(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine = place9.engine

    class Overtaken(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            if is_swap(actions):
                assert remove_leftover_block(engine, place9.alias) == place9.index
                place9.engine = engine
                place9.write({"x": document(700)})
            self._engine.update_aliases(actions)

    with pytest.raises(IndexMismatch, match="another process has taken over"):
        migrate_as(place9, Overtaken(engine), encoders[1])
    assert place9.behind() == place9.index
    assert place9.migrate(encoders[1]).finished
    place9.assert_holds(everything() | {"x": document(700)}, encoders[1])


@pytest.mark.parametrize("end", ["again", "cancel"])
def test_leftover_write_block_is_reported_and_removed_next_run(
    place9: Place, encoders: tuple[Encoder, Encoder], end: str
) -> None:
    engine, gone = place9.engine, False

    class Vanishing(Overheard):
        def block_writes(self, name: str, timeout: float) -> None:
            nonlocal gone
            self._engine.block_writes(name, timeout)
            gone = True

    def fail(name: str) -> None:
        if gone and name not in ("info", "close_point_in_time"):
            raise RequestFailed("the engine is gone", "Start it.", 400)

    with pytest.raises(RequestFailed, match="the engine is gone") as caught:
        migrate_as(place9, Vanishing(engine, fail), encoders[1])
    [note] = caught.value.__notes__
    assert re.search("writes to .* are still refused.*--cancel", note)
    assert is_blocked(place9)
    if end == "cancel":
        assert cancel_migration(engine, place9.alias)[0] == place9.index
    else:
        assert remove_leftover_block(engine, place9.alias) == place9.index
        assert remove_leftover_block(engine, place9.alias) is None
    assert not is_blocked(place9)
    place9.write({"x": document(700)})
    assert place9.migrate(encoders[1]).finished
    place9.assert_holds(everything() | {"x": document(700)}, encoders[1])


def test_alias_that_was_removed_is_not_swapped(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine, alias = place9.engine, {"index": place9.index, "alias": place9.alias}

    def remove(name: str) -> None:
        if name == "block_writes" and engine.get_indices(place9.alias):
            engine.update_aliases([{"remove": alias}])

    with pytest.raises(IndexMismatch, match="is no longer an alias of"):
        migrate_as(place9, Overheard(engine, remove), encoders[1])
    assert not is_blocked(place9)
    engine.update_aliases([{"add": alias}])
    assert place9.migrate(encoders[1]).finished
    place9.assert_holds(everything(), encoders[1])


def test_read_only_index_stays_read_only(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    """Also Elasticsearch's note that the block was verified, which a new index must not have."""
    place.engine.block_writes(place.index, timeout=10)

    with pytest.raises(IndexMismatch, match="no swap today"):
        migrate_as(place, SwapRefused(place.engine), encoders[1])
    assert is_blocked(place)
    assert place.migrate(encoders[1]).finished
    place.assert_holds(everything(), encoders[1])
    place.write({"x": document(700)})


class SlowHold(Overheard):
    """An engine whose refresh fails, as it does without a node, during each of some holds.

    Args:
        holds: How many of them.
    """

    def __init__(self, engine: Engine, place: Place, holds: int) -> None:
        super().__init__(engine)
        self._place = place
        self._holds = holds
        self.begun = 0

    def block_writes(self, name: str, timeout: float) -> None:
        self._engine.block_writes(name, timeout)
        self.begun += 1

    def flush(self, name: str) -> None:
        self._engine.flush(name)

    def refresh(self, name: str) -> None:
        self._engine.refresh(name)
        if self.begun <= self._holds and is_blocked(self._place):
            raise RequestFailed("a node is gone", "Wait.", 503)


def test_hold_is_ended_after_its_time_and_tried_again(place: Place, encoders: tuple[Encoder, Encoder]) -> None:
    engine, written = place.engine, []

    class Writing(SlowHold):
        def shard_states(self, name: str) -> object:
            if self.begun == 1 and not written and not is_blocked(self._place):
                written.append("x")
                Place(engine, place.alias, place.index, place.dead).write({"x": document(700), "3": document(3, 1)})
            return self._engine.shard_states(name)

    slow = Writing(engine, place, holds=1)
    result = migrate_as(place, slow, encoders[1], max_write_block=8.0)
    assert (result.finished, result.holds, written) == (True, 2, ["x"])
    assert 2.0 < result.writes_refused_seconds < 8.0
    assert any("in 2 attempts" in line for line in result.lines())
    place.assert_holds(everything() | {"x": document(700), "3": document(3, 1)}, encoders[1])


def test_all_holds_together_end_after_the_time_allowed(place9: Place, encoders: tuple[Encoder, Encoder]) -> None:
    class Timed(SlowHold):
        """It also knows for how long the index was blocked."""

        seconds, since = 0.0, 0.0

        def block_writes(self, name: str, timeout: float) -> None:
            self.since = time.monotonic()
            super().block_writes(name, timeout)

        def put_settings(self, name: str, settings: Json) -> None:
            self._engine.put_settings(name, settings)
            if "index.blocks.write" in settings:
                self.seconds += time.monotonic() - self.since

    slow = Timed(place9.engine, place9, holds=99)
    with pytest.raises(
        EngineError, match="was not swapped: writes would have been refused for more than 6 s"
    ) as caught:
        migrate_as(place9, slow, encoders[1], max_write_block=6.0)
    assert "`max_write_block=SECONDS`" in caught.value.remedy
    assert 2 <= slow.begun <= MAX_HOLDS
    assert slow.seconds < 6.0
    # The old index is as it was, and takes writes.
    assert place9.behind() == place9.index
    assert not is_blocked(place9)
    place9.write({"x": document(700)})
    result = place9.migrate(encoders[1])
    assert (result.resumed, result.finished, result.holds) == (True, True, 1)
    place9.assert_holds(everything() | {"x": document(700)}, encoders[1])


def test_write_in_flight_that_does_not_end_is_not_waited_for_longer_than_allowed(
    place9: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    engine, asked = place9.engine, []

    class Stuck(Overheard):
        def block_writes(self, name: str, timeout: float) -> None:
            asked.append(timeout)
            self._engine.block_writes(name, timeout)
            if len(asked) == 1:
                raise RequestFailed("a request in flight takes too long", "Wait.", 503)

    result = migrate_as(place9, Stuck(engine), encoders[1], max_write_block=8.0)
    assert (result.finished, result.holds, asked[0]) == (True, 2, 3.0)
    assert 3.0 < asked[1] < 6.0
    place9.assert_holds(everything(), encoders[1])


def test_updates_of_a_shard_that_is_missing_in_the_statistics_are_copied(
    place: Place, encoders: tuple[Encoder, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its node is lost, a shard is left out there. The numbers of the others are not taken for its."""
    engine, send_request, lost = place.engine, place.engine.send, []
    late = {str(number): document(number, version=1) for number in range(0, COUNT, 2)}

    def lose_a_shard(method: str, path: str, *args: Any, **options: Any) -> EngineResponse:
        response = send_request(method, path, *args, **options)
        if "/_stats" in path and place.index in path and lost and len(lost) < 4:
            lost.append("answer")
            response.body["indices"][place.index]["shards"].pop("0")
        return response

    class Losing(Overheard):
        def block_writes(self, name: str, timeout: float) -> None:
            Place(engine, place.alias, place.index, place.dead).write(late)
            self._engine.block_writes(name, timeout)
            lost.append("shard 0")

    monkeypatch.setattr(engine, "send", lose_a_shard)
    result = migrate_as(place, Losing(engine), encoders[1], max_write_block=60.0)
    assert result.finished
    assert len(lost) == 4
    place.assert_holds(everything() | late, encoders[1])


def test_lost_response_to_removal_of_permit_does_not_leave_block(
    place9: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    engine, lost = place9.engine, []

    class Forgetful(SwapRefused):
        def update_aliases(self, actions: list[Json]) -> None:
            super().update_aliases(actions)
            if "remove" in actions[0] and not lost:
                lost.append(actions)
                raise EngineUnreachable("the answer is lost", "Wait.")

    with pytest.raises(IndexMismatch, match="no swap today"):
        migrate_as(place9, Forgetful(engine), encoders[1])
    assert lost
    assert not is_blocked(place9)


@pytest.fixture
def relaxed(
    opensearch_url: str, open_engine: Callable[[str], Engine], encoders: tuple[Encoder, Encoder], tmp_path: Path
) -> Iterator[Place]:
    """An index that puts its translog on disk every now and then."""
    for place in make_place(open_engine(opensearch_url), encoders[0], tmp_path / "dead.jsonl"):
        place.engine.put_settings(
            place.index, {"index.translog.durability": "async", "index.translog.sync_interval": "1h"}
        )
        yield place


def test_async_translog_is_not_waited_for(relaxed: Place, encoders: tuple[Encoder, Encoder]) -> None:
    expected = everything() | {"x": document(700)}

    class Writing(Overheard):
        def block_writes(self, name: str, timeout: float) -> None:
            relaxed.write({"x": document(700)}, to=name)
            self._engine.block_writes(name, timeout)

    engine = relaxed.engine
    overheard: Any = Writing(engine)
    relaxed.write({"y": document(701)})
    result = migrate_as(relaxed, overheard, encoders[1])
    assert result.finished
    relaxed.assert_holds(expected | {"y": document(701)}, encoders[1])


@pytest.mark.parametrize("blocks", [("read_only",), ("metadata",), ("write", "metadata", "read_only")])
def test_remedy_removes_the_block_that_was_set_by_hand(
    place: Place, encoders: tuple[Encoder, Encoder], blocks: tuple[str, ...]
) -> None:
    """Not a full disk. The engine names only blocks that concern the request, and a block on writes alone is kept."""
    engine, remedies = place.engine, []

    def remedy() -> str:
        try:
            place.migrate(encoders[1], retry_seconds=1)
        except EngineError as error:
            return error.remedy
        return ""

    for block in blocks:
        engine.put_settings(place.index, {f"index.blocks.{block}": True})
    try:
        while len(remedies) < len(blocks) and (text := remedy()):
            remedies.append(text)
            for index, body in re.findall(r"`PUT (\S+)/_settings (.*?)`", text):
                assert index == place.index
                engine.put_settings(index, orjson.loads(body))
    finally:
        for block in reversed(blocks):
            engine.put_settings(place.index, {f"index.blocks.{block}": None})
    assert remedies
    assert all(text.startswith("Remove ") and "disk" not in text for text in remedies), remedies
    assert place.behind() != place.index or place.migrate(encoders[1]).finished


@pytest.mark.parametrize(
    ("block", "method", "path"), [("write", "POST", "_doc"), ("read", "POST", "_search"), ("metadata", "GET", "")]
)
def test_engine_names_a_block_as_expected(place9: Place, block: str, method: str, path: str) -> None:
    engine, setting = place9.engine, f"index.blocks.{block}"
    engine.put_settings(place9.index, {setting: True})
    try:
        with pytest.raises(RequestFailed, match="blocked by") as caught:
            engine.request_api(f"/{place9.alias}/{path}", body={} if path else None, method=method)
        assert f'`PUT {place9.index}/_settings {{"{setting}": null}}`' in caught.value.remedy
    finally:
        engine.put_settings(place9.index, {setting: None})
