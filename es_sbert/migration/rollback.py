"""Remove an index of a migration: the new one before the swap, or the old one after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import IndexMismatch
from es_sbert.migration.alias_swap import remove_stale_block
from es_sbert.migration.migration_state import (
    MigrationPhase,
    find_migration,
    read_migration_state,
    read_target_pointer,
    set_target_pointer,
    with_migration_state,
)


@dataclass(frozen=True)
class IndexToDelete:
    """An index that is about to be deleted.

    Attributes:
        index: Its name.
        documents: How many it holds.
    """

    index: str
    documents: int


def roll_back(engine: Engine, alias: str) -> str | None:
    """Remove the new index of a migration that has not been swapped; searches never saw it.

    Returns:
        Its name; None where no migration is under way.

    Raises:
        IndexMissing, IndexMismatch: no such alias, or the swap is done.
        EngineError: the engine failed.
    """
    source, note = find_migration(engine, alias)
    if note is not None and note.phase is MigrationPhase.CLOSING:
        raise IndexMismatch(
            f"{alias} points to the new index {source.name} already",
            "Run the migration's own command once more to finish it; to go back, migrate to the old model.",
        )
    name = read_target_pointer(source)
    if name is None:
        return None
    target = engine.get_index(name)
    made = None if target is None else read_migration_state(target)
    if target is not None and made is not None and made.source_uuid == source.settings["index.uuid"]:
        if engine.get_aliases(name).get(name, {}).keys() - {made.permit}:
            raise IndexMismatch(f"the index {name} has aliases, so somebody uses it", "Take them away first.")
        remove_stale_block(engine, source, target)
        behind = engine.get_index(alias)
        if behind is None or behind.name != source.name:
            raise IndexMismatch(
                f"another process has swapped {alias} a moment ago", "Look with the same command what is left to do."
            )
        engine.delete_index(name)
    set_target_pointer(engine, source, None)
    return name


def drop(engine: Engine, alias: str, confirm: Callable[[IndexToDelete], bool]) -> str | None:
    """Delete the old index of a finished migration.

    Args:
        confirm: Asked before.

    Returns:
        Its name; None where it was not confirmed, or is gone already.

    Raises:
        IndexMissing, IndexMismatch: no such alias, no migration, one that is not finished, or an index in use.
        EngineError: the engine failed.
    """
    target, note = find_migration(engine, alias)
    if note is None:
        raise IndexMismatch(
            f"{alias} points to {target.name}, which no migration has made, or whose old index is gone",
            "There is nothing to drop.",
        )
    if note.phase is not MigrationPhase.DONE:
        raise IndexMismatch(
            f"the migration to {target.name} is not finished", "Run the migration's own command once more."
        )
    source = engine.get_index(note.source)
    if source is not None and source.name == note.source and source.settings["index.uuid"] == note.source_uuid:
        aliases = engine.get_aliases(note.source).get(note.source)
        if aliases:
            raise IndexMismatch(
                f"{note.source} still has the alias {min(aliases)}, so somebody uses it", "Take it away first."
            )
        if not confirm(IndexToDelete(note.source, engine.count(note.source))):
            return None
        engine.delete_index(note.source)
        _clear_state(engine, target)
        return note.source
    _clear_state(engine, target)
    return None


def _clear_state(engine: Engine, target: IndexState) -> None:
    state = engine.get_index(target.name)
    if state is not None:
        engine.put_mapping(target.name, {"_meta": with_migration_state(state.mappings.get("_meta", {}), None)})
