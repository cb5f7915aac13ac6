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
from es_sbert.errors import EngineError, RequestFailed
from es_sbert.index.load_settings import restore_load_settings
from es_sbert.ingest.load import LocalRunner, run_load
from es_sbert.ingest.load_plan import BulkLoadSettings, IngestSettings, plan_load
from es_sbert.ingest.load_report import passages_suffix, truncation_lines
from es_sbert.ingest.load_threads import LoadControl
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
from es_sbert.migration.document_copy import DocumentCopier, MigrationContext, verify_copy, verify_counts
from es_sbert.migration.migration_state import MigrationPhase, migration_lock, taken_over
from es_sbert.migration.prepare_migration import (
    MigrationRequest,
    PreparedMigration,
    keep_delete_tombstones,
    prepare_migration,
    restore_delete_tombstones,
)


class MigrationResult(BaseModel):
    """The outcome of one run of a migration.

    Attributes:
        source, target: The old and the new index.
        model, fingerprint: The new model.
        resumed: Whether an earlier run had started the migration.
        finished: Whether the alias points to the new index, which has all documents.
        copied: Documents copied before the swap, each time they changed.
        removed: Documents removed from the new index because they were deleted from the old one.
        late: Documents written to the old index shortly before the swap and copied after it.
        writes_refused_seconds: How long writes were blocked.
        embedded: Documents that got a vector, some of them more than once.
        compared: Vectors that were computed again and compared before the swap.
        dead: Documents that were copied but could not be embedded.
        dead_letters: The file with these documents.
        truncated, lost_tokens: Documents with a text longer than the model reads, and the tokens cut off.
        notes: Warnings and notes of the loads, each once.
        documents: Documents of the new index.
        stopped: Why the migration is not finished.
        dropped: Whether the old index is deleted already.
        seconds: Time of this run without loading the model.
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
        """A summary, one fact a line."""
        resumed = " (resumed)" if self.resumed else ""
        lines = [f"{self.alias}: {self.source} → {self.target}, {self.model} ({self.fingerprint[:12]}){resumed}"]
        facts = (
            (self.copied, "copied"),
            (self.embedded, f"embedded{passages_suffix(self.passages)}"),
            (self.removed, "removed: deleted from the old index during the copy"),
            (self.late, "written shortly before the swap, copied after it"),
            (self.compared, "vectors computed again and compared"),
            (self.dead, f"without a vector: see {self.dead_letters}"),
        )
        lines += [f"  {count:>11,}  {what}" for count, what in facts if count]
        lines += truncation_lines(self.truncated, self.lost_tokens)
        lines += self.notes
        if self.writes_refused_seconds:
            lines.append(f"Writes to {self.source} were refused for {self.writes_refused_seconds:.2f} s")
        if not self.finished:
            return [
                *lines,
                f"Not finished ({self.stopped}): run the same command to resume, or add --rollback to give up",
            ]
        lines.append(f"{self.documents:,} documents in {self.target}, {self.seconds:,.1f} s")
        if not self.dropped:
            lines.append(
                f"The old index {self.source} still exists. Remove it with `es-sbert index migrate {self.alias} --drop`"
            )
        return lines


# Rounds end when one copies no more than this many documents, or when they do not get shorter any more.
SMALL_ROUND_DOCUMENTS = 200
MAX_ROUNDS = 20
# Ids of documents to embed in one load; with more, the load looks for all documents without a vector.
_MAX_IDS = 8000


@dataclass
class MigrationCallbacks:
    """Reports the progress of a migration, and stops it.

    Attributes:
        control: Stops it between two pages.
        meter: Makes a meter for a load.
        report: Receives a message for each step.
    """

    control: LoadControl
    meter: Callable[[], ProgressMeter]
    report: Callable[[str], None] = field(default=lambda message: None)


@dataclass
class _MigrationCounts:
    """The counts of `MigrationResult`, summed over the rounds and loads of a run."""

    copied: int = 0
    removed: int = 0
    late: int = 0
    writes_refused_seconds: float = 0.0
    embedded: int = 0
    compared: int = 0
    dead: int = 0
    dead_letters: str | None = None
    passages: int = 0
    truncated: int = 0
    lost_tokens: int = 0


def migrate(
    engine: Engine,
    encoder: Encoder,
    request: MigrationRequest,
    callbacks: MigrationCallbacks,
    *,
    dead_letters: Path | None = None,
    retry_seconds: float = 300.0,
) -> MigrationResult:
    """Run a migration to its end: start a new one, or resume one that was stopped.

    Args:
        dead_letters: Receives documents that cannot be embedded.
        retry_seconds: How long transient failures are retried.

    Raises:
        UsageError, IndexMissing, IndexMismatch: the request is not possible, or the new index fails verification.
        EngineError: the engine failed; the same call resumes.
        OutputError: the dead letters cannot be written.
    """
    with migration_lock(engine.info.url, request.alias):
        begin = time.monotonic()
        prepared = prepare_migration(engine, request, encoder)
        context = MigrationContext(
            engine,
            prepared.state_store.state.source,
            prepared.target,
            prepared.state_store,
            RetryPolicy(retry_seconds),
            callbacks.control,
        )
        with closing(DeletionTracker(context)) as tracker:
            run = _MigrationRun(prepared, request, context, encoder, tracker, callbacks, dead_letters)
            finished = run.run()
    return MigrationResult(
        alias=request.alias,
        source=context.source,
        target=context.target,
        model=encoder.info.model,
        fingerprint=encoder.info.fingerprint,
        resumed=prepared.resumed,
        finished=finished,
        **vars(run.counts),
        notes=tuple(run.notes),
        stopped=None if finished else (run.stop_reason or "interrupted"),
        dropped=request.replace_index and finished,
        documents=engine.count(context.target),
        seconds=round(time.monotonic() - begin, 3),
    )


class _MigrationRun:
    """The steps of a migration. Each is skipped if an earlier run has done it."""

    def __init__(
        self,
        prepared: PreparedMigration,
        request: MigrationRequest,
        context: MigrationContext,
        encoder: Encoder,
        tracker: DeletionTracker,
        callbacks: MigrationCallbacks,
        dead_letters: Path | None,
    ) -> None:
        self._prepared, self._request, self._context = prepared, request, context
        self._engine, self._store = context.engine, context.state_store
        self._encoder, self._tracker, self._dead_letters = encoder, tracker, dead_letters
        self._meter, self._report = callbacks.meter, callbacks.report
        self._copier = DocumentCopier(context, self._report)
        # The others have never been loaded, so their text is not known.
        self._fields = tuple(name for name, meta in prepared.fields.items() if meta.text is not None)
        self.counts = _MigrationCounts()
        self.notes: dict[str, None] = {}
        self.stop_reason: str | None = None

    def run(self) -> bool:
        """Do all remaining steps; False if the run was stopped."""
        if self._store.state.phase is MigrationPhase.CLOSING:
            if not self._is_swapped():
                target = self._engine.get_index(self._prepared.target)
                if self._prepared.source is not None and target is not None:
                    remove_stale_block(self._engine, self._prepared.source, target)
            if self._is_swapped():
                return self._finish_after_swap()
            self._store.write(phase=MigrationPhase.COPYING, boundary=(), blocked=False, permit="")
        return self._catch_up() and (self._swap_blocked() if self._request.block_writes else self._swap_unblocked())

    def _catch_up(self) -> bool:
        """Copy and embed in rounds until few changes are left, then verify the copy."""
        previous = None
        for number in range(1, MAX_ROUNDS + 1):
            first = number == 1
            self._report(f"Copying {self._context.source} to {self._context.target}" if first else "Catching up")
            count = self._copy_round()
            if self._is_stopped or not self._embed():
                return False
            if not first and (count <= SMALL_ROUND_DOCUMENTS or (previous is not None and count >= previous)):
                break
            previous = None if first else count
        # A load has done so already, but there is none if no field has a text.
        restore_load_settings(self._engine, self._prepared.target)
        self._tracker.begin()
        self.counts.removed += remove_deleted(self._context)
        self._report("Comparing counts, documents and vectors")
        self.counts.compared = verify_copy(self._context, self._encoder, self._prepared.fields)
        return not self._is_stopped

    def _copy_round(self, keys: set[DocumentKey] | None = None) -> int:
        count = self._copier.copy_changes(keys)
        self.counts.copied += count
        return count

    def _embed(self, ids: Collection[str] | None = None) -> bool:
        """Embed the documents without a vector; False if the load was stopped.

        Copies never have a vector, so existing vectors are current.

        Args:
            ids: Documents that may have no vector; None for all documents.

        Raises:
            EsSbertError: see `run_load`.
        """
        if not self._fields or (ids is not None and not ids):
            return True
        settings = IngestSettings(
            index=self._prepared.target,
            vectors=self._fields,
            dead_letters=self._dead_letters,
            only_lacking=True,
            only_ids=None if ids is None or len(ids) > _MAX_IDS else tuple(ids),
            load_settings=BulkLoadSettings.KEEP,
            retry_seconds=self._context.policy.budget,
        )
        plan = plan_load(self._engine, settings)
        runner, control = LocalRunner(self._encoder), self._context.control
        # The migration prints one summary at its end.
        summary = run_load(self._engine, runner, plan, control, self._meter(), show_summary=False)
        counts = self.counts
        counts.embedded += summary.indexed
        counts.passages += summary.passages
        counts.truncated += summary.truncated
        counts.lost_tokens += summary.lost_tokens
        counts.dead = summary.dead
        counts.dead_letters = str(plan.dead_letters) if summary.dead else None
        self.notes |= dict.fromkeys([*(f"Warning: {warning}" for warning in summary.warnings), *summary.notes])
        self.stop_reason = summary.stopped
        return summary.stopped is None

    def _swap_unblocked(self) -> bool:
        """Copy the last changes and swap while writes go on; changes that come too late are copied afterwards."""
        keep_delete_tombstones(self._engine, self._prepared.target)
        self._copy_round()
        if self._is_stopped or not self._embed():
            return False
        boundary = tuple(number.max_seq_no for number in self._engine.sequence_numbers(self._prepared.target))
        self._store.write(phase=MigrationPhase.CLOSING, boundary=boundary)
        self._swap()
        return self._finish_after_swap()

    def _swap_blocked(self) -> bool:
        """Block writes, copy the last changes, and swap: the new index then has all documents."""
        if not self._shorten_rounds():
            return False
        block: WriteBlock | None = None
        try:
            with block_writes(self._context, self._is_swapped, self._report) as block, self._store.defer_writes():
                wait_until_replicated(self._context)
                if not self._short_round():
                    return False
                self._make_equal()
                self._swap(block)
        finally:
            self.counts.writes_refused_seconds = 0.0 if block is None else round(block.seconds, 3)
        self._finish()
        return True

    def _shorten_rounds(self) -> bool:
        """Short rounds, deletions included, so that little is left to do while writes are blocked."""
        previous = None
        for _ in range(MAX_ROUNDS):
            before = self.counts.copied
            if not self._short_round():
                return False
            if self._store.state.deletions:
                self.counts.removed += self._tracker.remove()
            count = self.counts.copied - before
            if count <= SMALL_ROUND_DOCUMENTS or (previous is not None and count >= previous):
                break
            previous = count
        # The block flushes the index, which takes longer the more is to be written.
        self._context.retrying(lambda: self._engine.flush(self._context.source))
        return True

    def _short_round(self) -> bool:
        """Copy and embed what has changed; False if stopped."""
        keys: set[DocumentKey] = set()
        self._copy_round(keys)
        self._tracker.add_copied(keys)
        return not self._is_stopped and self._embed({document_id for document_id, _ in keys})

    def _make_equal(self) -> None:
        """Remove deleted documents until both indices have the same number of documents.

        Raises:
            IndexMismatch: the counts still differ.
        """
        for remove in (self._tracker.remove, lambda: remove_deleted(self._context)):
            if verify_counts(self._context, surplus_ok=True):
                return
            self.counts.removed += remove()
        verify_counts(self._context)

    def _swap(self, block: WriteBlock | None = None) -> None:
        source, target = self._context.source, self._prepared.target
        aliases = self._engine.get_aliases(source).get(source, {})
        actions = (replace_index_actions if self._request.replace_index else swap_actions)(source, target, aliases)
        try:
            self._engine.update_aliases([*([] if block is None else [block.permit_action(target)]), *actions])
        except EngineError as error:
            if block is not None and isinstance(error, RequestFailed) and block.permit in error.message:
                raise taken_over(target) from error
            # The answer may have been lost, not the request.
            if not is_transient(error) or not self._context.retrying(self._is_swapped):
                raise
        self._report(f"{self._request.alias} points to {target} now")

    def _finish_after_swap(self) -> bool:
        """Copy what was written to the old index shortly before the swap, unless writes were blocked."""
        if not self._store.state.blocked and self._read_source() is not None:
            wait_until_idle(self._context)
            wait_until_replicated(self._context)
            if not self._copy_late_changes():
                return False
            if self._store.state.deletions:
                self.counts.removed += remove_deleted(self._context)
            if not self._embed():
                return False
        self._finish()
        return True

    def _copy_late_changes(self) -> bool:
        """Rounds until nothing is left, up to `MAX_ROUNDS`; False if stopped."""
        copier = DocumentCopier(self._context, self._report, late=True)
        for _ in range(MAX_ROUNDS):
            count = copier.copy_changes()
            self.counts.late += count
            if self._is_stopped:
                return False
            if not count:
                return True
        self._report(
            f"A client still writes to {self._context.source} by its own name: its further changes are not copied"
        )
        return True

    def _finish(self) -> None:
        restore_delete_tombstones(self._engine, self._prepared.target, self._read_source())
        self._store.write(phase=MigrationPhase.DONE)

    @property
    def _is_stopped(self) -> bool:
        return self._context.control.stop.is_set()

    def _is_swapped(self) -> bool:
        state = self._engine.get_index(self._request.alias)
        return state is not None and state.name == self._prepared.target

    def _read_source(self) -> IndexState | None:
        """The old index, if it still exists."""
        state = self._engine.get_index(self._context.source)
        return state if state is not None and state.settings["index.uuid"] == self._store.state.source_uuid else None
