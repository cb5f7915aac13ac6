"""The stored state of a migration: its checkpoint in the new index, a pointer in the old one, and the local lock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum

from pydantic import BaseModel, ValidationError

from es_sbert.bundle.bundle import cache_folder
from es_sbert.config import split_addresses
from es_sbert.engines.engine import Engine, IndexState, Json
from es_sbert.errors import IndexMismatch, OutputError, UsageError
from es_sbert.filesystem import file_lock
from es_sbert.index.mapping import META_KEY, document_meta_field, with_meta_entry
from es_sbert.index.vector_field import require_index


def vector_field_names(fields: Iterable[str]) -> frozenset[str]:
    """Top-level fields that are left out of a copy: vectors of the old model, and their metadata."""
    return frozenset(fields) | {document_meta_field(field) for field in fields}


def find_migration(engine: Engine, alias: str) -> tuple[IndexState, MigrationState | None]:
    """The index of an alias, and its migration state if a migration created the index.

    Raises:
        IndexMissing, IndexMismatch: no such alias, or one of several indices.
    """
    state = require_index(engine, alias)
    return state, read_migration_state(state)


_STATE_ENTRY = "migration"
_POINTER_ENTRY = "migrating_to"


class MigrationPhase(StrEnum):
    COPYING = "copying"  # the alias points to the old index
    CLOSING = "closing"  # the alias may point to either index; check which
    DONE = "done"  # it points to the new index, which has everything; the old one may be dropped


class MigrationState(BaseModel, frozen=True):
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
        histories: Of each shard of the old index: UUID of the history to which `copied` belongs; empty if unknown.
    """

    alias: str
    source: str
    source_uuid: str
    fields: tuple[str, ...]
    run: str
    phase: MigrationPhase = MigrationPhase.COPYING
    copied: tuple[int, ...]
    deletions: bool = False
    blocked: bool = False
    permit: str = ""
    boundary: tuple[int, ...] = ()
    histories: tuple[str, ...] = ()


def read_migration_state(index: IndexState) -> MigrationState | None:
    """The state that is stored in an index; None if no migration created the index.

    Raises:
        IndexMismatch: it was damaged by hand.
    """
    entry = index.mappings.get("_meta", {}).get(META_KEY, {}).get(_STATE_ENTRY)
    if entry is None:
        return None
    try:
        return MigrationState.model_validate(entry)
    except ValidationError as error:
        raise IndexMismatch(
            f"_meta.{META_KEY}.{_STATE_ENTRY} in the mapping of {index.name} cannot be read",
            f"Delete the index {index.name} if no alias points to it, and begin again.",
        ) from error


def read_target_pointer(index: IndexState) -> str | None:
    """Name of the index to which this one is being migrated, or was."""
    name = index.mappings.get("_meta", {}).get(META_KEY, {}).get(_POINTER_ENTRY)
    return name if isinstance(name, str) else None


def find_target(engine: Engine, source: IndexState) -> tuple[IndexState, MigrationState] | None:
    """The new index of a migration from this one, and its state.

    Raises:
        IndexMismatch: the state was damaged by hand.
        EngineError: the engine failed.
    """
    name = read_target_pointer(source)
    target = None if name is None else engine.get_index(name)
    state = None if target is None else read_migration_state(target)
    if target is None or state is None or state.source_uuid != source.settings["index.uuid"]:
        return None
    return target, state


def with_migration_state(meta: Json, state: MigrationState | None) -> Json:
    """A mapping's `_meta` with this state, or without one."""
    return with_meta_entry(meta, _STATE_ENTRY, None if state is None else state.model_dump(mode="json"))


def put_migration_state(engine: Engine, target: IndexState, state: MigrationState | None) -> None:
    """Write or remove the state in the new index."""
    engine.put_mapping(target.name, {"_meta": with_migration_state(target.mappings.get("_meta", {}), state)})


def set_target_pointer(engine: Engine, source: IndexState, target: str | None) -> None:
    """Write or remove the pointer in the old index."""
    engine.put_mapping(
        source.name, {"_meta": with_meta_entry(source.mappings.get("_meta", {}), _POINTER_ENTRY, target)}
    )


def taken_over_error(target: str) -> IndexMismatch:
    """The error for a migration that another process works on now."""
    remedy = "Let it finish: one migration of an index at a time."
    return IndexMismatch(f"another process has taken over the migration to {target}, or removed it", remedy)


class MigrationStateStore:
    """Reads and writes the stored state of one migration.

    Args:
        target: The new index.
        state: The state as this process knows it.
    """

    def __init__(self, engine: Engine, target: str, state: MigrationState) -> None:
        self._engine = engine
        self._target = target
        self._is_deferred = False
        self.state = state

    @contextmanager
    def defer_writes(self) -> Iterator[None]:
        """Keep changes in memory while the block runs; the next change after it writes them too.

        Each is an update of the cluster state, which takes longer than all other steps while writes are blocked. If the
        process is killed in the block, the next one repeats these steps.
        """
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def write(self, **changed: object) -> None:
        """Change the state.

        Raises:
            IndexMismatch: the index is gone, or another process has taken the migration over.
        """
        changed_state = self.state.model_copy(update=changed)
        if not self._is_deferred:
            target = self._read_target()
            if target is None:
                raise taken_over_error(self._target)
            put_migration_state(self._engine, target, changed_state)
        self.state = changed_state

    def is_ours(self) -> bool:
        """Whether no other process has taken the migration over.

        Raises:
            EngineError: the engine failed.
        """
        return self._read_target() is not None

    def _read_target(self) -> IndexState | None:
        """The new index; None if it is gone, or its state is another process's."""
        target = self._engine.get_index(self._target)
        stored = None if target is None else read_migration_state(target)
        return None if stored is None or stored.run != self.state.run else target


@contextmanager
def migration_lock(url: str, alias: str) -> Iterator[None]:
    """Keep out other processes while the block runs; the system ends it even if this process is killed.

    Args:
        url: Address of the engine. Of several, separated by commas, each is locked: another process may name the same
            cluster by others of its nodes, or in another order.

    Raises:
        UsageError: another process is migrating the same alias.
        OutputError: the cache folder cannot be written.
    """

    def refuse() -> None:
        raise UsageError(f"another process is migrating {alias}", "Let it finish, or stop it first.")

    with ExitStack() as locks:
        for address in sorted(set(split_addresses(url))):
            path = cache_folder() / f"migrate-{hashlib.sha256(f'{address} {alias}'.encode()).hexdigest()[:32]}.lock"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            except OSError as error:
                remedy = "Let ES_SBERT_CACHE name a folder that this user may write to."
                raise OutputError(f"the lock file {path} cannot be written: {error.strerror}", remedy) from error
            locks.enter_context(file_lock(path, refuse))
        yield
