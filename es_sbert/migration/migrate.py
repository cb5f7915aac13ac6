"""Run a migration from its current state to the end: copy, embed, verify, swap."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import DocumentKey, Engine, IndexState
from es_sbert.engines.retry import RetryPolicy, is_transient
from es_sbert.errors import EngineError, IndexMismatch, RequestFailed
from es_sbert.index.load_settings import restore_load_settings
from es_sbert.ingest.load import LocalRunner, run_load
from es_sbert.ingest.load_plan import BulkLoadSettings, IngestSettings, plan_load
from es_sbert.ingest.load_report import passages_suffix, truncation_lines
from es_sbert.ingest.pipeline import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from es_sbert.migration.alias_swap import (
    WriteBlock,
    block_writes,
    remove_stale_block,
    replace_index_actions,
    swap_actions,
    wait_until_idle,
    wait_until_replicated,
)
from es_sbert.migration.deleted_documents import DeletionTracker, remove_deleted
from es_sbert.migration.document_copy import (
    MigrationContext,
    copy_changes,
    copy_late_changes,
    verify_copy,
    verify_counts,
)
from es_sbert.migration.migration_state import MigrationPhase, migration_lock
from es_sbert.migration.prepare_migration import (
    MigrationRequest,
    PreparedMigration,
    keep_delete_tombstones,
    prepare_migration,
    restore_delete_tombstones,
)


class MigrationResult(BaseModel):
    """A migration's end, or how far it came.

    Attributes:
        alias, source, target: What was migrated, from which index to which.
        model, fingerprint: The new model.
        resumed: Whether it went on with what an earlier run began.
        finished: Whether the alias points to the new index, which has everything.
        copied: Documents copied before the swap, each time they changed.
        removed: Documents removed from the new index because they were deleted from the old one.
        late: Documents that were written in the old index in its last moment, seen to after the swap.
        writes_refused_seconds: How long writes were refused, from the block to the swap; 0 where they were not.
        embedded: Vectors written.
        compared: Vectors that were computed once more and compared before the swap.
        dead: Documents that were copied but could not be embedded.
        dead_letters: The file that names them.
        passages: Passages among the vectors.
        truncated, lost_tokens: Documents whose text is longer than the model reads, and the tokens cut off.
        notes: What else is to be known of the embedding.
        documents: Documents of the new index.
        stopped: Why it is not finished.
        dropped: Whether the old index is gone already.
        seconds: Time of this run, model loading left out.
    """

    model_config = ConfigDict(frozen=True)

    alias: str
    source: str
    target: str
    model: str
    fingerprint: str
    resumed: bool
    finished: bool
    copied: int
    removed: int
    late: int
    writes_refused_seconds: float
    embedded: int
    compared: int
    dead: int
    dead_letters: str | None
    passages: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    notes: tuple[str, ...] = ()
    documents: int
    stopped: str | None
    dropped: bool
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 finished, 1 finished but for documents without a vector, 130 stopped."""
        if not self.finished:
            return 130
        return 1 if self.dead else 0

    def lines(self) -> list[str]:
        """In words, one fact a line."""
        went_on = " (went on where another run ended)" if self.resumed else ""
        lines = [f"{self.alias}: {self.source} → {self.target}, {self.model} ({self.fingerprint[:12]}){went_on}"]
        facts = (
            (self.copied, "copied"),
            (self.embedded, f"embedded{passages_suffix(self.passages)}"),
            (self.removed, "removed: deleted from the old index meanwhile"),
            (self.late, "written in the last moment before the swap"),
            (self.compared, "vectors computed again and compared"),
            (self.dead, f"without a vector: see {self.dead_letters}"),
        )
        lines += [f"  {count:>11,}  {what}" for count, what in facts if count]
        lines += truncation_lines(self.truncated, self.lost_tokens)
        lines += self.notes
        if self.writes_refused_seconds:
            lines.append(f"Writes to {self.source} were refused for {self.writes_refused_seconds:.2f} s")
        if not self.finished:
            return [*lines, f"Not finished ({self.stopped}): the same command goes on; --rollback gives it up"]
        lines.append(f"{self.documents:,} documents in {self.target}, {self.seconds:,.1f} s")
        if not self.dropped:
            lines.append(f"{self.source} still stands; remove it: `es-sbert index migrate {self.alias} --drop`")
        return lines


_MAX_IDS = 8000


@dataclass
class EmbeddingTotals:
    """What the loads of a migration came to.

    Attributes:
        documents: Documents that got a vector, some of them more than once.
        dead: Documents that could not be embedded, in the last load.
        stopped: Why the last load did not come to its end; None where it did.
        dead_letters: The file with those documents.
        passages: Passages among the vectors.
        truncated, lost_tokens: Documents whose text is longer than the model reads, and the tokens cut off.
        notes: Warnings and notes of the loads, each once.
    """

    documents: int = 0
    dead: int = 0
    stopped: str | None = None
    dead_letters: Path | None = None
    passages: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    notes: dict[str, None] = field(default_factory=dict)


class MissingVectorEmbedder:
    """Embeds whatever lacks a vector: copies never have one, so a vector that is there is current.

    Args:
        engine: Where.
        encoder: Of the new model.
        target: The new index.
        fields: Its vector fields whose text is known; the others have never been loaded.
        control: Stops a load.
        meter: Makes a meter for each load.
        dead_letters: Where documents go that cannot be embedded.
        retry_seconds: How long an engine that refuses is waited for.
    """

    def __init__(
        self,
        engine: Engine,
        encoder: Encoder,
        target: str,
        fields: tuple[str, ...],
        control: LoadControl,
        meter: Callable[[], ProgressMeter],
        dead_letters: Path | None,
        retry_seconds: float,
    ) -> None:
        self._engine = engine
        self._encoder = encoder
        self._target = target
        self._fields = fields
        self._control = control
        self._meter = meter
        self._dead_letters = dead_letters
        self._retry_seconds = retry_seconds
        self.result = EmbeddingTotals()

    def __call__(self, ids: Collection[str] | None = None) -> bool:
        """Embed; False where it did not come to its end.

        Args:
            ids: Documents that may lack a vector; None where any may.

        Raises:
            EsSbertError: see `run`.
        """
        if not self._fields or (ids is not None and not ids):
            return True
        among = None if ids is None or len(ids) > _MAX_IDS else tuple(ids)
        settings = IngestSettings(
            index=self._target,
            vectors=self._fields,
            dead_letters=self._dead_letters,
            only_lacking=True,
            only_ids=among,
            load_settings=BulkLoadSettings.KEEP,
            retry_seconds=self._retry_seconds,
        )
        wanted = plan_load(self._engine, settings)
        # One summary, of the whole migration, is shown at its end.
        summary = run_load(
            self._engine, LocalRunner(self._encoder), wanted, self._control, self._meter(), show_summary=False
        )
        self.result.documents += summary.indexed
        self.result.passages += summary.passages
        self.result.truncated += summary.truncated
        self.result.lost_tokens += summary.lost_tokens
        self.result.notes |= dict.fromkeys([*(f"Warning: {warning}" for warning in summary.warnings), *summary.notes])
        self.result.dead = summary.dead
        self.result.stopped = summary.stopped
        self.result.dead_letters = wanted.dead_letters if summary.dead else None
        return summary.stopped is None


# Rounds end when one copies no more than this many documents, or when they do not get shorter any more.
SMALL_ROUND_DOCUMENTS = 200
MAX_ROUNDS = 20
_PROGRESS_SECONDS = 10.0


@dataclass
class MigrationCallbacks:
    """What a migration tells while it runs, and what stops it.

    Attributes:
        control: Stops it between two pages.
        meter: Makes a meter for a load.
        say: Told of each step.
    """

    control: LoadControl
    meter: Callable[[], ProgressMeter]
    say: Callable[[str], None] = field(default=lambda message: None)


def migrate(
    engine: Engine,
    encoder: Encoder,
    wanted: MigrationRequest,
    watch: MigrationCallbacks,
    *,
    dead_letters: Path | None = None,
    retry_seconds: float = 300.0,
) -> MigrationResult:
    """Begin a migration, or go on with it, and bring it to its end.

    Raises:
        UsageError, IndexMissing, IndexMismatch: what is asked for cannot be done, or the new index is not fit.
        EngineError: the engine failed; the same call goes on where it was.
        OutputError: the dead letters cannot be written.
    """
    with migration_lock(engine.info.url, wanted.alias):
        begin = time.monotonic()
        prepared = prepare_migration(engine, wanted, encoder)
        state_store, target = prepared.state_store, prepared.target
        context = MigrationContext(
            engine, state_store.state.source, target, state_store, RetryPolicy(retry_seconds), watch.control
        )
        texts = tuple(name for name, meta in prepared.fields.items() if meta.text is not None)
        embed = MissingVectorEmbedder(
            engine, encoder, target, texts, watch.control, watch.meter, dead_letters, retry_seconds
        )
        with closing(DeletionTracker(context)) as tracker:
            run = _MigrationRun(prepared, wanted, context, encoder, embed, tracker, watch)
            finished = run.all()
    dead = embed.result.dead
    return MigrationResult(
        alias=wanted.alias,
        source=state_store.state.source,
        target=target,
        model=encoder.info.model,
        fingerprint=encoder.info.fingerprint,
        resumed=prepared.resumed,
        finished=finished,
        copied=run.copied,
        removed=run.removed,
        late=run.late,
        writes_refused_seconds=round(run.refused_seconds, 3),
        embedded=embed.result.documents,
        compared=run.compared,
        passages=embed.result.passages,
        truncated=embed.result.truncated,
        lost_tokens=embed.result.lost_tokens,
        notes=tuple(embed.result.notes),
        dead=dead,
        dead_letters=str(embed.result.dead_letters) if dead else None,
        stopped=None if finished else (embed.result.stopped or "interrupted"),
        dropped=wanted.replace_index and finished,
        documents=engine.count(target),
        seconds=round(time.monotonic() - begin, 3),
    )


class _MigrationRun:
    """The steps, each of which may find that it was done before."""

    def __init__(
        self,
        prepared: PreparedMigration,
        wanted: MigrationRequest,
        context: MigrationContext,
        encoder: Encoder,
        embed: MissingVectorEmbedder,
        tracker: DeletionTracker,
        watch: MigrationCallbacks,
    ) -> None:
        self._prepared, self._wanted, self._context = prepared, wanted, context
        self._engine, self._state_store = context.engine, context.state_store
        self._encoder, self._embed, self._tracker, self._watch = encoder, embed, tracker, watch
        self.copied = self.late = self.removed = self.compared = 0
        self.refused_seconds = 0.0

    def all(self) -> bool:
        """Everything that is left to do; False where it was stopped on the way."""
        if self._state_store.state.phase is MigrationPhase.CLOSING:
            if not self._is_swapped():
                self._lift_left_behind()
            if self._is_swapped():
                return self._after_swap()
            self._state_store.write(phase=MigrationPhase.COPYING, boundary=(), blocked=False, permit="")
        return self._catch_up() and self._close()

    def _is_swapped(self) -> bool:
        state = self._engine.get_index(self._wanted.alias)
        return state is not None and state.name == self._prepared.target

    def _lift_left_behind(self) -> None:
        target = self._engine.get_index(self._prepared.target)
        if self._prepared.source is not None and target is not None:
            remove_stale_block(self._engine, self._prepared.source, target)

    def _catch_up(self) -> bool:
        """Rounds until there is little left."""
        before = None
        for number in range(1, MAX_ROUNDS + 1):
            self._watch.say(
                f"Copying {self._context.source} to {self._context.target}" if number == 1 else "Catching up"
            )
            count = self._round()
            if self._stopped or not self._embed():
                return False
            if number > 1 and (count <= SMALL_ROUND_DOCUMENTS or (before is not None and count >= before)):
                break
            before = count if number > 1 else None
        # A load has done so already, but there is none where no field has a text.
        restore_load_settings(self._engine, self._prepared.target)
        self._tracker.begin()
        self.removed += remove_deleted(self._context)
        self._watch.say("Comparing counts, documents and vectors")
        self.compared = verify_copy(self._context, self._encoder, self._prepared.fields)
        return not self._stopped

    def _close(self) -> bool:
        """The last gap, and the swap."""
        if self._wanted.block_writes:
            return self._close_held()
        keep_delete_tombstones(self._engine, self._prepared.target)
        self._round()
        if self._stopped or not self._embed():
            return False
        boundary = tuple(number.max_seq_no for number in self._engine.sequence_numbers(self._prepared.target))
        self._state_store.write(phase=MigrationPhase.CLOSING, boundary=boundary)
        self._swap()
        return self._after_swap()

    def _close_held(self) -> bool:
        """Writes are refused while what is left is copied, so the new index has everything when it takes over."""
        if not self._come_close():
            return False
        hold: WriteBlock | None = None
        try:
            with (
                block_writes(self._context, self._is_swapped, self._watch.say) as hold,
                self._state_store.defer_writes(),
            ):
                wait_until_replicated(self._context)
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
            if self._state_store.state.deletions:
                self.removed += self._tracker.remove()
            count = self.copied - copied
            if count <= SMALL_ROUND_DOCUMENTS or (before is not None and count >= before):
                break
            before = count
        # A flush belongs to the block, which takes the longer the more there is to be written.
        self._context.retrying(lambda: self._engine.flush(self._context.source))
        return True

    def _short_round(self) -> bool:
        """Copy and embed what has changed; False where it was stopped."""
        keys: set[DocumentKey] = set()
        self._round(keys)
        self._tracker.copied(keys)
        return not self._stopped and self._embed({document_id for document_id, _ in keys})

    def _make_equal(self) -> None:
        """The new index has every document of the old one; where it has more, those were deleted.

        Raises:
            IndexMismatch: the counts differ all the same.
        """
        for remove in (self._tracker.remove, lambda: remove_deleted(self._context)):
            if verify_counts(self._context, surplus_ok=True):
                return
            self.removed += remove()
        verify_counts(self._context)

    def _swap(self, hold: WriteBlock | None = None) -> None:
        source, target = self._context.source, self._prepared.target
        aliases = self._engine.get_aliases(source).get(source, {})
        actions = (replace_index_actions if self._wanted.replace_index else swap_actions)(source, target, aliases)
        try:
            self._engine.update_aliases([*([] if hold is None else [hold.permit_action(target)]), *actions])
        except EngineError as error:
            if hold is not None and isinstance(error, RequestFailed) and hold.permit in error.message:
                raise IndexMismatch(
                    f"another process has taken over the migration to {target}",
                    "Let it finish: one migration of an index at a time.",
                ) from error
            # The answer may have been lost, not the request.
            if not is_transient(error) or not self._context.retrying(self._is_swapped):
                raise
        self._watch.say(f"{self._wanted.alias} points to {target} now")

    def _after_swap(self) -> bool:
        """Writes that came to the old index in its last moment, where it took any."""
        if not self._state_store.state.blocked and self._old_state() is not None:
            wait_until_idle(self._context)
            wait_until_replicated(self._context)
            if not self._late_rounds():
                return False
            if self._state_store.state.deletions:
                self.removed += remove_deleted(self._context)
            if not self._embed():
                return False
        self._finish()
        return True

    def _late_rounds(self) -> bool:
        """Rounds until nothing is left, or until it is clear that somebody never stops; False where it was stopped."""
        for _ in range(MAX_ROUNDS):
            count = copy_late_changes(self._context, self._told())
            self.late += count
            if self._stopped:
                return False
            if not count:
                return True
        self._watch.say(
            f"Somebody writes to {self._context.source} by its own name: what comes from now on is not copied any more"
        )
        return True

    def _finish(self) -> None:
        restore_delete_tombstones(self._engine, self._prepared.target, self._old_state())
        self._state_store.write(phase=MigrationPhase.DONE)

    def _round(self, keys: set[DocumentKey] | None = None) -> int:
        count = copy_changes(self._context, self._told(), keys)
        self.copied += count
        return count

    def _told(self) -> Callable[[int], None]:
        """Says now and then how many documents of a round are copied."""
        count, said = 0, time.monotonic()

        def copied(more: int) -> None:
            nonlocal count, said
            count += more
            if time.monotonic() - said > _PROGRESS_SECONDS:
                self._watch.say(f"{count:,} documents copied")
                said = time.monotonic()

        return copied

    @property
    def _stopped(self) -> bool:
        return self._watch.control.stop.is_set()

    def _old_state(self) -> IndexState | None:
        """The old index, if it still stands."""
        state = self._engine.get_index(self._context.source)
        return (
            state if state is not None and state.settings["index.uuid"] == self._state_store.state.source_uuid else None
        )
