"""Documents of the old index into the new one, and after that whatever changes in it, round by round.

Every write gets the next sequence number of its shard. A round reads a shard's documents in the order of these numbers,
from the one up to which everything has been copied; where it is killed, the next one goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from es_sbert.engines.hits import Key, key_of
from es_sbert.engines.look_up import look_up
from es_sbert.engines.protocol import Engine, Json
from es_sbert.ingest.control import Control
from es_sbert.ingest.retry import RetryPolicy, with_retries
from es_sbert.migration.state import Notebook
from es_sbert.migration.target import ours
from es_sbert.migration.writes import Version, Write, copy_of, late_copy_of, send

T = TypeVar("T")

_NOTE_SECONDS = 5.0
_PAGE = 200  # whole documents, with vectors


@dataclass(frozen=True)
class Transfer:
    """What the steps of one migration share.

    Attributes:
        engine: Where.
        source, target: The old and the new index.
        book: The note of how far it is.
        policy: How long transient failures are waited out.
        control: Stops it from outside.
        late: What late rounds have written into the new index, in this process.
    """

    engine: Engine
    source: str
    target: str
    book: Notebook
    policy: RetryPolicy
    control: Control
    late: dict[Key, Version] = field(default_factory=dict)

    @property
    def aborted(self) -> threading.Event:
        """Set when no failed request is tried again: the user stopped the migration."""
        return self.control.no_waiting

    def send(self, writes: list[Write]) -> dict[Key, Version]:
        """Write into the new index; what was written."""
        return send(self.engine, self.target, writes, self.policy, self.aborted)

    def patiently(self, call: Callable[[], T]) -> T:
        """A call's answer; transient failures are waited out."""
        answer = with_retries(call, self.policy, self.aborted, lambda error: self.control.waits(error.message))
        self.control.goes_on()
        return answer

    def find(self, index: str, ids: Sequence[str], source: Json | bool = False) -> dict[Key, Json]:
        """The documents of an index that have these ids, as `look_up` finds them, with `_shard`."""
        return self.patiently(partial(look_up, self.engine, index, ids, source=source, shards=True))


def copy_round(transfer: Transfer, on_copied: Callable[[int], None], keys: set[Key] | None = None) -> int:
    """Copy what has changed in the old index since the last round; everything, in the first.

    Only before the swap: nobody else writes into the new index.

    Args:
        keys: Gets what tells the copied documents apart.

    Returns:
        Documents copied.

    Raises:
        EngineError: an engine that fails for longer than the policy allows, or refuses a document.
    """

    def write(page: list[Json], dropped: frozenset[str]) -> None:
        transfer.send([copy_of(hit, dropped) for hit in page])
        if keys is not None:
            keys.update(map(key_of, page))

    return _round(transfer, on_copied, write)


def late_round(transfer: Transfer, on_copied: Callable[[int], None]) -> int:
    """As `copy_round`, after the swap: what other writers have done in the new index meanwhile stays.

    A document that another late round has copied, and that was written in the old index once more, is copied again.

    Returns:
        Documents copied, or found to be newer in the new index.
    """

    def write(page: list[Json], dropped: frozenset[str]) -> None:
        there = transfer.find(transfer.target, [hit["_id"] for hit in page])
        late = []
        for hit in page:
            found = there.get(key_of(hit))
            if found is None or is_ours(transfer, found):
                late.append(late_copy_of(hit, dropped, found))
        transfer.late.update(transfer.send(late))

    # Documents of the round before are to be seen.
    transfer.patiently(lambda: transfer.engine.refresh(transfer.target))
    return _round(transfer, on_copied, write)


def _round(transfer: Transfer, on_copied: Callable[[int], None],
           write: Callable[[list[Json], frozenset[str]], object]) -> int:  # fmt: skip
    engine, book = transfer.engine, transfer.book
    dropped = ours(book.note.fields)
    # First the numbers, then the refresh: whatever has one of them can be seen then.
    numbers = transfer.patiently(lambda: engine.sequence_numbers(transfer.source))
    transfer.patiently(lambda: engine.refresh(transfer.source))
    copied, deletions = list(book.note.copied), False
    count, noted = 0, time.monotonic()
    for shard, number in enumerate(numbers):
        begin, seen = copied[shard], 0
        while copied[shard] < number.everywhere:
            ask = partial(
                engine.written, transfer.source, shard, copied[shard], number.everywhere, query={"match_all": {}},
                source_includes=["*"], page=_PAGE, vectors=True,
            )  # fmt: skip
            page = transfer.patiently(ask)
            if not page:
                break
            write(page, dropped)
            seen += len(page)
            count += len(page)
            copied[shard] = page[-1]["_seq_no"]
            on_copied(len(page))
            if time.monotonic() - noted > _NOTE_SECONDS:
                # Numbers between those of documents may have been deletions, which the end of the round sees to.
                book.write(copied=tuple(copied), deletions=True)
                noted = time.monotonic()
            if transfer.control.stop.is_set():
                book.write(copied=tuple(copied), deletions=True)
                return count
        copied[shard] = max(number.everywhere, begin)
        # Every number belongs to a document that stands, or to one that was written again or deleted since.
        deletions |= begin >= 0 and seen < copied[shard] - begin
    deletions |= book.note.deletions
    if (tuple(copied), deletions) != (book.note.copied, book.note.deletions):
        book.write(copied=tuple(copied), deletions=deletions)
    return count


def is_ours(transfer: Transfer, hit: Json) -> bool:
    """Whether the last write to a document of the new index was the migration's."""
    boundary = transfer.book.note.boundary
    if not boundary or int(hit["_seq_no"]) <= boundary[shard_of(hit)]:
        return True
    return transfer.late.get(key_of(hit)) == (hit["_seq_no"], hit["_primary_term"])


def shard_of(hit: Json) -> int:
    """Number of the shard in which a hit of `Transfer.find` stands."""
    return int(hit["_shard"].rpartition("[")[2].rstrip("]"))
