"""One migration from wherever it stands to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.hits import Key
from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import EngineError, IndexMismatch, RequestFailed
from es_sbert.index.load_settings import put_back
from es_sbert.ingest.control import Control
from es_sbert.ingest.progress import Meter
from es_sbert.ingest.retry import RetryPolicy, is_transient
from es_sbert.migration.aliases import replace_actions, swap_actions
from es_sbert.migration.alone import alone
from es_sbert.migration.check import check, check_equal_counts
from es_sbert.migration.copying import Transfer, copy_round, late_round
from es_sbert.migration.deletions import DeletionTracker, remove_deleted
from es_sbert.migration.embedding import Embedding
from es_sbert.migration.hold import Hold, held_writes, lift_of
from es_sbert.migration.prepare import Prepared, Wanted, forget_deletions, prepare, remember_deletions
from es_sbert.migration.result import MigrationResult
from es_sbert.migration.state import Phase
from es_sbert.migration.waiting import wait_for_quiet, wait_for_writes

# Rounds end when one copies no more than this many documents, or when they do not get shorter any more.
SMALL_ROUND = 200
MAX_ROUNDS = 20
_TELL_SECONDS = 10.0


@dataclass
class Watch:
    """What a migration tells while it runs, and what stops it.

    Attributes:
        control: Stops it between two pages.
        meter: Makes a meter for a load.
        say: Told of each step.
    """

    control: Control
    meter: Callable[[], Meter]
    say: Callable[[str], None] = field(default=lambda message: None)


def migrate(engine: Engine, encoder: Encoder, wanted: Wanted, watch: Watch, *, dead_letters: Path | None = None,
            retry_seconds: float = 300.0) -> MigrationResult:  # fmt: skip
    """Begin a migration, or go on with it, and bring it to its end.

    Raises:
        UsageError, IndexMissing, IndexMismatch: what is asked for cannot be done, or the new index is not fit.
        EngineError: the engine failed; the same call goes on where it was.
        OutputError: the dead letters cannot be written.
    """
    with alone(engine.info.url, wanted.alias):
        begin = time.monotonic()
        prepared = prepare(engine, wanted, encoder)
        book, target = prepared.book, prepared.target
        transfer = Transfer(engine, book.note.source, target, book, RetryPolicy(retry_seconds), watch.control)
        texts = tuple(name for name, meta in prepared.fields.items() if meta.text is not None)
        embed = Embedding(engine, encoder, target, texts, watch.control, watch.meter, dead_letters, retry_seconds)
        with closing(DeletionTracker(transfer)) as tracker:
            run = _Run(prepared, wanted, transfer, encoder, embed, tracker, watch)
            finished = run.all()
    dead = embed.result.dead
    return MigrationResult(
        alias=wanted.alias, source=book.note.source, target=target, model=encoder.info.model,
        fingerprint=encoder.info.fingerprint, resumed=prepared.resumed, finished=finished, copied=run.copied,
        removed=run.removed, late=run.late, writes_refused_seconds=round(run.refused_seconds, 3),
        embedded=embed.result.documents, compared=run.compared,
        passages=embed.result.passages, truncated=embed.result.truncated, lost_tokens=embed.result.lost_tokens,
        notes=tuple(embed.result.notes), dead=dead, dead_letters=str(embed.result.dead_letters) if dead else None,
        stopped=None if finished else (embed.result.stopped or "interrupted"),
        dropped=wanted.replace_index and finished, documents=engine.count(target),
        seconds=round(time.monotonic() - begin, 3),
    )  # fmt: skip


class _Run:
    """The steps, each of which may find that it was done before."""

    def __init__(self, prepared: Prepared, wanted: Wanted, transfer: Transfer, encoder: Encoder, embed: Embedding,
                 tracker: DeletionTracker, watch: Watch) -> None:  # fmt: skip
        self._prepared, self._wanted, self._transfer = prepared, wanted, transfer
        self._engine, self._book = transfer.engine, transfer.book
        self._encoder, self._embed, self._tracker, self._watch = encoder, embed, tracker, watch
        self.copied = self.late = self.removed = self.compared = 0
        self.refused_seconds = 0.0

    def all(self) -> bool:
        """Everything that is left to do; False where it was stopped on the way."""
        if self._book.note.phase is Phase.CLOSING:
            if not self._is_swapped():
                self._lift_left_behind()
            if self._is_swapped():
                return self._after_swap()
            self._book.write(phase=Phase.COPYING, boundary=(), blocked=False, permit="")
        return self._catch_up() and self._close()

    def _is_swapped(self) -> bool:
        state = self._engine.get_index(self._wanted.alias)
        return state is not None and state.name == self._prepared.target

    def _lift_left_behind(self) -> None:
        target = self._engine.get_index(self._prepared.target)
        if self._prepared.source is not None and target is not None:
            lift_of(self._engine, self._prepared.source, target)

    def _catch_up(self) -> bool:
        """Rounds until there is little left."""
        before = None
        for number in range(1, MAX_ROUNDS + 1):
            self._watch.say(
                f"Copying {self._transfer.source} to {self._transfer.target}" if number == 1 else "Catching up"
            )
            count = self._round()
            if self._stopped or not self._embed():
                return False
            if number > 1 and (count <= SMALL_ROUND or (before is not None and count >= before)):
                break
            before = count if number > 1 else None
        # A load has done so already, but there is none where no field has a text.
        put_back(self._engine, self._prepared.target)
        self._tracker.begin()
        self.removed += remove_deleted(self._transfer)
        self._watch.say("Comparing counts, documents and vectors")
        self.compared = check(self._transfer, self._encoder, self._prepared.fields)
        return not self._stopped

    def _close(self) -> bool:
        """The last gap, and the swap."""
        if self._wanted.block_writes:
            return self._close_held()
        remember_deletions(self._engine, self._prepared.target)
        self._round()
        if self._stopped or not self._embed():
            return False
        boundary = tuple(number.highest for number in self._engine.sequence_numbers(self._prepared.target))
        self._book.write(phase=Phase.CLOSING, boundary=boundary)
        self._swap()
        return self._after_swap()

    def _close_held(self) -> bool:
        """Writes are refused while what is left is copied, so the new index has everything when it takes over."""
        if not self._come_close():
            return False
        hold: Hold | None = None
        try:
            with held_writes(self._transfer, self._is_swapped, self._watch.say) as hold, self._book.deferred():
                wait_for_writes(self._transfer)
                if not self._short_round():
                    return False
                self._make_equal()
                self._swap(hold)
        finally:
            self.refused_seconds += 0.0 if hold is None else hold.seconds
        self._finish()
        return True

    def _come_close(self) -> bool:
        """Short rounds with all that belongs to them, so that little is left to do while writes are refused."""
        before = None
        for _ in range(MAX_ROUNDS):
            copied = self.copied
            if not self._short_round():
                return False
            if self._book.note.deletions:
                self.removed += self._tracker.remove()
            count = self.copied - copied
            if count <= SMALL_ROUND or (before is not None and count >= before):
                break
            before = count
        # A flush belongs to the block, which takes the longer the more there is to be written.
        self._transfer.patiently(lambda: self._engine.flush(self._transfer.source))
        return True

    def _short_round(self) -> bool:
        """Copy and embed what has changed; False where it was stopped."""
        keys: set[Key] = set()
        self._round(keys)
        self._tracker.copied(keys)
        return not self._stopped and self._embed({document_id for document_id, _ in keys})

    def _make_equal(self) -> None:
        """The new index has every document of the old one; where it has more, those were deleted.

        Raises:
            IndexMismatch: the counts differ all the same.
        """
        for remove in (self._tracker.remove, lambda: remove_deleted(self._transfer)):
            if check_equal_counts(self._transfer, surplus_ok=True):
                return
            self.removed += remove()
        check_equal_counts(self._transfer)

    def _swap(self, hold: Hold | None = None) -> None:
        source, target = self._transfer.source, self._prepared.target
        aliases = self._engine.aliases(source).get(source, {})
        actions = (replace_actions if self._wanted.replace_index else swap_actions)(source, target, aliases)
        try:
            self._engine.update_aliases([*([] if hold is None else [hold.use_permit(target)]), *actions])
        except EngineError as error:
            if hold is not None and isinstance(error, RequestFailed) and hold.permit in error.message:
                raise IndexMismatch(
                    f"another process has taken over the migration to {target}",
                    "Let it finish: one migration of an index at a time.",
                ) from error
            # The answer may have been lost, not the request.
            if not is_transient(error) or not self._transfer.patiently(self._is_swapped):
                raise
        self._watch.say(f"{self._wanted.alias} points to {target} now")

    def _after_swap(self) -> bool:
        """Writes that came to the old index in its last moment, where it took any."""
        if not self._book.note.blocked and self._old_state() is not None:
            wait_for_quiet(self._transfer)
            wait_for_writes(self._transfer)
            if not self._late_rounds():
                return False
            if self._book.note.deletions:
                self.removed += remove_deleted(self._transfer)
            if not self._embed():
                return False
        self._finish()
        return True

    def _late_rounds(self) -> bool:
        """Rounds until nothing is left, or until it is clear that somebody never stops; False where it was stopped."""
        for _ in range(MAX_ROUNDS):
            count = late_round(self._transfer, self._told())
            self.late += count
            if self._stopped:
                return False
            if not count:
                return True
        self._watch.say(
            f"Somebody writes to {self._transfer.source} by its own name: what comes from now on is not copied any more"
        )
        return True

    def _finish(self) -> None:
        forget_deletions(self._engine, self._prepared.target, self._old_state())
        self._book.write(phase=Phase.DONE)

    def _round(self, keys: set[Key] | None = None) -> int:
        count = copy_round(self._transfer, self._told(), keys)
        self.copied += count
        return count

    def _told(self) -> Callable[[int], None]:
        """Says now and then how many documents of a round are copied."""
        count, said = 0, time.monotonic()

        def copied(more: int) -> None:
            nonlocal count, said
            count += more
            if time.monotonic() - said > _TELL_SECONDS:
                self._watch.say(f"{count:,} documents copied")
                said = time.monotonic()

        return copied

    @property
    def _stopped(self) -> bool:
        return self._watch.control.stop.is_set()

    def _old_state(self) -> IndexState | None:
        """The old index, if it still stands."""
        state = self._engine.get_index(self._transfer.source)
        return state if state is not None and state.settings["index.uuid"] == self._book.note.source_uuid else None
