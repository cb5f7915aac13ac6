"""Migrations of kinds that only an earlier version begins: refused by name, ended by `--cancel`, and else harmless."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import IndexMismatch
from es_sbert.index.vector_field import require_index
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.migration.alias_swap import cancel_migration
from es_sbert.migration.migration_state import (
    MigrationPhase,
    find_begun,
    put_migration_state,
    read_migration_state,
    read_target_pointer,
    replaced_error,
    set_target_pointer,
)
from tests.engine.migration.support import Place, document, everything, killed_after

pytestmark = pytest.mark.one_engine

Encoders = tuple[Encoder, Encoder]
KINDS: dict[str, dict[str, Any]] = {
    "rollback": {"is_rollback": True, "final_pipeline": "_none"},
    "removal of vectors by copy": {"removed": ("embedding", "embedding_meta"), "fields": ()},
    "migration without blocked writes": {"boundary": (7, 7), "blocked": False, "permit": ""},
}


def begin(place: Place, encoder: Encoder, *, swapped: bool, **kind: Any) -> str:
    """Begin a migration, and give its state the marks of a kind; returns its new index."""
    if swapped:
        with killed_after(place, "update_aliases", times=2):  # the permit, and the swap
            place.migrate(encoder)
        target = place.behind()
    else:
        control = LoadControl()
        control.interrupt()
        target = place.migrate(encoder, control=control).target
    index = require_index(place.engine, target)
    state = read_migration_state(index)
    assert state is not None
    put_migration_state(place.engine, index, state.model_copy(update=kind))
    return target


@pytest.mark.parametrize("swapped", [False, True], ids=["copying", "swapped"])
@pytest.mark.parametrize("kind", KINDS)
def test_begun_migration_is_refused_and_ended_by_cancel(
    kind: str, swapped: bool, place9: Place, encoders: Encoders
) -> None:
    place, engine = place9, place9.engine
    target = begin(place, encoders[1], swapped=swapped, **KINDS[kind])
    used = target if swapped else place.index
    for refused in (
        lambda: place.migrate(encoders[1]),
        lambda: place.migrate(encoders[1], name=f"{place.alias}-other"),
    ):
        with pytest.raises(IndexMismatch, match="only an earlier version of es-sbert can finish it") as caught:
            refused()
        assert kind in caught.value.message
        assert f"`es-sbert index migrate {place.alias} --cancel`" in caught.value.remedy
        assert f"{used} stays in use" in caught.value.remedy
        assert ("which may be missing" in caught.value.remedy) == ("boundary" in KINDS[kind] and swapped)
    if "boundary" in KINDS[kind]:
        engine.put_settings(target, {"index.gc_deletes": "1h"})  # by an unblocked swap
    # Only an index that the migration has created is deleted, and only before the swap.
    is_deleted = not swapped and kind != "rollback"
    assert cancel_migration(engine, place.alias) == (used, target if is_deleted else None)
    assert (engine.get_index(target) is None) == is_deleted
    assert place.behind() == used
    assert find_begun(engine, require_index(engine, place.alias)) is None
    if not is_deleted:
        left = require_index(engine, target)
        assert left.setting("index.gc_deletes") is None
        if not swapped:  # the index of a rollback is again what it was: kept, behind its pipeline
            assert (read_target_pointer(left), left.setting("index.final_pipeline")) == (place.index, "_none")
    place.write({"x": document(700)})
    assert place.migrate(encoders[0] if swapped else encoders[1], name=f"{place.alias}-next").finished
    assert len(place.contents()) == len(everything()) + 1


def test_finished_rollback_is_no_obstacle_and_its_other_index_is_named(place9: Place, encoders: Encoders) -> None:
    """The alias points to the old index again; the state that says so is in it."""
    place, engine = place9, place9.engine
    new = place.migrate(encoders[1]).target
    old, other = require_index(engine, place.index), require_index(engine, new)
    done = read_migration_state(other)
    assert done is not None
    swapped = {"source": new, "source_uuid": other.uuid, "target": old.name, "phase": MigrationPhase.DONE}
    engine.put_settings(old.name, {"index.blocks.write": None})
    engine.update_aliases([
        {"remove": {"index": new, "alias": place.alias}},
        {"add": {"index": old.name, "alias": place.alias}},
    ])  # fmt: skip
    put_migration_state(engine, old, done.model_copy(update=swapped | {"is_rollback": True}))
    set_target_pointer(engine, require_index(engine, old.name), None)
    set_target_pointer(engine, other, old.name)
    assert find_begun(engine, require_index(engine, place.alias)) is None
    replaced = replaced_error(engine, require_index(engine, new))
    assert replaced is not None
    assert f"`DELETE /{new}`" in replaced.remedy
    assert place.migrate(encoders[1], name=f"{place.alias}-next").kept == [old.name, new]
    place.assert_holds(everything(), encoders[1])
