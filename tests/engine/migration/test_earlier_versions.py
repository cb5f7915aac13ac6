"""Migrations of kinds that only an earlier version begins: refused by name, and else harmless."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import IndexMismatch
from es_sbert.index.vector_field import require_index
from es_sbert.migration.alias_swap import cancel_migration
from es_sbert.migration.migration_state import MigrationPhase, find_begun, read_migration_state
from tests.engine.migration.support import Place, document, everything, interrupted, killed_after, put_migration_state

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
        target = place.alias_target()
    else:
        target = place.migrate(encoder, control=interrupted()).target
    index = require_index(place.engine, target)
    state = read_migration_state(index)
    assert state is not None
    put_migration_state(place.engine, index, state.model_copy(update=kind))
    return target


@pytest.mark.parametrize("swapped", [False, True], ids=["copying", "swapped"])
@pytest.mark.parametrize("kind", KINDS)
def test_begun_migration_is_refused_and_cancelled_only_if_its_index_is_new(
    kind: str, swapped: bool, place9: Place, encoders: Encoders
) -> None:
    place, engine = place9, place9.engine
    target = begin(place, encoders[1], swapped=swapped, **KINDS[kind])
    is_kept, cancel = swapped or kind == "rollback", f"`es-sbert index migrate {place.alias} --cancel`"
    for refused in (
        lambda: place.migrate(encoders[1]),
        lambda: place.migrate(encoders[1], name=f"{place.alias}-other"),
        *([lambda: cancel_migration(place.alias, engine)] if is_kept else []),
    ):
        with pytest.raises(IndexMismatch) as caught:
            refused()
        assert kind in caught.value.message
        assert ("with the version that began it" if is_kept else cancel) in caught.value.remedy
    assert place.alias_target() == (target if swapped else place.index)
    if is_kept:
        assert engine.get_index(target) is not None
        return
    assert cancel_migration(place.alias, engine) == (place.index, target)
    assert engine.get_index(target) is None
    place.write({"x": document(700)})
    assert place.migrate(encoders[1]).finished
    assert len(place.contents()) == len(everything()) + 1


def test_begun_migration_to_bfloat16_is_refused_until_it_is_cancelled(place9: Place, encoders: Encoders) -> None:
    place, engine = place9, place9.engine
    target = begin(place, encoders[1], swapped=False)
    meta = require_index(engine, target).mappings["_meta"]
    meta["es_sbert"]["fields"]["embedding"]["element_type"] = "bfloat16"
    engine.put_mapping(target, {"_meta": meta})
    with pytest.raises(IndexMismatch) as caught:
        place.migrate(encoders[1])
    assert "--cancel" in caught.value.remedy
    assert cancel_migration(place.alias, engine) == (place.index, target)


def test_cancel_removes_the_write_block_that_a_killed_rollback_has_left(place9: Place, encoders: Encoders) -> None:
    place, engine, permit = place9, place9.engine, f"{place9.alias}-permit"
    closing = {"phase": MigrationPhase.CLOSING, "blocked": True, "permit": permit}
    target = begin(place, encoders[1], swapped=False, **KINDS["rollback"] | closing)
    engine.update_aliases([{"add": {"index": target, "alias": permit, "is_hidden": True}}])
    engine.block_writes(place.index, 60)
    begun = find_begun(engine, require_index(engine, place.alias))
    assert begun is not None
    assert f"`es-sbert index migrate {place.alias} --cancel` removes the write block" in begun.error().remedy
    with pytest.raises(IndexMismatch) as caught:
        cancel_migration(place.alias, engine)
    assert f"{place.index} accepts writes again" in caught.value.with_notes()
    place.write({"x": document(700)})
    assert engine.get_aliases(target).get(target, {}) == {}  # a swap that is still queued fails
    assert engine.get_index(target) is not None
