"""Writes to the old index are held for the swap: refused from the block until the aliases have moved.

After the swap the block stays, so that a late write fails and its sender repeats it by the alias. Where there is no
swap, the block is lifted, by this process or by the next one. Whoever lifts it must know that no swap can follow: one
that was sent may still be waiting in the engine, and another process may be about to send one. So the swap needs a
permit, a hidden alias of the new index that the swap itself removes. A block is lifted only after its permit is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from es_sbert.engines.protocol import Engine, IndexState, Json
from es_sbert.errors import EsSbertError, IndexMissing, RequestFailed
from es_sbert.migration.copying import Transfer
from es_sbert.migration.state import Phase, pointed_to, read_migration

WRITE_BLOCK = "index.blocks.write"
_NO_SUCH_ALIAS = 404


@dataclass
class Hold:
    """One hold.

    Attributes:
        permit: The alias that the swap has to remove.
        seconds: How long writes were refused, by the clock of this process; 0 while they are.
    """

    permit: str
    seconds: float = 0.0

    def use_permit(self, target: str) -> Json:
        """The action that makes a swap fail where the permit is gone."""
        return _removal(target, self.permit)


@contextmanager
def held_writes(transfer: Transfer, is_swapped: Callable[[], bool], say: Callable[[str], None]) -> Iterator[Hold]:
    """Refuse writes to the old index while the block runs, and after it if the aliases have moved.

    An index that somebody else has blocked stays blocked.

    Args:
        is_swapped: Whether the aliases have moved.
        say: Told of both ends.

    Raises:
        IndexMissing: the old index is gone.
        EngineError: the engine did not block writes, or could not lift the block.
    """
    source, book = transfer.source, transfer.book
    state = transfer.engine.get_index(source)
    if state is None:
        raise IndexMissing(f"the index {source} is gone", "Find out who deleted it.")
    hold = Hold(permit_name(transfer.target, book.note.run))
    is_foreign = state.settings.get(WRITE_BLOCK) == "true"
    book.write(phase=Phase.CLOSING, blocked=not is_foreign, permit=hold.permit)
    transfer.engine.update_aliases([{"add": {"index": transfer.target, "alias": hold.permit, "is_hidden": True}}])
    begin = time.monotonic()
    say(f"Writes to {source} are refused from now until the swap")
    try:
        if not is_foreign:
            # Not retried: writers are refused all the while.
            transfer.engine.block_writes(source)
        yield hold
    except BaseException as error:
        left = _end(transfer, hold, is_swapped)
        if left is not None and isinstance(error, EsSbertError):
            error.message += f"; writes to {source} are still refused ({left.message})"
            error.remedy = _way_out(transfer)
        hold.seconds = time.monotonic() - begin
        raise
    left = _end(transfer, hold, is_swapped)
    hold.seconds = time.monotonic() - begin
    if left is not None:
        left.message += f"; writes to {source} are still refused"
        left.remedy = _way_out(transfer)
        raise left
    say(f"Writes were refused for {hold.seconds:.2f} s")


def _end(transfer: Transfer, hold: Hold, is_swapped: Callable[[], bool]) -> EsSbertError | None:
    """Lift the block unless the aliases have moved; the error, if it cannot be lifted."""
    try:
        if transfer.patiently(is_swapped):
            return None
        removed = transfer.patiently(lambda: remove_permit(transfer.engine, transfer.target, hold.permit))
        if removed and not is_swapped():
            transfer.patiently(lambda: lift_block(transfer.engine, transfer.source, blocked=transfer.book.note.blocked))
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
        engine.update_aliases([_removal(target, permit)])
    except RequestFailed as error:
        if error.status != _NO_SUCH_ALIAS:
            raise
        return False
    return True


def lift_block(engine: Engine, source: str, *, blocked: bool) -> None:
    """Let the old index take writes again, if it was this migration that blocked them."""
    if blocked:
        engine.put_settings(source, {WRITE_BLOCK: None})


def lift_left_behind(engine: Engine, alias: str) -> str | None:
    """Lift the block of a run that was killed before the swap.

    Returns:
        The index that takes writes again; None where there was nothing to do.

    Raises:
        IndexMismatch: the alias points to several indices, or a note is damaged.
        EngineError: the engine failed.
    """
    source = engine.get_index(alias)
    name = None if source is None else pointed_to(source)
    target = None if name is None else engine.get_index(name)
    return None if source is None or target is None else lift_of(engine, source, target)


def lift_of(engine: Engine, source: IndexState, target: IndexState) -> str | None:
    """As `lift_left_behind`, of a migration whose indices are known; the alias points to `source`."""
    note = read_migration(target)
    if note is None or note.source_uuid != source.settings["index.uuid"] or not note.blocked:
        return None
    if note.permit and not remove_permit(engine, target.name, note.permit):
        # It was used a moment ago, or a run was killed between removing it and lifting the block.
        now = engine.get_index(note.alias)
        if now is None or now.name != source.name:
            return None
    if source.settings.get(WRITE_BLOCK) != "true":
        return None
    engine.put_settings(source.name, {WRITE_BLOCK: None})
    return source.name


def _removal(target: str, permit: str) -> Json:
    return {"remove": {"index": target, "alias": permit, "must_exist": True}}


def _way_out(transfer: Transfer) -> str:
    alias = transfer.book.note.alias
    return (
        f"Once the engine answers, run the same command again, which goes on and lifts the block, or give up by "
        f"`es-sbert index migrate {alias} --rollback`."
    )
