"""Block writes to the old index, swap the aliases, and cancel a migration.

After the swap the block stays, so that a late write fails and the client repeats it through the alias. If there is no
swap, this process or the next one removes the block. It may only do so if no swap can follow: a swap request may still
be queued in the engine, or another process may be about to send one. Therefore the swap removes a hidden alias of the
new index, the permit, and fails if it is gone. A block is removed only after its permit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from es_sbert.arguments import check_arguments
from es_sbert.engines.connect import EngineOrClient, connected
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState, ShardState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import is_transient
from es_sbert.errors import EsSbertError, IndexMismatch, RequestFailed, renamed_setting
from es_sbert.index.vector_field import require_index
from es_sbert.migration.document_copy import MigrationContext
from es_sbert.migration.migration_state import (
    WRITE_BLOCK_SETTING,
    BegunMigration,
    MigrationPhase,
    find_begun,
    find_target,
    migration_lock,
    replaced_error,
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
        context.engine.flush(context.source)
    while not (_is_replicated(context.changes.states()) or context.control.stop_reading.is_set()):
        if time.monotonic() > deadline:
            remedy = "Look at `GET _cluster/health`, and run the same command again."
            raise RequestFailed(f"writes to {context.source} have not reached its replicas", remedy)
        time.sleep(_POLL_SECONDS)


def _is_replicated(shards: Mapping[int, ShardState]) -> bool:
    return all(shard.max_seq_no == shard.global_checkpoint for shard in shards.values())


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
def block_writes(context: MigrationContext, block: WriteBlock, max_seconds: float) -> Iterator[None]:
    """Block writes to the old index in the body of the `with` statement, and after it if the aliases have moved.

    A block that another program has set stays.

    Args:
        block: The block to set; its times are set here.
        max_seconds: Seconds to wait for writes in flight.

    Raises:
        IndexMissing: the old index is gone.
        HoldExpired: writes in flight did not end in time.
        EngineError: the engine did not block writes, or could not remove the block.
    """
    source, store = context.source, context.state_store
    state = context.engine.get_index(source)
    if state is None:
        raise context.engine.index_missing(source, f"the index {source} is gone", "Find out who deleted it.")
    is_foreign = state.has_setting(WRITE_BLOCK_SETTING)
    store.write(phase=MigrationPhase.CLOSING, blocked=not is_foreign, permit=block.permit)
    permit = {"index": context.target, "alias": block.permit, "is_hidden": True}
    context.retrying(lambda: context.unretried.update_aliases([{"add": permit}]))
    begin = block.began = time.monotonic()
    context.report(f"Writes to {source} are refused from now until the swap")
    failure: BaseException | None = None
    try:
        if not is_foreign:
            try:
                # Not retried: clients' writes are refused during the wait.
                context.unretried.block_writes(source, max_seconds)
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
            _end_block(context, block)
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


def _end_block(context: MigrationContext, block: WriteBlock) -> None:
    """Remove the block unless the aliases have moved.

    Raises:
        EsSbertError: the block cannot be removed.
    """
    store = context.state_store
    if context.is_swapped():
        return
    # If the permit is gone, there was a swap after all, or another process has taken over the migration, or a request
    # whose response was lost has removed the permit.
    removed = context.retrying(lambda: remove_permit(context.unretried, context.target, block.permit))
    if (removed or store.is_ours()) and not context.is_swapped() and store.state.blocked:
        context.engine.put_settings(context.source, {WRITE_BLOCK_SETTING: None})
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
    if source is None or found is None or not found[1].blocked:
        return None
    target, state = found
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


@check_arguments
@renamed_setting("index", "name")
def cancel_migration(name: str, engine: EngineOrClient = None) -> tuple[str, str]:
    """Cancel a migration that has not moved the aliases yet.

    Usage:
        ```python
        source, target = cancel_migration("docs", "http://localhost:9200")
        print(source)
        ```

    Args:
        name: The alias, or the index from which or to which it goes.
        engine: As for `SemanticIndex`.

    Returns:
        The index of the alias, which stays in use, and the new index that was deleted.

    Raises:
        IndexMissing, IndexMismatch: the index does not exist, or nothing can be cancelled.
        UsageError: another process on this machine is running it.
        EngineError: the engine failed; the same call cancels what is left.
    """
    with connected(engine) as opened:
        alias = _find_cancellable(opened, require_index(opened, name), name).state.alias
        with migration_lock(opened.info.url, alias):
            index = require_index(opened, alias)
            begun = _find_cancellable(opened, index, alias)
            target, state = begun.target, begun.state
            in_use = opened.get_aliases(target.name).get(target.name, {}).keys() - {state.permit}
            if in_use:
                raise IndexMismatch(
                    f"the index {target.name} has the alias {min(in_use)}, so it is in use", "Remove its aliases first."
                )
            remove_leftover_block(opened, alias)
            current = opened.get_index(alias)
            if current is None or current.name != index.name:
                raise IndexMismatch(
                    f"another process has just swapped {alias}", "Run the same command again to see what remains."
                )
            opened.delete_index(target.name)
            set_target_pointer(opened, index, None)
    return index.name, target.name


def _find_cancellable(engine: Engine, index: IndexState, name: str) -> BegunMigration:
    """Find the migration to cancel."""
    begun = find_begun(engine, index)
    if begun is None:
        is_blocked = index.has_setting(WRITE_BLOCK_SETTING)
        remove_block = f'No migration refuses writes: `PUT {index.name}/_settings {{"{WRITE_BLOCK_SETTING}": null}}`.'
        raise replaced_error(engine, index) or IndexMismatch(
            f"no migration of {name} is in progress", remove_block if is_blocked else "There is nothing to cancel."
        )
    if begun.is_orphaned or begun.is_swapped:
        raise begun.error()
    return begun
