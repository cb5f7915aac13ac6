"""Run a migration from its current state to the end: copy, embed, verify, swap."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast

from pydantic import BaseModel

from es_sbert.arguments import check_arguments, spell_out, with_defaults
from es_sbert.encoder.encoder import Encoder, ModelOptions, chosen_encoder
from es_sbert.engines.connect import EngineOrClient, connected
from es_sbert.engines.engine import DocumentKey, Engine
from es_sbert.engines.retry import RetryingEngine, RetryPolicy, is_transient, make_retrier
from es_sbert.errors import EngineError, EsSbertError, IndexMismatch, RequestFailed, renamed_setting
from es_sbert.index.text_languages import language_warning, sample_languages
from es_sbert.index.text_template import parse_text_options
from es_sbert.index.vector_field import require_index, vector_field_from_state
from es_sbert.index.versioned_updates import VersionedUpdates
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load
from es_sbert.ingest.load_report import passages_suffix, truncation_lines
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter, ProgressOutput, as_meter
from es_sbert.messages import pluralize, setting
from es_sbert.migration.alias_swap import (
    HoldExpired,
    WriteBlock,
    block_writes,
    permit_name,
    remove_leftover_block,
    replace_index_actions,
    swap_actions,
    use_permit_action,
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
from es_sbert.migration.migration_state import MigrationPhase, kept_index, migration_lock, taken_over_error
from es_sbert.migration.prepare_migration import MigrationRequest, PreparedMigration, prepare_migration
from es_sbert.settings import MigrationOptions, RetryOptions, VectorFieldName

T = TypeVar("T")


class MigrationResult(BaseModel):
    """The outcome of one run of a migration.

    Usage:
        ```python
        result = migrate_index("docs", "http://localhost:9200", model="my-model")
        print(result.target, result.copied, result.embedded, result.stopped)
        ```

    Attributes:
        source, target: The old and the new index.
        model, fingerprint: The new model.
        resumed: Whether an earlier run had started the migration.
        finished: Whether the alias points to the new index, which has all documents.
        copied: Documents copied before the swap, counted each time they changed.
        removed: Documents removed from the new index because they were deleted from the old one.
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
        kept: The old index, if it is still there.
        seconds: Time of this run without loading the model.
    """

    alias: str
    source: str
    target: str
    model: str
    fingerprint: str
    resumed: bool
    finished: bool = False
    copied: int = 0
    removed: int = 0
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
    kept: list[str] = []
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
        lines = [f"{self.alias}: {self.source} → {self.target}, {self.model} ({self.fingerprint[:12]}){resumed}"]
        facts = (
            (self.copied, "copied"),
            (self.embedded, f"embedded{passages_suffix(self.passages)}"),
            (self.removed, "removed: deleted from the old index during the copy"),
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
        if self.kept:
            lines += [
                f"{self.kept[0]}: kept, without accepting writes. To delete: `DELETE /{self.kept[0]}`",
                'To go back: migrate to the old model, or see "Go back after a migration" in docs/operations.md',
            ]
        return lines


# Rounds end when one copies no more than this many documents, or when they no longer get shorter.
SMALL_ROUND_DOCUMENTS = 200
MAX_ROUNDS = 20
# Number of times that writes are blocked before the command gives up.
MAX_HOLDS = 2
# An attempt with a smaller share of `max_write_block` would not get far.
_MIN_HOLD_SHARE = 0.25
# The share of an attempt's time that is kept for removing the block if there is no swap.
_UNBLOCK_SHARE = 0.25
# Ids of documents to embed in one load; with more, the load looks for all documents without a vector.
_MAX_IDS = 8000


class MigrateOptions(ModelOptions, VectorFieldName, MigrationOptions, RetryOptions, total=False):
    """Keyword arguments of `migrate_index`: the new model, by default that of the index, and the migration."""


@check_arguments
@spell_out(MigrateOptions)
@renamed_setting("index", "alias")
def migrate_index(
    alias: str,
    engine: EngineOrClient = None,
    *,
    progress: ProgressOutput | None = None,
    control: LoadControl | None = None,
    **options: Unpack[MigrateOptions],
) -> MigrationResult:
    """Move the index of an alias to another model, text or index type while it is in use, as `es-sbert index migrate`.

    A new index gets the settings, mapping and documents of the old one. Then all aliases are swapped in one step.
    Writes are refused for a few seconds before. The same call resumes a migration that was stopped or killed, and
    `cancel_migration` cancels it.

    Usage:
        ```python
        result = migrate_index("docs", "http://localhost:9200", model="my-model")
        print(result.target, result.documents)
        ```

    Args:
        alias: The alias, or with `replace_index` the index that becomes one.
        engine: As for `SemanticIndex`.
        progress: Called several times a second while documents are embedded, from one thread.
        control: Stops the migration from another thread: `LoadControl.interrupt`.
        options: See `MigrateOptions`. `report` is called with a message for each step.

    Raises:
        UsageError, IndexMissing, IndexMismatch: the migration is not possible, or the new index fails verification.
        ModelError, DeviceError: as for `Encoder`.
        EngineError: the engine failed; the same call resumes.
        OutputError: the dead-letter file cannot be written.
    """
    chosen: Any = with_defaults(MigrateOptions, options)
    text = parse_text_options(chosen["text_fields"], chosen["text_template"])
    wanted = {name: value for name, value in chosen.items() if name in MigrationRequest.__annotations__}
    request = MigrationRequest(alias, text=text, **wanted)
    control, report = control or LoadControl(), chosen["report"]
    with connected(engine) as opened:
        policy = RetryPolicy(chosen["retry_seconds"])
        retrying = make_retrier(
            policy, lambda reason: report(f"waiting for the engine: {reason}"), control.stop_retrying
        )
        with migration_lock(opened.info.url, alias):
            # Remove the block before a model is loaded: writers have waited since the run that blocked them was killed.
            lifted = retrying(lambda: remove_leftover_block(opened, alias))
        if lifted is not None:
            report(f"{lifted} accepts writes again; an earlier run had blocked them")
        state = retrying(lambda: require_index(opened, alias))
        field = vector_field_from_state(opened, state, request.vector_field)
        meta = field.meta
        with chosen_encoder(options, (field.index, meta.model, meta.fingerprint)) as encoder:
            control.on_start()
            name = encoder.info.model
            texts = meta if text is None else meta.changed(text=text.template)
            languages = sample_languages(opened, field.index, field.name, texts)
            warning = language_warning(languages, alias, name, encoder.info.fingerprint)
            if warning is not None:
                report(f"Warning: {'. '.join(warning)}")
            if encoder.info.fingerprint != meta.fingerprint:
                serve = f"`es-sbert serve --also-model {name}`"
                report(f"Gateways need {name} too, or they refuse searches after the swap: {serve}")
            dead_letters = None if chosen["dead_letters"] is None else Path(chosen["dead_letters"])
            return _migrate(opened, encoder, request, control, as_meter(progress), report, dead_letters, policy)


def _migrate(
    engine: Engine,
    encoder: Encoder,
    request: MigrationRequest,
    control: LoadControl,
    meter: ProgressMeter,
    report: Callable[[str], None],
    dead_letters: Path | None,
    policy: RetryPolicy,
) -> MigrationResult:
    """Run a new or interrupted migration to its end, and return its outcome."""
    retrier = make_retrier(policy, control.engine_wait.begin, control.stop_retrying)

    def retrying(call: Callable[[], T]) -> T:
        answer = retrier(call)
        control.engine_wait.end()
        return answer

    with migration_lock(engine.info.url, request.alias):
        begin = time.monotonic()
        prepared = prepare_migration(engine, request, encoder, retrying)
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
        context = MigrationContext(
            cast(Engine, RetryingEngine(engine, retrying)),
            engine,
            store.state.source,
            target,
            store,
            policy,
            retrying,
            control,
            updates,
            report,
        )
        result = MigrationResult(
            alias=request.alias,
            source=context.source,
            target=target,
            model=encoder.info.model,
            fingerprint=encoder.info.fingerprint,
            resumed=prepared.resumed,
        )
        with closing(DeletionTracker(context)) as tracker:
            run = _MigrationRun(prepared, request, context, encoder, tracker, meter, dead_letters, result)
            result.finished = run.run()
    result.stopped = None if result.finished else (result.stopped or "interrupted")
    result.dropped = request.replace_index and result.finished
    kept = kept_index(context.engine, store.state) if result.finished else None
    result.kept = [] if kept is None else [kept]
    result.documents = context.engine.count(target)
    result.seconds = round(time.monotonic() - begin, 3)
    return result


@dataclass(frozen=True)
class _MigrationRun:
    """The steps of a migration. Each is skipped if an earlier run has done it."""

    prepared: PreparedMigration
    request: MigrationRequest
    context: MigrationContext
    encoder: Encoder
    tracker: DeletionTracker
    meter: ProgressMeter
    dead_letters: Path | None
    result: MigrationResult

    def run(self) -> bool:
        """Do all remaining steps; False if the run was stopped."""
        context, store = self.context, self.context.state_store
        if store.state.phase is MigrationPhase.CLOSING:
            if not context.is_swapped():
                context.retrying(lambda: remove_leftover_block(context.unretried, self.request.alias))
            if context.is_swapped():
                return self._finish()
            store.write(phase=MigrationPhase.COPYING, blocked=False, permit="")
        return self._catch_up() and self._block_and_swap()

    def _catch_up(self) -> bool:
        """Copy and embed in rounds until few changes are left, then verify the copy; False if stopped."""
        context, previous = self.context, math.inf
        self._set_final_pipeline(None)
        for number in range(MAX_ROUNDS):
            context.report("Catching up" if number else f"Copying {context.source} to {context.target}")
            count = self._copy_round()
            if context.is_stopped or not self._embed():
                return False
            if number and (count <= SMALL_ROUND_DOCUMENTS or count >= previous):
                break
            previous = count if number else math.inf
        self._restore_refreshes()
        self.tracker.begin()
        self.result.removed += remove_deleted(context)
        if context.is_stopped:
            return False
        context.report("Comparing counts, documents and vectors")
        self.result.compared = verify_copy(
            context, self.encoder, self.prepared.fields, other_variants=self.prepared.resumed
        )
        return not context.is_stopped

    def _restore_refreshes(self) -> None:
        """Refresh the new index as often as the old one; an interval that somebody set in the meantime is kept."""
        engine, source = self.context.engine, self.prepared.source
        target = engine.get_index(self.context.target)
        if source is not None and target is not None and target.setting(REFRESH_INTERVAL) == "-1":
            engine.put_settings(target.name, {REFRESH_INTERVAL: source.setting(REFRESH_INTERVAL)})

    def _copy_round(self, keys: set[DocumentKey] | None = None) -> int:
        count = copy_changes(self.context, keys=keys)
        self.result.copied += count
        return count

    def _embed(self, ids: Collection[str] | None = None) -> bool:
        """Embed the documents without a vector; False if the user stopped the load.

        Copies never have a vector, so existing vectors are current.

        Args:
            ids: Documents that may have no vector; None for all documents.

        Raises:
            EngineError: the load ended early for another reason.
            EsSbertError: see `run_load`.
        """
        # Fields without a text are skipped: they have never been loaded.
        fields = tuple(name for name, meta in self.prepared.fields.items() if meta.text is not None)
        if not fields or (ids is not None and not ids):
            return True
        context, control, result = self.context, self.context.control, self.result
        settings = IngestSettings(
            index=context.target,
            vectors=fields,
            dead_letters=self.dead_letters,
            only_lacking=True,
            only_ids=None if ids is None or len(ids) > _MAX_IDS else tuple(ids),
            retry_seconds=context.policy.budget,
        )
        plan = context.retrying(lambda: plan_load(context.unretried, settings, sources=[]))
        # The migration prints one summary at its end.
        summary = run_load(context.unretried, self.encoder, plan, control, self.meter, show_summary=False)
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
                f"the documents of {context.target} were not all embedded: {control.reason}",
                "Run the same command again once that is fixed: it resumes.",
            )
        return summary.stopped is None

    def _block_and_swap(self) -> bool:
        """Block writes, copy the last changes, and swap: the new index then has all documents. False if stopped.

        The first attempt may take half of the time that the request allows, the second what is left of all of it.
        Writes are accepted again in between.

        Raises:
            EngineError: no attempt was short enough.
        """
        source, most = self.context.source, self.request.max_write_block
        for number in range(MAX_HOLDS):
            seconds = most - self.result.writes_refused_seconds if number else most / 2
            if seconds < most * _MIN_HOLD_SHARE:
                break
            self._set_final_pipeline(None)
            if not self._shorten_rounds():
                return False
            try:
                return self._hold_and_swap(seconds)
            except HoldExpired as error:
                if self.context.is_swapped():
                    return self._finish()
                reason = f": {error}" if str(error) else ""
                self.context.report(f"Writes to {source} are accepted again: {seconds:.2f} s were not enough{reason}")
        raise EngineError(
            f"{source} was not swapped: writes would have been refused for more than {most:g} s, in "
            f"{pluralize(self.result.holds, 'attempt')}. Nothing is lost, and {source} accepts writes",
            f"Run the same command again when less is written, or allow more: {setting('max_write_block', 'SECONDS')}. "
            f"To cancel: `es-sbert index migrate {self.request.alias} --cancel`.",
        )

    def _hold_and_swap(self, seconds: float) -> bool:
        """Make one attempt to block writes and swap; False if the user stopped it.

        Args:
            seconds: Seconds for which writes may be refused.

        Raises:
            HoldExpired: the attempt took too long; writes are accepted again.
            EngineError: the engine failed.
        """
        context, store, result = self.context, self.context.state_store, self.result
        work = seconds * (1 - _UNBLOCK_SHARE)
        block = WriteBlock(permit_name(context.target, uuid.uuid4().hex))
        try:
            with block_writes(context, block, work), store.defer_writes():
                done = False
                with context.control.time_limit(max(0.0, block.began + work - time.monotonic())) as expired:
                    try:
                        done = self._last_round()
                        if done:
                            self._set_final_pipeline(store.state.final_pipeline)
                            self._swap(block)
                    except EsSbertError:
                        if not expired.is_set():
                            raise
                if expired.is_set():
                    raise HoldExpired
                if not done:
                    return False
        finally:
            result.holds += 1
            result.writes_refused_seconds = round(result.writes_refused_seconds + block.seconds, 3)
        return self._finish()

    def _last_round(self) -> bool:
        """Make the new index equal to the old one, which takes no writes; False if stopped.

        Raises:
            IndexMismatch: the numbers of documents still differ.
        """
        context = self.context
        wait_until_replicated(context)
        if not self._short_round():
            return False
        for remove in (self.tracker.remove, lambda: remove_deleted(context)):
            if verify_counts(context, surplus_ok=True):
                return not context.is_stopped
            self.result.removed += remove()
            if context.is_stopped:
                return False
        verify_counts(context)
        return not context.is_stopped

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
        self.context.engine.flush(self.context.source)
        return True

    def _short_round(self) -> bool:
        """Copy and embed what has changed; False if stopped."""
        keys: set[DocumentKey] = set()
        self._copy_round(keys)
        self.tracker.copied |= keys
        return not self.context.is_stopped and self._embed({document_id for document_id, _ in keys})

    def _set_final_pipeline(self, pipeline: str | None) -> None:
        """Set the final pipeline of the new index, if it has one. Copies go around it: they went through it before."""
        if self.context.state_store.state.final_pipeline is not None:
            self.context.engine.put_settings(self.context.target, {FINAL_PIPELINE: pipeline})

    def _swap(self, block: WriteBlock) -> None:
        context, source, target = self.context, self.context.source, self.context.target
        aliases = context.engine.get_aliases(source).get(source, {})
        if self.request.replace_index:
            state = context.engine.get_index(source)
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
        try:
            context.unretried.update_aliases([use_permit_action(target, block.permit), *actions])
        except EngineError as error:
            # The swap may have been made although its response was lost.
            if not context.is_swapped():
                if is_transient(error):
                    # The end of the block makes sure that the request is not carried out later.
                    raise HoldExpired(error.message) from error
                if block.permit not in context.engine.get_aliases(target).get(target, {}):
                    raise taken_over_error(target) from error
                raise
        context.report(f"{self.request.alias} points to {target} now")

    def _finish(self) -> bool:
        """Apply the lifecycle policy of the old index to the new one, and store the end; returns True."""
        store, target = self.context.state_store, self.context.target
        if store.state.lifecycle:
            policy = store.state.lifecycle.get(f"{LIFECYCLE}name")
            try:
                self.context.engine.put_settings(target, store.state.lifecycle)
                note = f"The lifecycle policy {policy} applies to {target} now, and counts its age from its creation."
            except RequestFailed as error:
                note = f"Warning: the lifecycle policy {policy} could not be applied to {target}: {error.message}"
            self.result.notes.append(note)
        store.write(phase=MigrationPhase.DONE)
        return True
