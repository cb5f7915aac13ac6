"""The way back from a finished migration: nothing that was written since the swap is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import IndexMismatch
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.migration.alias_swap import WRITE_BLOCK_SETTING, drop_old_index, roll_back
from es_sbert.migration.migration_state import find_begun
from es_sbert.migration.rollback import _cancel_rollback, cancel_migration, find_rollback, list_kept
from es_sbert.vectors import Vectors
from tests.conftest import also_opensearch2
from tests.engine.migration.support import (
    COUNT,
    Overheard,
    Place,
    document,
    everything,
    killed_after,
    killed_before,
    text_of,
)
from tests.random_writer import RandomWriters, differences, shared_documents

pytestmark = pytest.mark.one_engine

Encoders = tuple[Encoder, Encoder]
OURS = {"embedding", "embedding_meta", "_routing"}


def is_blocked(place: Place, index: str) -> bool:
    state = place.engine.get_index(index)
    assert state is not None
    return state.settings.get(WRITE_BLOCK_SETTING) == "true"


def write_since(place: Place) -> dict[str, dict[str, Any]]:
    """Change, add and delete documents by the alias; everything that it then holds."""
    place.write({"1": document(1, version=2), "7": document(7, version=2), "new": document(5000)})
    place.delete("2", "17")
    expected = everything() | {"1": document(1, version=2), "7": document(7, version=2), "new": document(5000)}
    del expected["2"], expected["17"]
    return expected


@also_opensearch2
def test_rollback_carries_over_what_was_written_since(place: Place, encoders: Encoders) -> None:
    new = place.migrate(encoders[1]).target
    expected = write_since(place)
    result = place.migrate(encoders[0], rollback=True)
    assert (result.finished, result.rollback, result.target) == (True, True, place.index)
    assert (result.copied, result.embedded, result.removed) == (3, 3, 2)
    assert result.writes_refused_seconds > 0
    assert place.behind() == place.index
    place.assert_holds(expected, encoders[0])
    assert (is_blocked(place, place.index), is_blocked(place, new)) == (False, True)
    place.write({"later": document(6000)})
    # And forth again.
    assert [(kept.name, kept.blocked, kept.is_previous) for kept in list_kept(place.engine, place.alias)] == [
        (new, True, True)
    ]
    again = place.migrate(encoders[1], rollback=True)
    assert (again.finished, again.target, place.behind()) == (True, new, new)
    # The first way forth has embedded what was written after it as little as the second way back needs to.
    assert again.copied == 1
    place.embed(encoders[1], new)
    place.assert_holds(expected | {"later": document(6000)}, encoders[1])
    assert (is_blocked(place, place.index), is_blocked(place, new)) == (True, False)
    assert drop_old_index(place.engine, place.alias, lambda *leaving: True) == [place.index]
    assert list_kept(place.engine, place.alias) == []


def test_no_acknowledged_write_is_lost_during_rollbacks(place: Place, encoders: Encoders) -> None:
    info = place.engine.info
    scripts = info.engine_type is EngineType.OPENSEARCH or info.version < (9, 0, 0)  # the server of the tests has none
    place.write(shared_documents())
    writers = RandomWriters(info.url, place.alias, threads=4, seed=13, scripts=scripts)
    with writers.running():
        results = [place.migrate(encoders[1])]
        for encoder in (encoders[0], encoders[1], encoders[0]):
            writers.wait_for(100)
            results.append(place.migrate(encoder, rollback=True))
        writers.wait_for(100)
    assert all(result.finished and result.writes_refused_seconds > 0 for result in results)
    counts = writers.counts()
    assert counts.operations > 400
    assert counts.missing == 0
    assert place.behind() == place.index
    expected = everything() | writers.expected()
    assert differences(expected, place.contents(), OURS.__contains__) == []
    place.embed(encoders[0])
    held = place.contents()
    assert all(held[name]["embedding_meta"]["fingerprint"] == encoders[0].info.fingerprint for name in expected)


def test_stopped_rollback_resumes_and_is_not_given_up(place9: Place, encoders: Encoders) -> None:
    """The old index is not deleted by it, as the new one of a migration would be."""
    place = place9
    new = place.migrate(encoders[1]).target
    expected = write_since(place)
    control = LoadControl()
    control.interrupt()
    stopped = place.migrate(encoders[0], rollback=True, control=control)
    assert (stopped.finished, place.behind()) == (False, new)
    assert stopped.lines()[-1].endswith(f"cancel it: `es-sbert index migrate {place.alias} --cancel`")
    with pytest.raises(IndexMismatch, match="a rollback of .* is not finished"):
        roll_back(place.engine, place.alias)
    with pytest.raises(IndexMismatch, match="a rollback of .* is not finished"):
        place.migrate(encoders[0])
    target = find_rollback(place.engine, place.alias)
    assert target is not None
    assert target.index.name == place.index
    place.write({"late": document(7000)})
    resumed = place.migrate(encoders[0], rollback=True)
    assert (resumed.finished, resumed.resumed) == (True, True)
    place.assert_holds(expected | {"late": document(7000)}, encoders[0])


@pytest.mark.parametrize("moment", ["start", "copied", "held", "old index took writes"])
def test_rollback_after_a_cancelled_one_loses_nothing(place: Place, encoders: Encoders, moment: str) -> None:
    """Documents change between the rollbacks, also those that the first one has copied already."""
    engine, new = place.engine, place.migrate(encoders[1]).target
    if moment == "old index took writes":
        engine.put_settings(place.index, {WRITE_BLOCK_SETTING: None})
        place.write({"3": document(3, version=5), "stray": document(1)}, to=place.index)
    expected = write_since(place)
    if moment == "start":
        control = LoadControl()
        control.interrupt()
        place.migrate(encoders[0], rollback=True, control=control)
    else:
        with killed_after(place, "block_writes") if moment == "held" else killed_before(place, "block_writes"):
            place.migrate(encoders[0], rollback=True)
    assert is_blocked(place, new) == (moment == "held")
    cancelled = cancel_migration(engine, place.alias)
    assert (cancelled.index, cancelled.target, cancelled.is_rollback) == (new, place.index, True)
    assert (place.behind(), is_blocked(place, new), is_blocked(place, place.index)) == (new, False, True)
    with pytest.raises(IndexMismatch, match="no migration or rollback of"):
        cancel_migration(engine, place.alias)
    with pytest.raises(IndexMismatch, match="has replaced"):
        cancel_migration(engine, place.index)
    changed = {"1": document(1, version=3), "new": document(5000, version=1), "2": document(2, version=1)}
    place.write(changed)
    place.delete("7", "3")
    expected |= changed
    del expected["7"], expected["3"]
    result = place.migrate(encoders[0], rollback=True)
    assert (result.finished, result.resumed, place.behind()) == (True, False, place.index)
    if moment == "copied":
        assert result.copied == len(changed)
    place.assert_holds(expected, encoders[0])
    assert (is_blocked(place, new), is_blocked(place, place.index)) == (True, False)


def test_cancelled_rollback_stops_its_process(place9: Place, encoders: Encoders) -> None:
    """On another machine; here both have their turns in one process."""
    place, new = place9, place9.migrate(encoders[1]).target
    write_since(place)
    real, cancelled = place.engine, False

    def cancel(name: str) -> None:
        nonlocal cancelled
        if name == "flush" and not cancelled:
            cancelled = True
            index, target = real.get_index(new), real.get_index(place.index)
            assert index is not None
            assert target is not None
            begun = find_begun(real, index)
            assert begun is not None
            _cancel_rollback(real, index, begun)

    place.engine = Overheard(real, cancel)  # type: ignore[assignment]
    with pytest.raises(IndexMismatch, match="another process has taken over"):
        place.migrate(encoders[0], rollback=True)
    assert cancelled
    assert place.behind() == new
    assert (is_blocked(place, new), is_blocked(place, place.index)) == (False, True)


@pytest.mark.parametrize("moment", ["put_mapping", "put_settings", "bulk", "update_aliases", "block_writes"])
def test_rollback_that_was_killed_is_resumed(place9: Place, encoders: Encoders, moment: str) -> None:
    place = place9
    new = place.migrate(encoders[1]).target
    expected = write_since(place)

    with killed_before(place, moment):
        place.migrate(encoders[0], rollback=True)
    assert place.behind() == new
    result = place.migrate(encoders[0], rollback=True)
    assert result.finished
    place.assert_holds(expected, encoders[0])
    place.write({"x": document(1)})


def test_old_index_that_took_writes_is_copied_anew(place9: Place, encoders: Encoders) -> None:
    """Somebody has removed the block: what the old index got since then is nobody's."""
    place = place9
    place.migrate(encoders[1])
    place.engine.put_settings(place.index, {WRITE_BLOCK_SETTING: None})
    place.write({"3": document(3, version=5), "stray": document(1)}, to=place.index)
    expected = write_since(place)
    result = place.migrate(encoders[0], rollback=True)
    assert (result.finished, result.copied) == (True, COUNT - 1)
    place.assert_holds(expected, encoders[0])


def test_stale_vectors_of_the_old_index_are_embedded(place9: Place, encoders: Encoders) -> None:
    """An application had changed a text before the migration, and nobody had embedded it."""
    place = place9
    changed = document(4) | {"text": "a changed text"}
    body = b'{"update":{"_id":"4"}}\n{"doc":{"text":"a changed text"}}\n'
    assert all(result.ok for result in place.engine.bulk(place.alias, body))
    place.migrate(encoders[1])
    result = place.migrate(encoders[0], rollback=True)
    assert (result.finished, result.copied, result.embedded) == (True, 0, 1)
    place.assert_holds(everything() | {"4": changed}, encoders[0])


def test_fields_added_since_the_swap_are_carried_over(place: Place, encoders: Encoders) -> None:
    engine, second = place.engine, encoders[1].info
    new = place.migrate(encoders[1]).target
    price = {"properties": {"amount": {"type": "half_float"}}}
    engine.put_mapping(new, {"properties": {"price": price}})
    request = FieldRequest("more", second.fingerprint, second.model, second.dimensions, text="{text}")
    ensure_vector_field(engine, new, request)
    place.write({"new": document(5000) | {"price": {"amount": 1.5}}})
    assert place.migrate(encoders[0], rollback=True).finished
    state, before = engine.get_index(place.index), engine.get_index(new)
    assert state is not None
    assert before is not None
    for name in ("price", "more", "more_meta"):
        assert state.mappings["properties"][name] == before.mappings["properties"][name]
    assert (
        state.mappings["_meta"]["es_sbert"]["fields"]["more"] == before.mappings["_meta"]["es_sbert"]["fields"]["more"]
    )


def test_every_kept_index_is_listed_and_dropped(place9: Place, encoders: Encoders) -> None:
    """There, and back by another migration: nothing is left that takes no writes and that nobody knows of."""
    place, engine = place9, place9.engine
    there = place.migrate(encoders[1]).target
    back = place.migrate(encoders[0], name=f"{place.alias}-back").target
    kept = list_kept(engine, place.alias)
    assert [(each.name, each.is_previous) for each in kept] == [(there, True), (place.index, False)]
    assert {each.documents for each in kept} == {COUNT}
    assert all(each.blocked for each in kept)
    assert place.migrate(encoders[1], rollback=True).target == there
    assert [each.name for each in list_kept(engine, place.alias)] == [back, place.index]
    assert drop_old_index(engine, place.alias, lambda *leaving: True) == [place.index, back]
    assert (place.behind(), is_blocked(place, there)) == (there, False)
    with pytest.raises(IndexMismatch, match="none has kept the index before"):
        find_rollback(engine, place.alias)


def test_errors_after_a_rollback_name_how_to_delete_the_new_index(place9: Place, encoders: Encoders) -> None:
    place9.migrate(encoders[1])
    place9.migrate(encoders[0], rollback=True)
    for again in (
        lambda: place9.migrate(encoders[1]),
        lambda: place9.migrate(encoders[0]),
        lambda: cancel_migration(place9.engine, place9.alias),
    ):
        with pytest.raises(IndexMismatch, match="--drop`"):
            again()


def test_rollback_is_refused(place9: Place, encoders: Encoders) -> None:
    place, engine = place9, place9.engine
    with pytest.raises(IndexMismatch, match="none has kept the index before"):
        place.migrate(encoders[0], rollback=True)
    place.migrate(encoders[1])
    with pytest.raises(IndexMismatch, match="holds vectors of the model"):
        place.migrate(encoders[1], rollback=True)
    engine.update_aliases([{"add": {"index": place.index, "alias": f"{place.alias}-used"}}])
    with pytest.raises(IndexMismatch, match="so it is in use"):
        place.migrate(encoders[0], rollback=True)


def replace_vectors(place: Place, vectors: Vectors) -> None:
    """Give the documents of the old index, which takes no writes, other vectors."""
    place.engine.put_settings(place.index, {WRITE_BLOCK_SETTING: None})
    lines = [
        orjson.dumps({"update": {"_id": str(number)} | ({"routing": "seven"} if number % 10 == 7 else {})})
        + b"\n%b\n" % orjson.dumps({"doc": {"embedding": vectors[number].tolist()}})
        for number in range(COUNT)
    ]
    assert all(done.ok for done in place.engine.bulk(place.index, b"".join(lines)))
    place.engine.put_settings(place.index, {WRITE_BLOCK_SETTING: "true"})


def test_rollback_accepts_vectors_of_another_precision_but_of_no_other_model(place9: Place, encoders: Encoders) -> None:
    """The int8 vectors of a real model have cosines of 0.9976 with those of fp32."""
    place = place9
    place.migrate(encoders[1])
    first, second = (encoder.encode([text_of(n) for n in range(COUNT)], "document") for encoder in encoders)
    noise = np.random.default_rng(0).normal(0, 0.017, first.shape)
    replace_vectors(place, second)
    with pytest.raises(IndexMismatch, match="is not the one that"):
        place.migrate(encoders[0], rollback=True)
    replace_vectors(place, (first + noise).astype(np.float32))
    result = place.migrate(encoders[0], rollback=True)
    assert (result.finished, result.embedded, result.compared) == (True, 0, 50)
