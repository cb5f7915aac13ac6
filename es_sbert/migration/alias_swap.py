"""Block writes to the old index, swap the aliases, and remove the index that is no longer needed.

After the swap the block stays, so that a late write fails and the client repeats it through the alias. If there is no
swap, this process or the next one removes the block. It may only do so if no swap can follow: a swap request may still
be queued in the engine, or another process may be about to send one. Therefore the swap removes a hidden alias of the
new index, the permit, and fails if it is gone. A block is removed only after its permit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState, ShardState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import is_transient, without_retries
from es_sbert.errors import EsSbertError, IndexMismatch, IndexMissing, RequestFailed
from es_sbert.index.hidden_documents import count_all_documents
from es_sbert.migration.document_copy import MigrationContext
from es_sbert.migration.migration_state import (
    WRITE_BLOCK_SETTING,
    MigrationPhase,
    check_none_begun,
    existing_indices,
    find_begun,
    find_migration,
    find_target,
    kept_by,
    put_migration_state,
    read_migration_state,
    read_target_pointer,
    set_target_pointer,
)


def swap_actions(source: str, target: str, aliases: Mapping[str, Json]) -> list[Json]:
    """Build the actions that move all aliases of the old index to the new one, with filter, routing and write flag.

    Read and write aliases of one index move together; otherwise writes would be lost. If an alias is no longer on the
    old index, the engine rejects the whole request.

    Args:
        aliases: Alias → properties, of the old index.
    """
    actions: list[Json] = []
    for alias, properties in sorted(aliases.items()):
        actions.append({"remove": {"index": source, "alias": alias, "must_exist": True}})
        actions.append({"add": {"index": target, "alias": alias, **properties}})
    return actions


def replace_index_actions(
    source: str, target: str, aliases: Mapping[str, Json], *, is_hidden: bool = False
) -> list[Json]:
    """Build the actions that delete the old index and make its name an alias of the new one.

    Args:
        aliases: Alias → properties, of the old index.
        is_hidden: Whether the old index is hidden from patterns (`index.hidden`), so that the alias must be, too.
    """
    moved = [{"add": {"index": target, "alias": alias, **properties}} for alias, properties in sorted(aliases.items())]
    name = {"index": target, "alias": source} | ({"is_hidden": True} if is_hidden else {})
    return [{"remove_index": {"index": source}}, {"add": name}, *moved]


_POLL_SECONDS = 0.1
# Requests that resolved the alias before the swap arrive at the old index within this time.
_IDLE_SECONDS = 2.0


def wait_until_replicated(context: MigrationContext) -> None:
    """Wait until every write to the old index is on all copies of its shards, or the migration is stopped.

    Raises:
        RequestFailed: the writes take longer than the policy allows.
        EngineError: the engine failed.
    """
    deadline = time.monotonic() + context.policy.budget
    if not _is_replicated(context.changes.states()):
        # Flush, because with an asynchronous translog, a write counts only once the translog is on disk, which may take
        # five seconds.
        context.retrying(context.engine.flush, context.source)
    while not (_is_replicated(context.changes.states()) or context.control.stop_reading.is_set()):
        if time.monotonic() > deadline:
            remedy = "Look at `GET _cluster/health`, and run the same command again."
            raise RequestFailed(f"writes to {context.source} have not reached its replicas", remedy)
        time.sleep(_POLL_SECONDS)


def _is_replicated(shards: Mapping[int, ShardState]) -> bool:
    return all(shard.max_seq_no == shard.global_checkpoint for shard in shards.values())


def wait_until_idle(context: MigrationContext) -> None:
    """Wait until clients that resolved the alias before the swap no longer write to the old index.

    If they never stop, wait as long as the policy allows.

    Raises:
        EngineError: the engine failed.
    """
    deadline = time.monotonic() + context.policy.budget
    seen, since = _write_positions(context), time.monotonic()
    while time.monotonic() - since < _IDLE_SECONDS and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        positions = _write_positions(context)
        if positions != seen:
            seen, since = positions, time.monotonic()


def _write_positions(context: MigrationContext) -> list[tuple[str, int]]:
    """History and last sequence number of each shard of the old index."""
    return [(shard.history, shard.max_seq_no) for shard in context.changes.states().values()]


_ALIAS_NOT_FOUND = 404


@dataclass
class WriteBlock:
    """A block of writes to the old index.

    Attributes:
        permit: The alias that the swap has to remove.
        began: Time at which the block was requested, by `time.monotonic`.
        seconds: Seconds for which writes were blocked, by the clock of this process; 0 while they are.
    """

    permit: str
    began: float = 0.0
    seconds: float = 0.0


class HoldExpired(Exception):
    """Writes were blocked for as long as allowed, but there is more to do before the swap."""


@contextmanager
def block_writes(
    context: MigrationContext, block: WriteBlock, is_swapped: Callable[[], bool], max_seconds: float
) -> Iterator[None]:
    """Block writes to the old index in the body of the `with` statement, and after it if the aliases have moved.

    A block that another program has set stays.

    Args:
        block: The block to set; its times are set here.
        is_swapped: Whether the aliases have moved.
        max_seconds: Seconds to wait for writes in flight.

    Raises:
        IndexMissing: the old index is gone.
        HoldExpired: writes in flight did not end in time.
        EngineError: the engine did not block writes, or could not remove the block.
    """
    source, store = context.source, context.state_store
    state = context.retrying(context.engine.get_index, source)
    if state is None:
        raise IndexMissing(f"the index {source} is gone", "Find out who deleted it.")
    is_foreign = state.has_setting(WRITE_BLOCK_SETTING)
    store.write(phase=MigrationPhase.CLOSING, blocked=not is_foreign, permit=block.permit)
    permit = {"index": context.target, "alias": block.permit, "is_hidden": True}
    context.retrying(context.engine.update_aliases, [{"add": permit}])
    begin = block.began = time.monotonic()
    context.report(f"Writes to {source} are refused from now until the swap")
    failure: BaseException | None = None
    try:
        if not is_foreign:
            try:
                # Not retried: clients' writes are refused during the wait.
                context.engine.block_writes(source, max_seconds)
            except RequestFailed as error:
                if not is_transient(error):
                    raise
                raise HoldExpired(error.message) from error
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        try:
            _end_block(context, block, is_swapped)
        except EsSbertError as error:
            # Report the first error, with the reason why the block stays.
            reported = failure if isinstance(failure, EsSbertError) else error
            reason = f" ({error.message})" if reported is not error else ""
            reported.add_note(
                f"writes to {source} are still refused{reason}; once the engine answers, run the same command again to "
                f"resume and remove the block, or cancel it: `es-sbert index migrate {store.state.alias} --cancel`"
            )
            if failure is None or isinstance(failure, HoldExpired):
                raise
        finally:
            block.seconds = block.seconds or time.monotonic() - begin
    context.report(f"Writes were refused for {block.seconds:.2f} s")


def _end_block(context: MigrationContext, block: WriteBlock, is_swapped: Callable[[], bool]) -> None:
    """Remove the block unless the aliases have moved.

    Raises:
        EsSbertError: the block cannot be removed.
    """
    store = context.state_store
    if context.retrying(is_swapped):
        return
    # If the permit is gone, there was a swap after all, or another process has taken over the migration, or a request
    # whose response was lost has removed the permit.
    removed = context.retrying(remove_permit, context.engine, context.target, block.permit) or store.is_ours()
    if removed and not context.retrying(is_swapped) and store.state.blocked:
        context.retrying(context.engine.put_settings, context.source, {WRITE_BLOCK_SETTING: None})
        block.seconds = time.monotonic() - block.began
        store.write(blocked=False)


def permit_name(target: str, attempt: str) -> str:
    """The alias that a swap removes. Each attempt has its own: the swap of an earlier one may still be queued."""
    return f"{target}.swap-{attempt[:12]}"


def remove_permit(engine: Engine, target: str, permit: str) -> bool:
    """Make sure that no swap with this permit can follow; False if the permit was gone already.

    Raises:
        EngineError: the engine failed.
    """
    try:
        engine.update_aliases([use_permit_action(target, permit)])
    except RequestFailed as error:
        if error.status != _ALIAS_NOT_FOUND:
            raise
        return False
    return True


def remove_leftover_block(engine: Engine, alias: str) -> str | None:
    """Remove the write block of a run that was killed before the swap.

    Returns:
        The index that accepts writes again; None if there was nothing to do.

    Raises:
        IndexMismatch: the alias points to several indices, or a stored state is damaged.
        EngineError: the engine failed.
    """
    source = engine.get_index(alias)
    found = None if source is None else find_target(engine, source)
    return None if source is None or found is None else remove_stale_block(engine, source, found[0])


def remove_stale_block(engine: Engine, source: IndexState, target: IndexState) -> str | None:
    """Like `remove_leftover_block`, for known indices; the alias points to `source`."""
    state = read_migration_state(target)
    if state is None or state.source_uuid != source.uuid or not state.blocked:
        return None
    if state.permit and not remove_permit(engine, target.name, state.permit):
        # A swap has just used the permit, or a run was killed after it removed the permit and before the block.
        now = engine.get_index(state.alias)
        if now is None or now.name != source.name:
            return None
    if not source.has_setting(WRITE_BLOCK_SETTING):
        return None
    engine.put_settings(source.name, {WRITE_BLOCK_SETTING: None})
    return source.name


def use_permit_action(target: str, permit: str) -> Json:
    """The action that uses up a permit, and that makes a swap fail if the permit is gone."""
    return {"remove": {"index": target, "alias": permit, "must_exist": True}}


def roll_back(engine: Engine, alias: str) -> str | None:
    """Delete the new index of a migration before the swap; no search has used it.

    Returns:
        Its name; None if there is no migration.

    Raises:
        IndexMissing, IndexMismatch: the alias does not exist, the swap is done, or a rollback was begun.
        EngineError: the engine failed.
    """
    source, _ = find_migration(engine, alias)
    begun = find_begun(engine, source)
    if begun is not None and (begun.is_swapped or begun.state.is_rollback):
        # The target of a rollback is not deleted: it is the old index, which was searched before.
        raise begun.error()
    name = read_target_pointer(source)
    if name is None:
        return None
    found = find_target(engine, source)
    if found is not None:
        target, state = found
        if engine.get_aliases(name).get(name, {}).keys() - {state.permit}:
            raise IndexMismatch(f"the index {name} has aliases, so it is in use", "Remove its aliases first.")
        remove_stale_block(engine, source, target)
        current = engine.get_index(alias)
        if current is None or current.name != source.name:
            raise IndexMismatch(
                f"another process has just swapped {alias}", "Run the same command again to see what remains."
            )
        engine.delete_index(name)
    set_target_pointer(engine, source, None)
    return name


def drop_old_index(engine: Engine, alias: str, confirm: Callable[[str, int], bool]) -> list[str]:
    """Delete the old index of a finished migration, and those that earlier migrations of the alias have kept.

    Args:
        confirm: Decides whether to delete an index; gets its name and its number of documents.

    Returns:
        The names of the deleted indices; empty if none was confirmed, or if they are gone already.

    Raises:
        IndexMissing, IndexMismatch: the alias does not exist, has no finished migration, or has one or a rollback that
            is not finished; an index is in use, or it holds documents that are hidden from this user, which a migration
            cannot have copied.
        EngineError: the engine failed.
    """
    target, state = find_migration(engine, alias)
    check_none_begun(engine, target)
    if state is None:
        reason = f"{alias} points to {target.name}, which no migration has created, or whose old index is gone"
        raise IndexMismatch(reason, "There is nothing to drop.")
    deleted: list[str] = []
    # The oldest first: the state names all of them until the last one is gone.
    for index in reversed(existing_indices(engine, kept_by(state))):
        aliases = engine.get_aliases(index.name).get(index.name)
        if aliases:
            raise IndexMismatch(f"{index.name} still has the alias {min(aliases)}, so it is in use", "Remove it first.")
        if not confirm(index.name, count_all_documents(engine, index.name, without_retries)):
            return deleted
        engine.delete_index(index.name)
        deleted.append(index.name)
    current = engine.get_index(target.name)
    if current is not None:
        put_migration_state(engine, current, None)
    return deleted
