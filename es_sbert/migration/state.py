"""How far a migration is: a note in the new index's mapping, and a pointer to it in the old one's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, ValidationError

from es_sbert.engines.protocol import Engine, IndexState, Json
from es_sbert.errors import IndexMismatch
from es_sbert.index.meta import META_KEY, with_entry

_NOTE = "migration"
_POINTER = "migrating_to"


class Phase(StrEnum):
    COPYING = "copying"  # the alias points to the old index
    CLOSING = "closing"  # it may stand for either: look
    DONE = "done"  # it points to the new index, which has everything; the old one may be dropped


class Migration(BaseModel):
    """`_meta.es_sbert.migration` of the new index.

    Attributes:
        alias: What was migrated.
        source, source_uuid: The old index.
        fields: Vector fields that get vectors of the new model.
        run: The process that works on it; another one takes over by writing its own.
        phase: How far it is.
        copied: Of each shard of the old index: up to this sequence number, every document has been copied.
        deletions: Whether documents may have been deleted from the old index since they were copied.
        blocked: Whether writes to the old index are blocked by us.
        permit: The alias that the swap has to remove while writes are blocked.
        boundary: Of each shard of the new index: the highest sequence number that is ours, before other writers came.
    """

    model_config = ConfigDict(frozen=True)

    alias: str
    source: str
    source_uuid: str
    fields: tuple[str, ...]
    run: str
    phase: Phase = Phase.COPYING
    copied: tuple[int, ...]
    deletions: bool = False
    blocked: bool = False
    permit: str = ""
    boundary: tuple[int, ...] = ()


def read_migration(index: IndexState) -> Migration | None:
    """The note of an index that a migration has made; None in any other.

    Raises:
        IndexMismatch: it was damaged by hand.
    """
    note = index.mappings.get("_meta", {}).get(META_KEY, {}).get(_NOTE)
    if note is None:
        return None
    try:
        return Migration.model_validate(note)
    except ValidationError as error:
        raise IndexMismatch(
            f"_meta.{META_KEY}.{_NOTE} in the mapping of {index.name} cannot be read",
            f"Delete the index {index.name} if no alias points to it, and begin again.",
        ) from error


def pointed_to(index: IndexState) -> str | None:
    """Name of the index to which this one is being migrated, or was."""
    name = index.mappings.get("_meta", {}).get(META_KEY, {}).get(_POINTER)
    return name if isinstance(name, str) else None


def with_migration(meta: Json, note: Migration | None) -> Json:
    """A mapping's `_meta` with this note, or without one."""
    return with_entry(meta, _NOTE, None if note is None else note.model_dump(mode="json"))


def point(engine: Engine, source: IndexState, target: str | None) -> None:
    """Write or remove the pointer in the old index."""
    engine.put_mapping(source.name, {"_meta": with_entry(source.mappings.get("_meta", {}), _POINTER, target)})


class Notebook:
    """The note of one migration, read and written by one process.

    Args:
        engine: Where.
        target: The new index.
        note: As this process has it.
    """

    def __init__(self, engine: Engine, target: str, note: Migration) -> None:
        self._engine = engine
        self._target = target
        self._is_deferred = False
        self.note = note

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Keep changes in memory while the block runs; the next one after it is written with them.

        Each is an update of the cluster's state, which takes longer than all else that is done while writes are held.
        A process that is killed in the block does its steps again.
        """
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def write(self, **changed: object) -> None:
        """Change the note.

        Raises:
            IndexMismatch: the index is gone, or another process has taken the migration over.
        """
        if self._is_deferred:
            self.note = self.note.model_copy(update=changed)
            return
        state = self._engine.get_index(self._target)
        there = None if state is None else read_migration(state)
        if state is None or there is None or there.run != self.note.run:
            raise IndexMismatch(
                f"another process has taken over the migration to {self._target}, or removed it",
                "Let it finish: one migration of an index at a time.",
            )
        self.note = self.note.model_copy(update=changed)
        self._engine.put_mapping(self._target, {"_meta": with_migration(state.mappings.get("_meta", {}), self.note)})

    def take_over(self, state: IndexState, run: str) -> None:
        """Make this process the one that works on it."""
        self.note = self.note.model_copy(update={"run": run})
        self._engine.put_mapping(self._target, {"_meta": with_migration(state.mappings.get("_meta", {}), self.note)})
