"""Run a migration from its current state to the end: copy, embed, verify, swap."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import DocumentKey, Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import Retrier, RetryPolicy, is_transient, make_retrier
from es_sbert.errors import EngineError, EsSbertError, IndexMismatch, RequestFailed
from es_sbert.index.vector_field import require_index
from es_sbert.index.versioned_updates import VersionedUpdates
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load
from es_sbert.ingest.load_report import passages_suffix, truncation_lines
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from es_sbert.messages import pluralize
from es_sbert.migration.alias_swap import (
    HoldExpired,
    WriteBlock,
    block_writes,
    permit_name,
    remove_stale_block,
    replace_index_actions,
    swap_actions,
    use_permit_action,
    wait_until_idle,
    wait_until_replicated,
)
from es_sbert.migration.compare_indices import FINAL_PIPELINE, LIFECYCLE, REFRESH_INTERVAL
from es_sbert.migration.document_copy import (
    DeletionTracker,
    MigrationContext,
    copy_changes,
    remove_deleted,
    verify_copy,
    verify_counts,
)
from es_sbert.migration.migration_state import MigrationPhase, migration_lock, put_migration_state, taken_over_error
from es_sbert.migration.prepare_migration import MigrationRequest, PreparedMigration, prepare_migration
from es_sbert.migration.prepare_removal import prepare_removal
from es_sbert.migration.rollback import prepare_rollback


class MigrationResult(BaseModel):
    """The outcome of one run of a migration.

    Attributes:
        source, target: The old and the new index.
        model, fingerprint: The new model; empty if the new index has no vectors.
        removed_fields: Fields that the new index no longer has.
        resumed: Whether an earlier run had started the migration.
        rollback: Whether it goes back to the old index of an earlier migration, which is `target` here.
        finished: Whether the alias points to the new index, which has all documents.
        copied: Documents copied before the swap, counted each time they changed.
        removed: Documents removed from the new index because they were deleted from the old one.
        late: Documents written to the old index shortly before the swap and copied after it.
        writes_refused_seconds: Seconds for which writes were blocked, over all attempts.
        holds: Number of times that writes were blocked.
        embedded: Documents that got a vector, some of them more than once.
        compared: Vectors that were computed again and compared before the swap.
        dead: Documents that were copied but could not be embedded.
        dead_letters: The file with these documents.
        truncated, lost_tokens: Documents with a text longer than the model reads, and the tokens cut off.
        notes: Warnings and notes of the loads, each once.
        documents: Documents of the new index.
        stopped: Reason why the migration is not finished.
        dropped: Whether the old index is deleted already.
        seconds: Time of this run without loading the model.
    """

    alias: str
    source: str
    target: str
    model: str
    fingerprint: str
    removed_fields: tuple[str, ...] = ()
    resumed: bool
    rollback: bool = False
    finished: bool = False
    copied: int = 0
    removed: int = 0
    late: int = 0
    writes_refused_seconds: float = 0.0
    holds: int = 0
    embedded: int = 0
    compared: int = 0
    dead: int = 0
    dead_letters: str | None = None
    passages: int = 0
    truncated: int = 0
    lost_tokens: int = 0
    notes: list[str] = []
    documents: int = 0
    stopped: str | None = None
    dropped: bool = False
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 if finished, 1 if finished but some documents have no vector, 130 if stopped."""
        if not self.finished:
            return 130
        return 1 if self.dead else 0

    def lines(self) -> list[str]:
        """Format a summary, one fact per line."""
        resumed = " (resumed)" if self.resumed else ""
        what = f"{self.model} ({self.fingerprint[:12]})" if self.model else "without vectors"
        lines = [f"{self.alias}: {self.source} → {self.target}, {what}{resumed}"]
        facts = (
            (self.copied, "copied"),
            (self.embedded, f"embedded{passages_suffix(self.passages)}"),
            (self.removed, "removed: deleted from the old index during the copy"),
            (self.late, "written shortly before the swap, copied after it"),
            (self.compared, "vectors computed again and compared"),
            (self.dead, f"without a vector: see {self.dead_letters}"),
        )
        lines += [f"  {count:>11,}  {what}" for count, what in facts if count]
        lines += truncation_lines(self.truncated, self.embedded, self.lost_tokens)
        lines += self.notes
        if self.writes_refused_seconds:
            attempts = f", in {self.holds} attempts" if self.holds > 1 else ""
            lines.append(f"Writes to {self.source} were refused for {self.writes_refused_seconds:.2f} s{attempts}")
        if not self.finished:
            resume = f"run the same command to resume, or cancel it: `es-sbert index migrate {self.alias} --cancel`"
            return [*lines, f"Not finished ({self.stopped}): {resume}"]
        lines.append(f"{pluralize(self.documents, 'document')} in {self.target}, {self.seconds:,.1f} s")
        if not self.dropped:
            lines.append(
                f"{self.source} is kept. To go back to it: `es-sbert index migrate {self.alias} --rollback`. "
                f"To delete it: `es-sbert index migrate {self.alias} --drop`"
            )
        return lines


# Rounds end when one copies no more than this many documents, or when they no longer get shorter.
SMALL_ROUND_DOCUMENTS = 200
MAX_ROUNDS = 20
# Number of times that writes are blocked before the command gives up.
MAX_HOLDS = 5
# An attempt with a smaller share of `max_hold` would not get far.
_MIN_HOLD_SHARE = 0.25
# The share of an attempt's time that is kept for removing the block if there is no swap.
_UNBLOCK_SHARE = 0.25
_GC_DELETES = "index.gc_deletes"
# Ids of documents to embed in one load; with more, the load looks for all documents without a vector.
_MAX_IDS = 8000


def migrate(
    engine: Engine,
    encoder: Encoder | None,
    request: MigrationRequest,
    control: LoadControl,
    meter: Callable[[], ProgressMeter],
    *,
    report: Callable[[str], None] = lambda message: None,
    dead_letters: Path | None = None,
    retry_seconds: float = 300.0,
) -> MigrationResult:
    """Run a new or interrupted migration to its end, and return its outcome.

    Args:
        encoder: Runs the new model; None if the new index has no vectors.
        control: Stops the migration between two pages.
        meter: Makes a meter for a load.
        report: Receives a message for each step.
        dead_letters: File for documents that cannot be embedded.
        retry_seconds: Seconds for which transient failures are retried.

    Raises:
        UsageError, IndexMissing, IndexMismatch: the request is not possible, or the new index fails verification.
        EngineError: the engine failed; the same call resumes.
        OutputError: the dead-letter file cannot be written.
    """
    policy = RetryPolicy(retry_seconds)
    with migration_lock(engine.info.url, request.alias):
        begin = time.monotonic()
        retrying = make_retrier(policy, control.engine_wait.begin, control.stop_retrying)
        prepared = _prepare(engine, request, encoder, retrying)
        store, target = prepared.state_store, prepared.target.name
        updates = VersionedUpdates(
            engine,
            prepared.target,
            policy,
            control.engine_wait.begin,
            control.stop_retrying,
            source=prepared.source,
            made=store.state.not_copied,
        )
        context = MigrationContext(engine, store.state.source, target, store, policy, control, updates, report)
        result = MigrationResult(
            alias=request.alias,
            source=context.source,
            target=target,
            model="" if encoder is None else encoder.info.model,
            fingerprint="" if encoder is None else encoder.info.fingerprint,
            removed_fields=store.state.removed,
            resumed=prepared.resumed,
            rollback=request.rollback,
            notes=list(prepared.notes),
        )
        with closing(DeletionTracker(context)) as tracker:
            run = _MigrationRun(prepared, request, context, encoder, tracker, meter, dead_letters, result)
            result.finished = run.run()
    result.stopped = None if result.finished else (result.stopped or "interrupted")
    result.dropped = request.replace_index and result.finished
    result.documents = context.retrying(engine.count, context.target)
    result.seconds = round(time.monotonic() - begin, 3)
    return result


def _prepare(
    engine: Engine, request: MigrationRequest, encoder: Encoder | None, retrying: Retrier
) -> PreparedMigration:
    if request.rollback:
        return prepare_rollback(engine, request, encoder, retrying)
    if request.remove:
        return prepare_removal(engine, request, retrying)
    assert encoder is not None, "a migration to another model has that model"
    return prepare_migration(engine, request, encoder, retrying)


@dataclass(frozen=True)
class _MigrationRun:
    """The steps of a migration. Each is skipped if an earlier run has done it."""

    prepared: PreparedMigration
    request: MigrationRequest
    context: MigrationContext
    encoder: Encoder | None
    tracker: DeletionTracker
    meter: Callable[[], ProgressMeter]
    dead_letters: Path | None
    result: MigrationResult

    def run(self) -> bool:
        """Do all remaining steps; False if the run was stopped."""
        if self.context.state_store.state.phase is MigrationPhase.CLOSING:
            if not self._is_swapped():
                retrying, engine = self.context.retrying, self.context.engine
                target = retrying(engine.get_index, self.context.target)
                if self.prepared.source is not None and target is not None:
                    retrying(remove_stale_block, engine, self.prepared.source, target)
            if self._is_swapped():
                return self._finish_after_swap()
            self.context.state_store.write(phase=MigrationPhase.COPYING, boundary=(), blocked=False, permit="")
        return self._catch_up() and (self._swap_blocked() if self.request.block_writes else self._swap_unblocked())

    def _catch_up(self) -> bool:
        """Copy and embed in rounds until few changes are left, then verify the copy."""
        previous = math.inf
        self._set_final_pipeline(None)
        for number in range(MAX_ROUNDS):
            self.context.report("Catching up" if number else f"Copying {self.context.source} to {self.context.target}")
            count = self._copy_round()
            # The index that a rollback goes back to may hold vectors of texts that had changed before.
            if self._is_stopped or not self._embed(outdated=self.request.rollback and not number):
                return False
            if number and (count <= SMALL_ROUND_DOCUMENTS or count >= previous):
                break
            previous = count if number else math.inf
        self._restore_refreshes()
        self.tracker.begin()
        self.result.removed += remove_deleted(self.context)
        if self._is_stopped:
            return False
        self.context.report("Comparing counts, documents and vectors")
        other_variants = self.prepared.resumed or self.request.rollback
        fields = self.prepared.fields
        self.result.compared = verify_copy(self.context, self.encoder, fields, other_variants=other_variants)
        return not self._is_stopped

    def _restore_refreshes(self) -> None:
        """Refresh the new index as often as the old one; an interval that somebody set in the meantime is kept."""
        retrying, engine, source = self.context.retrying, self.context.engine, self.prepared.source
        target = retrying(engine.get_index, self.context.target)
        if self.request.rollback or source is None or target is None or target.setting(REFRESH_INTERVAL) != "-1":
            return
        retrying(engine.put_settings, target.name, {REFRESH_INTERVAL: source.setting(REFRESH_INTERVAL)})

    def _copy_round(self, keys: set[DocumentKey] | None = None) -> int:
        count = copy_changes(self.context, keys=keys)
        self.result.copied += count
        return count

    def _embed(self, ids: Collection[str] | None = None, *, outdated: bool = False) -> bool:
        """Embed the documents without a vector; False if the user stopped the load.

        Copies never have a vector, so existing vectors are current.

        Args:
            ids: Documents that may have no vector; None for all documents.
            outdated: Also look for vectors of a text that has changed.

        Raises:
            EngineError: the load ended early for another reason.
            EsSbertError: see `run_load`.
        """
        # Fields without a text are skipped: they have never been loaded.
        fields = tuple(name for name, meta in self.prepared.fields.items() if meta.text is not None)
        if self.encoder is None or not fields or (ids is not None and not ids):
            return True
        settings = IngestSettings(
            index=self.context.target,
            vectors=fields,
            dead_letters=self.dead_letters,
            only_lacking=not outdated,
            only_ids=None if ids is None or len(ids) > _MAX_IDS else tuple(ids),
            retry_seconds=self.context.policy.budget,
        )
        plan = self.context.retrying(plan_load, self.context.engine, settings, sources=[])
        control = self.context.control
        # The migration prints one summary at its end.
        summary = run_load(self.context.engine, self.encoder, plan, control, self.meter(), show_summary=False)
        result = self.result
        result.embedded += summary.indexed
        result.passages += summary.passages
        result.truncated += summary.truncated
        result.lost_tokens += summary.lost_tokens
        result.dead = summary.dead
        result.dead_letters = str(plan.dead_letters) if summary.dead else None
        notes = [*(f"Warning: {warning}" for warning in summary.warnings), *summary.notes]
        result.notes = list(dict.fromkeys([*result.notes, *notes]))
        result.stopped = summary.stopped
        if control.reason is not None and not control.interrupted:
            raise EngineError(
                f"the documents of {self.context.target} were not all embedded: {control.reason}",
                "Run the same command again once that is fixed: it resumes.",
            )
        return summary.stopped is None

    def _swap_unblocked(self) -> bool:
        """Copy the last changes and swap while writes go on; changes that come too late are copied afterwards."""
        # A deletion is remembered for an hour, so that a late copy cannot bring the document back.
        self.context.retrying(self.context.engine.put_settings, self.context.target, {_GC_DELETES: "1h"})
        self._copy_round()
        if self._is_stopped or not self._embed():
            return False
        shards = self.context.retrying(self.context.engine.shard_states, self.context.target)
        boundary = tuple(shard.max_seq_no for _, shard in sorted(shards.items()))
        self.context.state_store.write(phase=MigrationPhase.CLOSING, boundary=boundary)
        self._set_final_pipeline(self.context.state_store.state.final_pipeline)
        self._swap()
        return self._finish_after_swap()

    def _swap_blocked(self) -> bool:
        """Block writes, copy the last changes, and swap: the new index then has all documents.

        The first attempt may take half of the time that the request allows, the next ones what is left of all of it.
        Writes are accepted again in between.

        Raises:
            EngineError: no attempt was short enough.
        """
        source, most = self.context.source, self.request.max_hold
        for number in range(MAX_HOLDS):
            left = most - self.result.writes_refused_seconds
            if left < most * _MIN_HOLD_SHARE:
                break
            if number:
                self._set_final_pipeline(None)
            if not self._shorten_rounds():
                return False
            seconds = left if number else left / 2
            try:
                return self._hold_and_swap(seconds)
            except HoldExpired as error:
                if self._is_swapped():
                    return self._finish()
                reason = f": {error}" if str(error) else ""
                self.context.report(f"Writes to {source} are accepted again: {seconds:.2f} s were not enough{reason}")
        raise EngineError(
            f"{source} was not swapped: writes would have been refused for more than {most:g} s, in "
            f"{pluralize(self.result.holds, 'attempt')}. Nothing is lost, and {source} accepts writes",
            "Run the same command again when less is written, or allow more: `max_hold=SECONDS`. To cancel: `es-sbert "
            f"index migrate {self.request.alias} --cancel`.",
        )

    def _hold_and_swap(self, seconds: float) -> bool:
        """Make one attempt to block writes and swap; False if the user stopped it.

        Args:
            seconds: Seconds for which writes may be refused.

        Raises:
            HoldExpired: the attempt took too long; writes are accepted again.
            EngineError: the engine failed.
        """
        context, control = self.context, self.context.control
        work = seconds * (1 - _UNBLOCK_SHARE)
        block = WriteBlock(permit_name(context.target, uuid.uuid4().hex))
        # Up to this position, the new index has the documents of the old one. If this process is killed before it
        # writes the later position, a rollback copies the changes of the last round again.
        context.state_store.write(**context.retrying(self._position))
        try:
            with block_writes(context, block, self._is_swapped, work), context.state_store.defer_writes():
                done = False
                with control.time_limit(max(0.0, block.began + work - time.monotonic())) as limit:
                    try:
                        done = self._last_round()
                        if done:
                            with suppress(EngineError):  # not retried while writes are refused
                                context.state_store.write(**self._position())
                            self._set_final_pipeline(context.state_store.state.final_pipeline)
                            self._swap(block)
                    except EsSbertError:
                        if not limit.expired:
                            raise
                if limit.expired:
                    raise HoldExpired
                if not done:
                    return False
        finally:
            self.result.holds += 1
            self.result.writes_refused_seconds = round(self.result.writes_refused_seconds + block.seconds, 3)
        return self._finish()

    def _position(self) -> dict[str, tuple[Any, ...]]:
        """Read the positions of writes in the new index, as fields of the state; no one else writes before the swap."""
        states = sorted(self.context.engine.shard_states(self.context.target).items())
        return {
            "carried": tuple(state.max_seq_no for _, state in states),
            "carried_histories": tuple(state.history for _, state in states),
        }

    def _last_round(self) -> bool:
        """Make the new index equal to the old one, which takes no writes; False if stopped."""
        wait_until_replicated(self.context)
        if not self._short_round():
            return False
        self._make_equal()
        return not self._is_stopped

    def _shorten_rounds(self) -> bool:
        """Run short rounds, including deletions, so that little is left while writes are blocked; False if stopped."""
        previous = math.inf
        for _ in range(MAX_ROUNDS):
            before = self.result.copied
            if not self._short_round():
                return False
            if self.context.state_store.state.deletions:
                self.result.removed += self.tracker.remove()
            count = self.result.copied - before
            if count <= SMALL_ROUND_DOCUMENTS or count >= previous:
                break
            previous = count
        # The block flushes the index, which takes longer the more there is to write.
        self.context.retrying(self.context.engine.flush, self.context.source)
        return True

    def _short_round(self) -> bool:
        """Copy and embed what has changed; False if stopped."""
        keys: set[DocumentKey] = set()
        self._copy_round(keys)
        self.tracker.copied |= keys
        return not self._is_stopped and self._embed({document_id for document_id, _ in keys})

    def _make_equal(self) -> None:
        """Remove deleted documents until both indices have the same number of documents, or the migration is stopped.

        Raises:
            IndexMismatch: the counts still differ.
        """
        for remove in (self.tracker.remove, lambda: remove_deleted(self.context)):
            if verify_counts(self.context, surplus_ok=True):
                return
            self.result.removed += remove()
            if self._is_stopped:
                return
        verify_counts(self.context)

    def _set_final_pipeline(self, pipeline: str | None) -> None:
        """Set the final pipeline of the new index, if it has one. Copies go around it: they went through it before."""
        if self.context.state_store.state.final_pipeline is not None:
            self.context.retrying(self.context.engine.put_settings, self.context.target, {FINAL_PIPELINE: pipeline})

    def _swap(self, block: WriteBlock | None = None) -> None:
        source, target = self.context.source, self.context.target
        aliases = self.context.retrying(self.context.engine.get_aliases, source).get(source, {})
        if self.request.replace_index:
            state = self.context.retrying(self.context.engine.get_index, source)
            is_hidden = state is not None and state.has_setting("index.hidden")
            actions = replace_index_actions(source, target, aliases, is_hidden=is_hidden)
        elif self.request.alias not in aliases:
            raise IndexMismatch(
                f"{self.request.alias} is no longer an alias of {source}: somebody has removed it since the migration "
                "began. Nothing was swapped",
                f"Add it again (`POST _aliases`), and run the same command again. Or delete {target}.",
            )
        else:
            actions = swap_actions(source, target, aliases)
        if block is not None:
            actions.insert(0, use_permit_action(target, block.permit))

        def swap() -> None:
            try:
                self.context.engine.update_aliases(actions)
            except EngineError:
                # The swap may have been made although its response was lost.
                if not self._is_swapped():
                    raise

        try:
            if block is None:
                self.context.retrying(swap)
            else:
                swap()
        except EngineError as error:
            if block is not None and block.permit in error.message:
                raise taken_over_error(target) from error
            if block is not None and is_transient(error):
                # The end of the block makes sure that the request is not carried out later.
                raise HoldExpired(error.message) from error
            raise
        self.context.report(f"{self.request.alias} points to {target} now")

    def _finish_after_swap(self) -> bool:
        """Copy what was written to the old index shortly before the swap, unless writes were blocked."""
        if not self.context.state_store.state.blocked and self._read_source() is not None:
            wait_until_idle(self.context)
            wait_until_replicated(self.context)
            if not self._copy_late_changes():
                return False
            if self.context.state_store.state.deletions:
                self.result.removed += remove_deleted(self.context)
            if not self._embed():
                return False
        return self._finish()

    def _copy_late_changes(self) -> bool:
        """Run rounds until nothing is left, up to `MAX_ROUNDS`; False if stopped."""
        for _ in range(MAX_ROUNDS):
            count = copy_changes(self.context, late=True)
            self.result.late += count
            if self._is_stopped:
                return False
            if not count:
                return True
        self.context.report(
            f"A client still writes to {self.context.source} instead of the alias: its further changes are not copied"
        )
        return True

    def _finish(self) -> bool:
        """Store that the migration is done; returns True."""
        source = self._read_source()
        if source is not None:
            as_before = {_GC_DELETES: source.setting(_GC_DELETES)}
            self.context.retrying(self.context.engine.put_settings, self.context.target, as_before)
        self._set_lifecycle()
        self.context.state_store.write(phase=MigrationPhase.DONE)
        if self.request.remove and source is None:
            # No old index is kept, so the new one does not need the state any more.
            target = self.context.retrying(require_index, self.context.engine, self.context.target)
            self.context.retrying(put_migration_state, self.context.engine, target, None)
        return True

    def _set_lifecycle(self) -> None:
        """Give the new index the lifecycle policy of the old one, and add a note about that."""
        settings, target = self.context.state_store.state.lifecycle, self.context.target
        if not settings:
            return
        policy = settings.get(f"{LIFECYCLE}name")
        try:
            self.context.retrying(self.context.engine.put_settings, target, settings)
            note = f"The lifecycle policy {policy} applies to {target} now, and counts its age from its creation."
        except RequestFailed as error:
            note = f"Warning: the lifecycle policy {policy} could not be applied to {target}: {error.message}"
        self.result.notes.append(note)

    @property
    def _is_stopped(self) -> bool:
        return self.context.control.stop_reading.is_set()

    def _is_swapped(self) -> bool:
        state = self.context.retrying(self.context.engine.get_index, self.request.alias)
        return state is not None and state.name == self.context.target

    def _read_source(self) -> IndexState | None:
        """The old index, if it still exists."""
        state = self.context.retrying(self.context.engine.get_index, self.context.source)
        if state is None or state.uuid != self.context.state_store.state.source_uuid:
            return None
        return state
