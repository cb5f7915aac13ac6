"""Indices that have the `_meta` of a migration of others: restored snapshots, clones, and what elasticdump makes.

A restored index has the mapping of its original, and another UUID. The servers of the tests have no repository for
snapshots, so the tests create such indices from the mapping.
"""

from __future__ import annotations

from dataclasses import replace

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import IndexMismatch
from es_sbert.migration.alias_swap import cancel_migration
from es_sbert.migration.migration_state import find_begun, kept_index, read_migration_state
from tests.engine.migration.support import Place, killed_after
from tests.engine.vectors import state_of
from tests.raised import raises_as_recorded

Encoders = tuple[Encoder, Encoder]


def restore(place: Place, name: str, restored: str, alias: str | None = None) -> None:
    """Create an index as a snapshot of another one is restored: with its mapping, and a new UUID."""
    state = state_of(place.engine, name)
    if name == restored:
        place.engine.delete_index(name)
    settings = {"index.number_of_shards": str(state.shards), "index.number_of_replicas": "0"}
    if place.engine.info.engine_type is EngineType.OPENSEARCH:
        settings["index.knn"] = "true"
    place.engine.create_index(restored, {"settings": settings, "mappings": state.mappings})
    if alias is not None:
        place.engine.update_aliases([{"add": {"index": restored, "alias": alias, "is_write_index": True}}])


def target_of(place: Place) -> str:
    begun = find_begun(place.engine, state_of(place.engine, place.index))
    assert begun is not None
    return begun.target.name


def test_copy_of_a_finished_migration_leaves_the_original_alone(place: Place, encoders: Encoders) -> None:
    place.migrate(encoders[1])
    copied = replace(place, alias=f"{place.alias}-copy")
    restore(place, place.alias_target(), f"{copied.alias}-new", copied.alias)
    kept = [
        kept_index(each.engine, read_migration_state(state_of(each.engine, each.alias))) for each in (copied, place)
    ]
    assert kept == [None, place.index]


def test_cancel_of_a_copy_does_not_cancel_the_original(place: Place, encoders: Encoders) -> None:
    with killed_after(place, "bulk"):
        place.migrate(encoders[1])
    target = target_of(place)
    copied = f"{place.alias}-copy-new"
    restore(place, target, copied)
    with raises_as_recorded(IndexMismatch):
        cancel_migration(copied, place.engine)
    assert place.engine.get_index(target) is not None
    place.migrate(encoders[1])
    assert place.alias_target() == target


def test_migration_whose_old_index_was_restored_is_reported_as_orphaned(place: Place, encoders: Encoders) -> None:
    with killed_after(place, "bulk"):
        place.migrate(encoders[1])
    target = target_of(place)
    restore(place, place.index, place.index, place.alias)
    with raises_as_recorded(IndexMismatch):
        cancel_migration(target, place.engine)
    # Without it, a new migration begins.
    place.engine.delete_index(target)
    assert place.migrate(encoders[1]).exit_code == 0
