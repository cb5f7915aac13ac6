"""Writes are held for the swap: what was acknowledged before is in the new index, what comes late is refused."""

from __future__ import annotations

import orjson

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine, Json
from tests.engine.migration.support import Overheard, Place, everything


def send(engine: Engine, alias: str, action: Json, body: Json | None = None) -> bool:
    """One write by the alias; False where it is refused by a block on writes. Anything else is an error."""
    lines = [action] if body is None else [action, body]
    [result] = engine.bulk(alias, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert result.ok or "cluster_block_exception" in result.reason, result
    return result.ok


def test_a_late_partial_update_is_not_lost_beside_one_in_the_new_index(
    place: Place, encoders: tuple[Encoder, Encoder]
) -> None:
    """One field changes in the last moment before the swap, another one of the same document right after it."""
    engine, expected = place.engine, everything()
    late: Json = {"number": 4711}
    acknowledged: list[bool] = []

    class Swapping(Overheard):
        def update_aliases(self, actions: list[Json]) -> None:
            acknowledged.append(send(engine, place.alias, {"update": {"_id": "5"}}, {"doc": late}))
            self._engine.update_aliases(actions)
            assert send(engine, place.alias, {"update": {"_id": "5"}}, {"doc": {"version": 1}})

    place.engine = Swapping(engine)  # type: ignore[assignment]
    place.migrate(encoders[1])
    place.engine = engine
    if not acknowledged[0]:  # as a writer does that was refused
        assert send(engine, place.alias, {"update": {"_id": "5"}}, {"doc": late})
    expected["5"] |= late | {"version": 1}
    place.assert_holds(expected, encoders[1])
