"""Go back to the old index of a finished migration, and find, list and delete the indices that migrations have kept.

A rollback is a migration whose new index exists already. The old index has taken no writes since the swap, so it lacks
only the later writes to the new one. These are copied and embedded with the old model, and the aliases are swapped with
the same guarantees as in the migration.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import cast

from pydantic import BaseModel

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Retrier, RetryingEngine, without_retries
from es_sbert.errors import IndexMismatch
from es_sbert.index.hidden_documents import count_all_documents
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.mapping import bytes_as_floats, merge_field_meta, vector_fields
from es_sbert.index.source_mode import check_source_is_whole
from es_sbert.index.vector_field import require_index
from es_sbert.migration.alias_swap import remove_permit, remove_stale_block, roll_back
from es_sbert.migration.compare_indices import FINAL_PIPELINE, rollback_differences
from es_sbert.migration.migration_state import (
    WRITE_BLOCK_SETTING,
    BegunMigration,
    MigrationPhase,
    MigrationState,
    MigrationStateStore,
    check_none_begun,
    existing_indices,
    find_begun,
    find_migration,
    find_unfinished,
    kept_by,
    migration_lock,
    put_migration_state,
    read_migration_state,
    replaced_error,
    set_target_pointer,
    vector_field_names,
)
from es_sbert.migration.prepare_migration import (
    MigrationRequest,
    PreparedMigration,
    check_migration_privileges,
    check_no_load,
    resume_migration,
)


class KeptIndex(BaseModel, frozen=True):
    """An index that a migration of an alias has kept.

    Attributes:
        name: Name of the index.
        model: The model of its vectors; empty if there are none.
        documents: Number of documents in it.
        blocked: Whether writes to it are blocked.
        is_previous: Whether `rollback` goes back to it.
    """

    name: str
    model: str
    documents: int
    blocked: bool
    is_previous: bool


def find_kept(engine: Engine, alias: str) -> list[IndexState]:
    """Find the indices that migrations of an alias have kept, the most recent first.

    Raises:
        IndexMissing, IndexMismatch: the alias does not exist, or a stored state is damaged.
        EngineError: the engine failed.
    """
    _, state = find_migration(engine, alias)
    return existing_indices(engine, kept_by(state))


def list_kept(engine: Engine, alias: str) -> list[KeptIndex]:
    """Like `find_kept`, with details of each index for the user."""
    kept = []
    for number, index in enumerate(find_kept(engine, alias)):
        models = sorted({meta.model for meta in vector_fields(bytes_as_floats(index).mappings, index.name).values()})
        blocked = index.has_setting(WRITE_BLOCK_SETTING)
        documents = engine.count(index.name)
        kept.append(KeptIndex(
            name=index.name, model=", ".join(models), documents=documents, blocked=blocked, is_previous=not number
        ))  # fmt: skip
    return kept


@dataclass(frozen=True)
class RollbackTarget:
    """The index that a rollback goes back to.

    Attributes:
        index: The index.
        fields: Its vector fields that get vectors of its model; empty if it has none.
        other_fields: Its vector fields of other models; documents written since the removal have no vectors in them.
    """

    index: IndexState
    fields: tuple[str, ...]
    other_fields: tuple[str, ...] = ()


def find_rollback(engine: Engine, alias: str, vector_field: str = "") -> RollbackTarget | None:
    """Find the target of a rollback after the swap; None if a migration is in progress and has not swapped yet.

    Args:
        vector_field: To roll back a removal of all vectors: the field whose model is used again.

    Raises:
        IndexMissing, IndexMismatch: the alias does not exist, or there is nothing to go back to.
        EngineError: the engine failed.
    """
    index, state = find_migration(engine, alias)
    if state is not None and state.phase is MigrationPhase.CLOSING:
        if state.is_rollback:
            return RollbackTarget(index, state.fields)
        check_none_begun(engine, index)
    begun = find_unfinished(engine, index)
    if begun is not None:
        return RollbackTarget(begun[0], begun[1].fields) if begun[1].is_rollback else None
    kept = existing_indices(engine, kept_by(state)[:1])
    if state is None or not kept:
        raise IndexMismatch(
            f"no migration of {alias} is under way, and none has kept the index before {index.name}",
            "There is nothing to go back to: migrate to the old model.",
        )
    if state.fields and not vector_fields(kept[0].mappings, kept[0].name):
        raise IndexMismatch(
            f"{kept[0].name}, the index before {index.name}, has no vectors",
            f"To remove them again: `es-sbert index remove {alias} --reindex --name NEW-NAME`.",
        )
    return _all_fields(kept[0], vector_field) if state.removed else RollbackTarget(kept[0], state.fields)


def _all_fields(index: IndexState, vector_field: str) -> RollbackTarget:
    """Return the target of the rollback of a removal. Only one model is used: that of this field, or of the first."""
    fields = vector_fields(index.mappings, index.name)
    chosen = fields.get(vector_field) or next(iter(fields.values()), None)
    own = [name for name, meta in fields.items() if chosen is not None and meta.fingerprint == chosen.fingerprint]
    return RollbackTarget(index, tuple(own), tuple(name for name in fields if name not in own))


def prepare_rollback(
    engine: Engine, wanted: MigrationRequest, encoder: Encoder | None, retrying: Retrier = without_retries
) -> PreparedMigration:
    """Resume a rollback, or begin one. The old index then takes writes again, from this process only.

    Raises:
        IndexMissing, IndexMismatch, UsageError: the rollback is not possible; nothing was changed.
        EngineError: the engine failed.
    """
    plain, engine = engine, cast(Engine, RetryingEngine(engine, retrying))
    found = find_rollback(engine, wanted.alias, wanted.vector_field)
    if found is None:
        raise IndexMismatch(f"a migration of {wanted.alias} was begun by another process", "Let it finish.")
    target = found.index
    index, previous = find_migration(engine, wanted.alias)
    state = read_migration_state(target)
    if encoder is not None:
        _check_model(target, found.fields, wanted, encoder)
    if state is not None and state.is_rollback and state.phase is not MigrationPhase.DONE:
        source = engine.get_index(state.source)
        if source is not None and index.name == source.name:
            retrying(lambda: _open_for_writes(plain, target))
        return resume_migration(plain, target, state, source, retrying)
    assert previous is not None, "find_rollback has found the index by the state of the migration"
    _check_indices(engine, index, found, previous)
    check_migration_privileges(engine, index.name, wanted.alias, target.name)
    count_all_documents(engine, index.name, without_retries)
    begun = _begun_state(index, found, previous, state, wanted.alias)
    # Set the pointer first: the next run finds the rollback by it.
    retrying(lambda: set_target_pointer(plain, index, target.name))
    retrying(lambda: set_target_pointer(plain, target, None))
    retrying(lambda: _add_fields(plain, index, target))
    retrying(lambda: put_migration_state(plain, target, begun))
    retrying(lambda: _open_for_writes(plain, target))
    fields = {name: meta for name, meta in vector_fields(target.mappings, target.name).items() if name in begun.fields}
    store = MigrationStateStore(plain, target, begun, retrying)
    notes = tuple(
        f"Documents written since the removal have no vector in {name}: `es-sbert ingest --index {wanted.alias} "
        f"--vector-field {name}`"
        for name in found.other_fields
    )
    differences = rollback_differences(index, target)
    if differences:
        notes += (f"Settings of {target.name} that differ from those of {index.name}: {'; '.join(differences)}",)
    return PreparedMigration(index, target, fields, store, resumed=False, notes=notes)


def _begun_state(
    index: IndexState, found: RollbackTarget, previous: MigrationState, old: MigrationState | None, alias: str
) -> MigrationState:
    """Return the state of a new rollback.

    Args:
        index, found: The index of the alias, and the one to go back to.
        previous: State of the migration that has swapped these two.
        old: State of the migration that created the index to go back to; None if no migration did.
    """
    target = found.index
    is_frozen = previous.blocked and target.has_setting(WRITE_BLOCK_SETTING)
    # If the old index could take writes, it may contain writes that were not copied, so everything is copied.
    known = is_frozen and len(previous.carried) == index.shards
    own = {target.uuid, index.uuid}
    kept = dict.fromkeys([*kept_by(previous), *kept_by(old)])
    return MigrationState(
        alias=alias,
        source=index.name,
        source_uuid=index.uuid,
        fields=found.fields,
        run=uuid.uuid4().hex,
        copied=previous.carried if known else (-1,) * index.shards,
        histories=previous.carried_histories if known else (),
        deletions=True,
        is_rollback=True,
        final_pipeline=target.setting(FINAL_PIPELINE),
        kept=tuple(each for each in kept if each[1] not in own),
        target=target.name,
    )


@dataclass(frozen=True)
class CancelledMigration:
    """A migration or a rollback that was cancelled.

    Attributes:
        index: The index of the alias, which stays in use.
        target: The index that it went to: deleted if a migration had created it, kept if a rollback went back to it.
        is_rollback: Whether it was a rollback.
    """

    index: str
    target: str
    is_rollback: bool


_CANCEL_SECONDS = 10.0  # to wait for writes of a rollback on another machine


def cancel_migration(engine: Engine, name: str) -> CancelledMigration:
    """Cancel a migration or a rollback that has not moved the aliases yet.

    Args:
        name: The alias, or the index from which or to which it goes.

    Raises:
        IndexMissing, IndexMismatch: the index does not exist, or nothing can be cancelled.
        UsageError: another process on this machine is running it.
        EngineError: the engine failed; the same call cancels what is left.
    """
    index, finished = find_migration(engine, name)
    begun = find_begun(engine, index)
    if begun is None:
        raise replaced_error(engine, index) or _nothing_begun_error(index, finished, name)
    if begun.is_orphaned:
        raise begun.error()
    with migration_lock(engine.info.url, begun.state.alias):
        return _cancel(engine, begun.state.alias)


def _nothing_begun_error(index: IndexState, finished: MigrationState | None, name: str) -> IndexMismatch:
    remedy = "There is nothing to cancel."
    if finished is not None:
        command = f"es-sbert index migrate {name}"
        remedy = f"The indices that migrations have kept: `{command} --list`. To delete them: `{command} --drop`."
    if index.has_setting(WRITE_BLOCK_SETTING):
        remedy = f'No migration refuses writes: `PUT {index.name}/_settings {{"{WRITE_BLOCK_SETTING}": null}}`.'
    return IndexMismatch(f"no migration or rollback of {name} is in progress", remedy)


def _cancel(engine: Engine, alias: str) -> CancelledMigration:
    index, finished = find_migration(engine, alias)
    begun = find_begun(engine, index)
    if begun is None:
        raise _nothing_begun_error(index, finished, alias)
    if begun.state.is_rollback and not begun.is_swapped:
        _cancel_rollback(engine, index, begun)
    else:
        roll_back(engine, alias)
    return CancelledMigration(index.name, begun.target.name, begun.state.is_rollback)


def _cancel_rollback(engine: Engine, index: IndexState, begun: BegunMigration) -> None:
    """Make the old index again what it was before the rollback, with the documents that were copied to it."""
    # From now on, no other process may work on the rollback, and no swap can follow.
    state = begun.state.model_copy(update={"run": uuid.uuid4().hex})
    put_migration_state(engine, begun.target, state)
    target = require_index(engine, begun.target.name)
    remove_stale_block(engine, index, target)
    if state.permit:
        remove_permit(engine, target.name, state.permit)
    if engine.get_aliases(target.name).get(target.name):
        raise IndexMismatch(
            f"another process has just swapped {state.alias}", "Run the same command again to see what remains."
        )
    if state.final_pipeline is not None:
        engine.put_settings(target.name, {FINAL_PIPELINE: state.final_pipeline})
    previous = read_migration_state(index)
    if previous is not None:
        if previous.blocked:
            engine.block_writes(target.name, _CANCEL_SECONDS)
        # The next rollback copies what this one has not.
        carried = {"carried": state.copied, "carried_histories": state.histories}
        put_migration_state(engine, index, previous.model_copy(update=carried))
    set_target_pointer(engine, target, index.name)
    put_migration_state(engine, target, state.model_copy(update={"phase": MigrationPhase.DONE}))
    set_target_pointer(engine, require_index(engine, index.name), None)


def _open_for_writes(engine: Engine, target: IndexState) -> None:
    """Remove the block that the swap has left on the old index. No client writes to it: no alias points to it."""
    if target.has_setting(WRITE_BLOCK_SETTING):
        engine.put_settings(target.name, {WRITE_BLOCK_SETTING: None})


def _check_model(target: IndexState, names: tuple[str, ...], wanted: MigrationRequest, encoder: Encoder) -> None:
    fields = vector_fields(target.mappings, target.name)
    own = [fields[name] for name in names if name in fields]
    other = next((meta for meta in own if meta.fingerprint != encoder.info.fingerprint), None)
    if other is not None:
        raise IndexMismatch(
            f"{target.name} holds vectors of the model {other.model} ({other.fingerprint[:12]}), not of "
            f"{encoder.info.model} ({encoder.info.fingerprint[:12]})",
            f"Leave `model` out, or set it to that model: `es-sbert index migrate {wanted.alias} --rollback`.",
        )


def _check_indices(engine: Engine, index: IndexState, found: RollbackTarget, previous: MigrationState) -> None:
    """Refuse indices between which documents cannot be carried over.

    Raises:
        IndexMismatch: the old index is in use or read-only, or the new one lacks what is to be copied.
    """
    target = found.index
    aliases = engine.get_aliases(target.name).get(target.name)
    if aliases:
        raise IndexMismatch(f"{target.name} has the alias {min(aliases)}, so it is in use", "Remove that alias first.")
    if not previous.blocked and target.has_setting(WRITE_BLOCK_SETTING):
        raise IndexMismatch(
            f"{target.name} was read-only before the migration, so nothing can be carried over to it",
            f'Allow writes: `PUT {target.name}/_settings` with {{"{WRITE_BLOCK_SETTING}": null}}.',
        )
    for state in (index, target):
        check_no_load(state)
    check_source_is_whole(index, vector_field_names(found.fields))
    gone = [name for name in found.fields if name not in vector_fields(target.mappings, target.name)]
    if gone:
        raise IndexMismatch(
            f"the mapping of {target.name} no longer says what {gone[0]} contains", "Migrate to the old model instead."
        )


def _add_fields(engine: Engine, index: IndexState, target: IndexState) -> None:
    """Add the fields that the new index has gained since the swap to the old one, with their entries in `_meta`."""
    theirs = vector_fields(index.mappings, index.name)

    def plan(state: IndexState) -> Json | None:
        added = _missing_properties(index.mappings.get("properties", {}), state.mappings.get("properties", {}))
        ours, meta = vector_fields(state.mappings, state.name), state.mappings.get("_meta", {})
        entries = {name: entry for name, entry in theirs.items() if name not in ours}
        for name, entry in entries.items():
            meta = merge_field_meta(meta, name, entry, is_new=name in added)
        return {"properties": added} | ({"_meta": meta} if entries else {}) if added or entries else None

    update_mapping(engine, target, plan)


def _missing_properties(wanted: Json, existing: Json) -> Json:
    """Return the fields of a mapping that another mapping lacks, inside their objects."""
    missing: Json = {}
    for name, field in wanted.items():
        if name not in existing:
            missing[name] = field
            continue
        for inner in ("properties", "fields"):
            below = _missing_properties(field.get(inner, {}), existing[name].get(inner, {}))
            if below:
                # The object is repeated with its type, which engines require.
                missing.setdefault(name, {key: value for key, value in existing[name].items() if key != "properties"})
                missing[name][inner] = below if inner == "properties" else existing[name].get(inner, {}) | below
    return missing
