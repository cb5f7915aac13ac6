"""Block writes to the old index, swap the aliases, and remove the index that is no longer needed.

After the swap the block stays, so that a late write fails and the client repeats it through the alias. If there is no
swap, this process or the next one removes the block. It may only do so if no swap can follow: a swap request may still
be queued in the engine, or another process may be about to send one. Therefore the swap removes a hidden alias of the
new index, the permit, and fails if it is gone. A block is removed only after its permit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from es_sbert.engines.protocol import Engine, IndexState, Json, SequenceNumbers
from es_sbert.errors import EsSbertError, IndexMismatch, IndexMissing, RequestFailed
from es_sbert.migration.document_copy import MigrationContext
from es_sbert.migration.migration_state import (
    MigrationPhase,
    find_migration,
    read_migration_state,
    read_target_pointer,
    set_target_pointer,
    with_migration_state,
)


def swap_actions(source: str, target: str, aliases: Mapping[str, Json]) -> list[Json]:
    """All aliases of the old index go to the new one, each with its filter, routing and write flag.

    Read and write aliases of one index stay together: with one of them left behind, writes would be lost. Where an
    alias is no longer on the old index, the whole request is refused.

    Args:
        aliases: Alias → properties, of the old index.
    """
    actions: list[Json] = []
    for alias, properties in sorted(aliases.items()):
        actions.append({"remove": {"index": source, "alias": alias, "must_exist": True}})
        actions.append({"add": {"index": target, "alias": alias, **properties}})
    return actions


def replace_index_actions(source: str, target: str, aliases: Mapping[str, Json]) -> list[Json]:
    """The old index is removed and its name becomes an alias of the new one."""
    moved = [{"add": {"index": target, "alias": alias, **properties}} for alias, properties in sorted(aliases.items())]
    return [{"remove_index": {"index": source}}, {"add": {"index": target, "alias": source}}, *moved]


_POLL_SECONDS = 0.1
# Requests that looked the alias up before the swap arrive at the old index within this time.
_IDLE_SECONDS = 2.0


def wait_until_replicated(context: MigrationContext) -> None:
    """Until every write that the old index has taken is on all copies.

    Raises:
        RequestFailed: it is not, for longer than the policy allows.
        EngineError: the engine failed.
    """
    deadline = time.monotonic() + context.policy.budget
    engine, source = context.engine, context.source
    if not _is_replicated(engine.sequence_numbers(source)):
        # With an asynchronous translog a write counts once the translog is on disk, which may be in five seconds.
        engine.flush(source)
    while not _is_replicated(engine.sequence_numbers(source)):
        if time.monotonic() > deadline:
            raise RequestFailed(
                f"writes to {context.source} are still on their way to its replicas",
                "Look at `GET _cluster/health`, and run the same command again.",
            )
        time.sleep(_POLL_SECONDS)


def _is_replicated(numbers: Sequence[SequenceNumbers]) -> bool:
    return all(number.max_seq_no == number.global_checkpoint for number in numbers)


def wait_until_idle(context: MigrationContext) -> None:
    """Until no more writes come to the old index by an alias that was looked up before the swap.

    Where they never end, as long as the policy allows.

    Raises:
        EngineError: the engine failed.
    """
    deadline = time.monotonic() + context.policy.budget
    seen, since = context.engine.sequence_numbers(context.source), time.monotonic()
    while time.monotonic() - since < _IDLE_SECONDS and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        numbers = context.engine.sequence_numbers(context.source)
        if numbers != seen:
            seen, since = numbers, time.monotonic()


WRITE_BLOCK_SETTING = "index.blocks.write"
_ALIAS_NOT_FOUND = 404


@dataclass
class WriteBlock:
    """One hold.

    Attributes:
        permit: The alias that the swap has to remove.
        seconds: How long writes were refused, by the clock of this process; 0 while they are.
    """

    permit: str
    seconds: float = 0.0

    def permit_action(self, target: str) -> Json:
        """The action that makes a swap fail where the permit is gone."""
        return _remove_alias_action(target, self.permit)


@contextmanager
def block_writes(
    context: MigrationContext, is_swapped: Callable[[], bool], say: Callable[[str], None]
) -> Iterator[WriteBlock]:
    """Refuse writes to the old index while the block runs, and after it if the aliases have moved.

    An index that somebody else has blocked stays blocked.

    Args:
        is_swapped: Whether the aliases have moved.
        say: Told of both ends.

    Raises:
        IndexMissing: the old index is gone.
        EngineError: the engine did not block writes, or could not lift the block.
    """
    source, state_store = context.source, context.state_store
    state = context.engine.get_index(source)
    if state is None:
        raise IndexMissing(f"the index {source} is gone", "Find out who deleted it.")
    hold = WriteBlock(permit_name(context.target, state_store.state.run))
    is_foreign = state.settings.get(WRITE_BLOCK_SETTING) == "true"
    state_store.write(phase=MigrationPhase.CLOSING, blocked=not is_foreign, permit=hold.permit)
    context.engine.update_aliases([{"add": {"index": context.target, "alias": hold.permit, "is_hidden": True}}])
    begin = time.monotonic()
    say(f"Writes to {source} are refused from now until the swap")
    try:
        if not is_foreign:
            # Not retried: writers are refused all the while.
            context.engine.block_writes(source)
        yield hold
    except BaseException as error:
        left = _end_block(context, hold, is_swapped)
        if left is not None and isinstance(error, EsSbertError):
            error.message += f"; writes to {source} are still refused ({left.message})"
            error.remedy = _blocked_remedy(context)
        hold.seconds = time.monotonic() - begin
        raise
    left = _end_block(context, hold, is_swapped)
    hold.seconds = time.monotonic() - begin
    if left is not None:
        left.message += f"; writes to {source} are still refused"
        left.remedy = _blocked_remedy(context)
        raise left
    say(f"Writes were refused for {hold.seconds:.2f} s")


def _end_block(context: MigrationContext, hold: WriteBlock, is_swapped: Callable[[], bool]) -> EsSbertError | None:
    """Lift the block unless the aliases have moved; the error, if it cannot be lifted."""
    try:
        if context.retrying(is_swapped):
            return None
        removed = context.retrying(lambda: remove_permit(context.engine, context.target, hold.permit))
        if removed and not is_swapped():
            context.retrying(
                lambda: remove_write_block(context.engine, context.source, blocked=context.state_store.state.blocked)
            )
    except EsSbertError as error:
        return error
    # Without the permit there was a swap after all, or another process has taken the migration over.
    return None


def permit_name(target: str, run: str) -> str:
    """The alias that one run's swap removes; another run has another one."""
    return f"{target}.swap-{run[:12]}"


def remove_permit(engine: Engine, target: str, permit: str) -> bool:
    """Make sure that no swap with this permit can follow; False where it was gone already.

    Raises:
        EngineError: the engine failed.
    """
    try:
        engine.update_aliases([_remove_alias_action(target, permit)])
    except RequestFailed as error:
        if error.status != _ALIAS_NOT_FOUND:
            raise
        return False
    return True


def remove_write_block(engine: Engine, source: str, *, blocked: bool) -> None:
    """Let the old index take writes again, if it was this migration that blocked them."""
    if blocked:
        engine.put_settings(source, {WRITE_BLOCK_SETTING: None})


def remove_leftover_block(engine: Engine, alias: str) -> str | None:
    """Lift the block of a run that was killed before the swap.

    Returns:
        The index that takes writes again; None where there was nothing to do.

    Raises:
        IndexMismatch: the alias points to several indices, or a note is damaged.
        EngineError: the engine failed.
    """
    source = engine.get_index(alias)
    name = None if source is None else read_target_pointer(source)
    target = None if name is None else engine.get_index(name)
    return None if source is None or target is None else remove_stale_block(engine, source, target)


def remove_stale_block(engine: Engine, source: IndexState, target: IndexState) -> str | None:
    """As `remove_leftover_block`, of a migration whose indices are known; the alias points to `source`."""
    note = read_migration_state(target)
    if note is None or note.source_uuid != source.settings["index.uuid"] or not note.blocked:
        return None
    if note.permit and not remove_permit(engine, target.name, note.permit):
        # It was used a moment ago, or a run was killed between removing it and lifting the block.
        now = engine.get_index(note.alias)
        if now is None or now.name != source.name:
            return None
    if source.settings.get(WRITE_BLOCK_SETTING) != "true":
        return None
    engine.put_settings(source.name, {WRITE_BLOCK_SETTING: None})
    return source.name


def _remove_alias_action(target: str, permit: str) -> Json:
    return {"remove": {"index": target, "alias": permit, "must_exist": True}}


def _blocked_remedy(context: MigrationContext) -> str:
    alias = context.state_store.state.alias
    return (
        f"Once the engine answers, run the same command again, which goes on and lifts the block, or give up by "
        f"`es-sbert index migrate {alias} --rollback`."
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


def drop_old_index(engine: Engine, alias: str, confirm: Callable[[IndexToDelete], bool]) -> str | None:
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
