"""The stored state of a migration: its checkpoint in the new index, a pointer in the old one, and the local lock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ValidationError

from es_sbert.config import DEFAULT_VECTOR_FIELD, cache_folder, split_addresses
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState, SettingValue
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier
from es_sbert.errors import IndexMismatch, IndexMissing, OutputError, UsageError
from es_sbert.filesystem import file_lock
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import META_KEY, document_meta_field, read_meta_entry, with_meta_entry
from es_sbert.index.text_template import format_vector_field_option


def vector_field_names(fields: Iterable[str]) -> frozenset[str]:
    """Top-level fields that are left out of a copy: vectors of the old model, and their metadata."""
    return frozenset(fields) | {document_meta_field(field) for field in fields}


WRITE_BLOCK_SETTING = "index.blocks.write"
_STATE_ENTRY = "migration"
_POINTER_ENTRY = "migrating_to"


class MigrationPhase(StrEnum):
    CREATING = "creating"  # the new index was not compared with the old one yet; another run creates it again
    COPYING = "copying"  # the alias points to the old index
    CLOSING = "closing"  # the alias may point to either index; check which
    DONE = "done"  # the alias points to the new index, which is complete; the old one may be dropped


class MigrationState(BaseModel, frozen=True):
    """`_meta.es_sbert.migration` of the new index.

    Attributes:
        alias: The alias that is migrated.
        target: Name of the new index; empty if unknown. A copy under another name, such as a clone or a restored
            snapshot, has this state too, which does not apply to it.
        source, source_uuid: The old index.
        fields: Vector fields that get vectors of the new model.
        run: Id of the process that runs the migration; another process takes over by writing its own.
        phase: The current phase.
        copied: For each shard of the old index, the sequence number up to which every document has been copied.
        deletions: Whether documents may have been deleted from the old index since they were copied.
        blocked: Whether the migration has blocked writes to the old index.
        permit: The alias that the swap has to remove while writes are blocked.
        histories: For each shard of the old index, UUID of the history to which `copied` belongs; empty if unknown.
        final_pipeline: `index.final_pipeline` that the new index gets right before the swap; None for none.
        lifecycle: Settings of the index lifecycle management that the new index gets after the swap.
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
    histories: tuple[str, ...] = ()
    final_pipeline: str | None = None
    lifecycle: dict[str, SettingValue] = {}
    target: str = ""

    @property
    def not_copied(self) -> frozenset[str]:
        """Top-level fields that are left out of the copied documents."""
        return vector_field_names(self.fields)


# Members of the states of rollbacks and other kinds of migrations that existed before the first release. The target of
# a rollback existed before it, so it must not be taken for one that this version may delete.
_OTHER_KINDS = ("boundary", "is_rollback", "removed")


def read_migration_state(index: IndexState) -> MigrationState | None:
    """Read the state that is stored in an index; None if no migration created the index, or if it is that of another.

    Raises:
        IndexMismatch: the state was damaged by hand, or an earlier version has to finish the migration.
    """
    entry = read_meta_entry(index.mappings, _STATE_ENTRY)
    if entry is None:
        return None
    try:
        state = MigrationState.model_validate(entry)
    except ValidationError as error:
        raise IndexMismatch(
            f"_meta.{META_KEY}.{_STATE_ENTRY} in the mapping of {index.name} cannot be read",
            f"Delete the index {index.name} if no alias points to it, and begin again.",
        ) from error
    if state.phase is not MigrationPhase.DONE and any(entry.get(name) for name in _OTHER_KINDS):
        raise IndexMismatch(
            f"a migration of {state.alias} to {index.name} was begun by an earlier version of es-sbert",
            "Finish it with that version.",
        )
    return state if state.target in ("", index.name) else None


def kept_index(engine: Engine, state: MigrationState | None) -> str | None:
    """Name of the index that a migration has kept; None if it is gone, or an index of that name has another UUID."""
    index = None if state is None else engine.get_index(state.source)
    is_kept = index is not None and state is not None and (index.name, index.uuid) == (state.source, state.source_uuid)
    return index.name if index is not None and is_kept else None


def read_target_pointer(index: IndexState) -> str | None:
    """Name of the index to which this one is being migrated, or was."""
    name = read_meta_entry(index.mappings, _POINTER_ENTRY)
    return name if isinstance(name, str) else None


def find_target(
    engine: Engine, source: IndexState, name: str | None = None
) -> tuple[IndexState, MigrationState] | None:
    """Find the new index of a migration from this one, and its state; None if there is no such migration.

    Args:
        name: Name of the new index in case another machine has erased the pointer to it; None to trust the pointer.

    Raises:
        IndexMismatch: the state was damaged by hand.
        EngineError: the engine failed.
    """
    for each in (read_target_pointer(source), name):
        target = None if each is None else engine.get_index(each)
        state = None if target is None else read_migration_state(target)
        if target is not None and state is not None and state.source_uuid == source.uuid:
            return target, state
    return None


@dataclass(frozen=True)
class BegunMigration:
    """A migration that has not ended: it is running, or it was stopped or killed.

    Attributes:
        target: The new index.
        state: Its state.
        is_swapped: Whether the alias points to the new index already.
        refuses_writes: Whether it refuses writes to the index of the alias.
        is_orphaned: Whether it cannot be finished or cancelled, because the index from which it goes was deleted, or
            restored from a snapshot, which gives it another UUID.
    """

    target: IndexState
    state: MigrationState
    is_swapped: bool
    refuses_writes: bool = False
    is_orphaned: bool = False

    def error(self) -> IndexMismatch:
        """The error of a command that has to wait for its end."""
        state = self.state
        what = f"a migration of {state.alias} to {self.target.name}"
        if self.is_orphaned:
            return IndexMismatch(
                f"{what} cannot be finished: its other index, {state.source}, was deleted or replaced",
                f"Delete {self.target.name} if it is not needed. It may lack documents.",
            )
        refused = f", and writes to {state.source} are refused" if self.refuses_writes else ""
        command = f"es-sbert index migrate {state.alias}"
        # After the swap, the model, the text and the types are those of the index of the alias.
        field = format_vector_field_option(next(iter(state.fields), DEFAULT_VECTOR_FIELD))
        replace = " --replace-index" if state.source == state.alias else ""
        finish = (
            f"finish it: `{command}{field}{replace}`"
            if self.is_swapped
            else f"run the command that began it again, or cancel it: `{command} --cancel`"
        )
        return IndexMismatch(f"{what} is not finished{refused}", f"If it is running, let it finish. If not, {finish}.")


def find_begun(engine: Engine, index: IndexState) -> BegunMigration | None:
    """Find the migration from this index or to it that has not ended.

    Raises:
        IndexMismatch: a state was damaged by hand.
        EngineError: the engine failed.
    """
    own = read_migration_state(index)
    found = find_target(engine, index) if own is None or own.phase is MigrationPhase.DONE else (index, own)
    if found is None or found[1].phase is MigrationPhase.DONE:
        return None
    target, state = found
    current = engine.get_index(state.alias)
    is_swapped = current is not None and current.name == target.name
    is_orphaned = not is_swapped and index.uuid != state.source_uuid and kept_index(engine, state) is None
    if is_orphaned:
        # A swap may have deleted the old index since the alias was read.
        current = engine.get_index(state.alias)
        is_swapped = current is not None and current.name == target.name
        return BegunMigration(target, state, is_swapped, is_orphaned=not is_swapped)
    refuses = state.blocked and not is_swapped and current is not None and current.has_setting(WRITE_BLOCK_SETTING)
    return BegunMigration(target, state, is_swapped, refuses)


def replaced_error(engine: Engine, index: IndexState) -> IndexMismatch | None:
    """Return the error for an index that a finished migration has replaced and kept; None for any other.

    Raises:
        IndexMismatch: a state was damaged by hand.
        EngineError: the engine failed.
    """
    found = find_target(engine, index)
    if found is None or found[1].phase is not MigrationPhase.DONE:
        return None
    target, state = found
    current = engine.get_index(state.alias)
    if current is None or current.name != target.name:
        return None
    return IndexMismatch(
        f"{target.name} has replaced {index.name} as the index of {state.alias}; {index.name} is kept",
        f"Use {state.alias}. To delete what is kept: `DELETE /{index.name}`.",
    )


def with_migration_state(meta: Json, state: MigrationState) -> Json:
    """Return a mapping's `_meta` with this state."""
    return with_meta_entry(meta, _STATE_ENTRY, state.model_dump(mode="json"))


def set_target_pointer(engine: Engine, source: IndexState, target: str | None) -> None:
    """Set or remove the pointer from the old index to the new one.

    Args:
        source: The old index as it was read, with its previous pointer.
        target: Name of the new index; None to remove the previous pointer.

    Raises:
        IndexMismatch: another process has begun a migration since.
        IndexMissing, EngineError: see `update_mapping`.
    """
    previous = read_target_pointer(source)

    def plan(index: IndexState) -> Json | None:
        stored = read_target_pointer(index)
        if stored == target or (target is None and stored != previous):
            return None
        if stored not in (None, previous):
            raise IndexMismatch(
                f"another process has begun to migrate {source.name} to {stored}",
                "Let it finish: one migration of an index at a time.",
            )
        return {"_meta": with_meta_entry(index.mappings.get("_meta", {}), _POINTER_ENTRY, target)}

    update_mapping(engine, source, plan)


def taken_over_error(target: str) -> IndexMismatch:
    """Return the error for a migration that another process works on now."""
    remedy = "Let it finish: one migration of an index at a time."
    return IndexMismatch(f"another process has taken over the migration to {target}, or removed it", remedy)


@dataclass
class MigrationStateStore:
    """Reads and writes the stored state of one migration.

    Args:
        target: The new index.
        state: The state as this process knows it.
        retrying: Retries each change.
    """

    _engine: Engine
    _target: IndexState
    state: MigrationState
    _retrying: Retrier
    _is_deferred: bool = False

    @contextmanager
    def defer_writes(self) -> Iterator[None]:
        """Keep changes in memory while the block runs; the next change after it writes them too.

        Each change updates the cluster state, which takes longer than all other steps while writes are blocked. If the
        process is killed in the block, the next one repeats these steps.
        """
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def write(self, **changed: object) -> None:
        """Change the state; a new `run` takes the migration over from the process that has begun it.

        Raises:
            IndexMismatch: the index was deleted, or another process has taken the migration over.
        """
        changed_state = self.state.model_copy(update=changed)
        if not self._is_deferred:
            self._put(changed_state, recheck=not changed.keys().isdisjoint(("phase", "run")))
        self.state = changed_state

    def _put(self, state: MigrationState, *, recheck: bool) -> None:
        """Write the state.

        Args:
            recheck: See `update_mapping`. Progress does not need it, because it is written again soon.
        """

        def plan(target: IndexState) -> Json | None:
            stored = read_migration_state(target)
            # If there is no state, another machine has erased it. A new run takes over the state that it has read.
            if stored is not None and stored.run != state.run and stored != self.state:
                raise taken_over_error(target.name)
            if stored == state:
                return None
            return {"_meta": with_migration_state(target.mappings.get("_meta", {}), state)}

        try:
            self._retrying(lambda: update_mapping(self._engine, self._target, plan, recheck=recheck))
        except IndexMissing as error:
            raise taken_over_error(self._target.name) from error

    def is_ours(self) -> bool:
        """Whether no other process has taken the migration over.

        Raises:
            EngineError: the engine failed.
        """
        target = self._retrying(lambda: self._engine.get_index(self._target.name))
        stored = None if target is None else read_migration_state(target)
        return stored is not None and stored.run == self.state.run


@contextmanager
def migration_lock(url: str, alias: str) -> Iterator[None]:
    """Keep out other processes while the block runs; the system releases the lock even if this process is killed.

    Args:
        url: Address of the engine. If there are several, separated by commas, each is locked: another process may name
            other nodes of the same cluster, or name them in another order.

    Raises:
        UsageError: another process is migrating the same alias.
        OutputError: the cache folder cannot be written.
    """
    busy = UsageError(f"another process is migrating {alias}", "Let it finish, or stop it first.")
    with ExitStack() as locks:
        for address in sorted(set(split_addresses(url))):
            path = cache_folder() / f"migrate-{hashlib.sha256(f'{address} {alias}'.encode()).hexdigest()[:32]}.lock"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            except OSError as error:
                remedy = "Set ES_SBERT_CACHE to a folder that this user can write to."
                raise OutputError(f"the lock file {path} cannot be written: {error.strerror}", remedy) from error
            locks.enter_context(file_lock(path, busy))
        yield
