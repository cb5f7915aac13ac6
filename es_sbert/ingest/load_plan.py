"""The settings of a load, its plan, which is checked before a model is loaded, and the context of a running load."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from es_sbert.bundle.modules import PromptKind
from es_sbert.clock import Clock
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.retry import RetryPolicy, Throttle, with_retries
from es_sbert.errors import EngineError, EsSbertError, IndexMismatch, UsageError
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.index.document_vectors import EmbeddingTargets, targets_to_fill
from es_sbert.index.load_checks import (
    check_can_load_files,
    read_target_index,
)
from es_sbert.index.mapping import (
    ChunkRules,
    VectorFieldMeta,
    check_field_name,
    document_meta_field,
    vector_fields,
)
from es_sbert.index.privileges import CREATE, LOAD, PRUNE, SEARCH, require_privileges
from es_sbert.index.source_mode import check_can_hold_vectors, check_source_is_whole
from es_sbert.index.text_template import (
    DEFAULT_TEXT_FIELD,
    TextTemplate,
    check_name_conflicts,
    parse_text_options,
)
from es_sbert.index.vector_field import FieldRequest, index_not_found
from es_sbert.ingest.checkpoint import LoadCheckpoint, default_checkpoint_path
from es_sbert.ingest.dead_letters import (
    check_dead_letter_index,
    check_dead_letters_writable,
    default_dead_letters_path,
    find_dead_letters,
)
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.ledger import OutcomeRecorder
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import (
    ProgressMeter,
    ProgressTracker,
    fraction_processed,
)
from es_sbert.ingest.read_documents import DocumentRules
from es_sbert.ingest.sources.column_types import mapped_types
from es_sbert.ingest.sources.document_source import MAX_DOCUMENT_BYTES, DocumentSource, ReadSettings, check_sources
from es_sbert.ingest.sources.file_sources import find_sources
from es_sbert.messages import setting

P = ParamSpec("P")
T = TypeVar("T")


def resolve_sources(settings: IngestSettings) -> Sequence[DocumentSource]:
    """Find the sources to load; none for documents of the index. Needs no engine, which may still be starting.

    Raises:
        UsageError: options conflict.
        SourceError: a file does not exist.
    """
    if settings.retry is None:
        return find_sources(settings.files, settings.file_options)
    if settings.files:
        raise UsageError(f"FILE and {setting('retry')} cannot be combined", "Use one of them.").about("retry")
    if settings.delimiter or settings.encoding:
        [name, *others] = [name for name in ("delimiter", "encoding") if getattr(settings, name)]
        error = UsageError(f"{setting('delimiter')} and {setting('encoding')} apply only to FILE", "Leave them out.")
        raise error if others else error.about(name, getattr(settings, name))
    return [find_dead_letters(settings.retry)]


@dataclass(frozen=True)
class PlannedField:
    """A vector field that a load will fill.

    Attributes:
        field: Name of the field.
        template: The text of its vectors.
        chunk_rules: The chunking rules of `passages`; None keeps those of the index.
        stored: Metadata of the field in the mapping; None if the field is new.
    """

    field: str
    template: TextTemplate
    chunk_rules: ChunkRules | None
    stored: VectorFieldMeta | None


def plan_fields(settings: IngestSettings, stored: Mapping[str, VectorFieldMeta]) -> tuple[PlannedField, ...]:
    """Plan the vector fields that the settings name.

    Args:
        stored: Fields of the index.

    Raises:
        UsageError: options conflict or are invalid, or a new field has no text.
    """
    texts = {
        field: template or _stored_text(settings, field, stored.get(field))
        for field, template in _given_texts(settings).items()
    }
    if settings.strip_html:
        texts = {field: template.stripping_html() for field, template in texts.items()}
    check_name_conflicts(texts, settings.key_fields)
    rules = ChunkRules.from_options(settings.passages, settings.passage_overlap)
    return tuple(PlannedField(field, template, rules, stored.get(field)) for field, template in texts.items())


def _given_texts(settings: IngestSettings) -> dict[str, TextTemplate | None]:
    """Vector field → the text that the options give; None if they give none."""
    text_fields, text_template = settings.text_fields, settings.text_template
    if not settings.vectors:
        return {settings.vector_field: parse_text_options(text_fields, text_template)}
    if text_fields or text_template is not None:
        raise UsageError(
            f"{setting('vectors')} cannot be combined with {setting('text_fields')} or {setting('text_template')}",
            f"Leave them out: {setting('vectors')} includes the text of its vector fields.",
        ).about("vectors")
    option_texts: dict[str, TextTemplate | None] = {}
    for option in settings.vectors:
        field, equals, template = option.partition("=")
        check_field_name(field)
        if field in option_texts:
            raise UsageError(
                f"the vector field {field} is named twice", f"Name each field of {setting('vectors')} once."
            ).about("vectors", field)
        option_texts[field] = TextTemplate.parse(template) if equals else None
    return option_texts


def _stored_text(settings: IngestSettings, field: str, stored: VectorFieldMeta | None) -> TextTemplate:
    """The text of a field for which no option gives one."""
    if stored is not None and stored.text is not None:
        return TextTemplate.parse(stored.text)
    if settings.vectors:
        raise UsageError(
            f"the mapping does not name the text of {field}",
            f"Set {setting('vectors', [f'{field}={{FIELD}}'])}.",
        ).about("vectors", field)
    return TextTemplate.from_fields([DEFAULT_TEXT_FIELD])


@dataclass(frozen=True)
class ModelIdentity:
    """Identity of a model, as an index stores it."""

    name: str
    fingerprint: str
    dimensions: int


@dataclass(frozen=True)
class LoadPlan:
    """A load whose input and index were checked, before a model is loaded.

    Attributes:
        sources: The sources to load; none for documents of the index.
        fields: The vector fields to fill; at least one.
        state: The index now; None if it does not exist yet.
        dead_letters: The dead-letter file.
        state_file: The checkpoint; None for documents of the index, which needs none.
    """

    settings: IngestSettings
    sources: Sequence[DocumentSource]
    fields: tuple[PlannedField, ...]
    state: IndexState | None
    dead_letters: Path
    state_file: Path | None

    @property
    def dead_letters_place(self) -> str:
        """Location of the dead letters, for messages."""
        return "LoadReport.rejected" if self.settings.returns_dead_letters else str(self.dead_letters)

    @property
    def stored(self) -> VectorFieldMeta | None:
        """The metadata of the first field that exists already; None if all are new."""
        return next((field.stored for field in self.fields if field.stored is not None), None)

    @property
    def text_fields(self) -> tuple[str, ...]:
        """All fields of all texts."""
        return tuple(dict.fromkeys(name for field in self.fields for name in field.template.fields))

    @property
    def reading(self) -> ReadSettings:
        """The options for reading the sources."""
        settings, state = self.settings, self.state
        # The load keeps vectors of other fields whose text has not changed.
        metas = () if state is None else vector_fields(state.mappings, state.name).values()
        kept_fields = (name for meta in metas if meta.text is not None for name in TextTemplate.parse(meta.text).fields)
        text_fields = tuple(dict.fromkeys((*self.text_fields, *kept_fields)))
        typed_fields = (*text_fields, *settings.key_fields)
        # Every machine uses the mapping as it was when the load was planned.
        types = {} if state is None else mapped_types(state.mappings, state.settings, typed_fields)
        return ReadSettings(
            MAX_DOCUMENT_BYTES,
            plain_text_field=self.text_fields[0],
            target_index=settings.index,
            text_fields=text_fields,
            key_fields=settings.key_fields,
            column_types=types,
        )

    def check_chunk_rules(self, make_chunker: Callable[[int, int, PromptKind], object]) -> None:
        """Check that chunk rules fit the model, before an index is created with them.

        Args:
            make_chunker: See `TextPipeline.make_chunker`.

        Raises:
            UsageError: a chunk rule does not fit the model.
        """
        for planned in self.fields:
            if planned.chunk_rules is not None:
                make_chunker(planned.chunk_rules.tokens, planned.chunk_rules.overlap, "document")

    def field_requests(self, model: ModelIdentity) -> list[FieldRequest]:
        """The vector fields that the index must have for a model, one request per planned field."""
        return [
            FieldRequest(
                planned.field,
                model.fingerprint,
                model.name,
                model.dimensions,
                index_type=self.settings.index_type,
                text=planned.template.template,
                passages=planned.chunk_rules,
                documents_checked=True,  # by `check_first_records`
            )
            for planned in self.fields
        ]

    def document_rules(self, targets: EmbeddingTargets, info: EngineInfo, index: IndexState | None) -> DocumentRules:
        """The rules that turn records into documents.

        Args:
            targets: The vector fields of the index.
            info: The engine.
            index: The index; None if it does not exist yet.
        """
        fields = {} if index is None else dict(mapped_fields(index.mappings.get("properties", {})))
        return DocumentRules(
            targets,
            self.settings.id_field,
            None if index is None else index.alias(self.settings.index).get("index_routing"),
            routing_field=self.settings.routing_field,
            metadata_fields=info.metadata_fields,
            join_fields=tuple(name for name, field in fields.items() if field.get("type") == "join"),
        )


def plan_load(engine: Engine, settings: IngestSettings, sources: Sequence[DocumentSource]) -> LoadPlan:
    """Check everything that can be checked before a model is loaded and a document is written.

    Args:
        sources: The result of `resolve_sources`, or documents from Python; none for documents of the index.

    Raises:
        AccessDenied: the user lacks a privilege that the load needs.
        UsageError: options conflict.
        SourceError: a file cannot be read, or lacks a required column.
        OutputError: the dead-letter file could not be written.
        IndexMissing: the documents of the index are to be embedded, and the index does not exist.
        IndexMismatch: the mapping's `_meta` is damaged, or an alias of several indices has no write index.
        VectorIndexError: the index cannot take the documents.
        EngineError: the engine failed.
    """
    watches, in_place = settings.watch_seconds is not None, not sources
    for is_conflict, problem, remedy in (
        (
            settings.prune and (settings.retry is not None or in_place),
            f"{setting('prune')} needs sources: it removes documents that they no longer contain",
            f"Pass all sources that the index is loaded from, and leave {setting('retry')} out.",
        ),
        (
            watches and not in_place,
            f"{setting('watch_seconds')} cannot be combined with sources: it embeds what other programs write",
            "Leave the sources out, and load them with a separate command.",
        ),
        (
            in_place and bool(settings.key_fields),
            f"{setting('id_field')} and {setting('routing_field')} do not apply to documents of the index",
            "Leave them out: these documents keep their ids and routing.",
        ),
    ):
        if is_conflict:
            raise UsageError(problem, remedy)
    name = settings.index
    dead_letters = settings.dead_letters or default_dead_letters_path(name)
    if settings.dry_run is None:
        check_dead_letters_writable(dead_letters)
    state = read_target_index(engine, name, files=bool(sources))
    stored = vector_fields(state.mappings, state.name) if state else {}
    fields = plan_fields(settings, stored)
    if settings.retry is not None:
        # Letters of an alias may belong to its write index.
        written = [] if state is None else [state.name, *(each for each in state.aliases if state.takes_writes(each))]
        check_dead_letter_index(settings.retry, [name, *written])
    if not sources:
        if state is None:
            raise index_not_found(name, engine)
        check_can_hold_vectors(state)
        # With several fields, a document may get a vector in one of them and would lose the others.
        made = [field.field for field in fields] if len(fields) == 1 else []
        check_source_is_whole(state, made, "Load the documents from files.")
    elif state is not None:
        meta_fields = [document_meta_field(field.field) for field in fields]
        check_can_load_files(state, name, meta_fields, routing_field=settings.routing_field)
    if settings.dry_run is None:
        task = CREATE if state is None else PRUNE if settings.prune else LOAD
        require_privileges(engine, name if state is None else state.name, task)
    elif state is not None:
        require_privileges(engine, state.name, SEARCH)
    state_file = (settings.state or default_checkpoint_path(name, sources)) if sources else None
    plan = LoadPlan(settings, sources, fields, state, dead_letters, state_file)
    if settings.retry is None:
        check_sources(sources, MAX_DOCUMENT_BYTES, plan.text_fields, settings.id_field, settings.routing_field)
    return plan


@dataclass(frozen=True)
class IndexRef:
    """The index of a load, by both of its names.

    Attributes:
        alias: The name that the user gave, often the index's own. Read requests use it, because an alias may have a
            filter.
        state: State of the index at the start of the load.
    """

    alias: str
    state: IndexState

    @property
    def concrete(self) -> str:
        """The index's own name. Write requests use it, because an alias may be moved to another model's index."""
        return self.state.name


@dataclass(frozen=True)
class LoadContext:
    """The shared state of the parts of a load.

    Attributes:
        index: The index that the load fills.
        targets: The vector fields of the load.
        throttle: Limits the size and the number of bulk requests.
        checkpoint: The records seen and acknowledged; None if the index is the source.
        clock: Gives dead letters and vectors their timestamps.
    """

    engine: Engine
    plan: LoadPlan
    index: IndexRef
    targets: EmbeddingTargets
    control: LoadControl
    outcomes: OutcomeRecorder
    throttle: Throttle
    checkpoint: LoadCheckpoint | None = None
    clock: Clock = dataclasses.field(default_factory=Clock)
    meter: ProgressMeter = dataclasses.field(default_factory=ProgressMeter)

    @property
    def retry_policy(self) -> RetryPolicy:
        """The time limit for retries of a transient failure."""
        return RetryPolicy(self.plan.settings.retry_seconds)

    @property
    def in_place_command(self) -> str:
        """The command that embeds the documents of the index that lack a vector of this load."""
        fields = " ".join(f"--vector {target.field}" for target in targets_to_fill(self.targets))
        return f"`es-sbert ingest --index {self.index.alias} {fields}`"

    def retrying(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function and return its result; transient failures are retried.

        Raises:
            EngineError: the failure is not transient, or has outlasted `retry_seconds`.
        """

        def record_retry(error: EngineError) -> None:
            self.control.engine_wait.begin(error.message)
            self.outcomes.ledger.add(retries=1)

        stop = self.control.stop_retrying
        result = with_retries(lambda: call(*args, **kwargs), self.retry_policy, stop, record_retry)
        self.control.engine_wait.end()
        return result

    def refresh_index(self) -> bool:
        """Make the documents visible to searches; return False if the refresh failed."""
        try:
            self.retrying(self.engine.refresh, self.index.alias)
        except EngineError as error:
            # Not an error: all documents are written, and a load of hours must not fail because of a refresh.
            late = "the last refresh failed, so searches find the documents a little later"
            self.control.end_early(f"{late}: {error.message}")
            return False
        return True

    def check_index_unchanged(self) -> IndexState:
        """Check that the index is the one that the load started with.

        Returns:
            The current state of the index.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed.
        """
        state = self.retrying(self.engine.get_index, self.index.alias)
        if state is None or state.uuid != self.index.state.uuid:
            raise self.index_replaced_error()
        return state

    def check_index_uuid(self) -> None:
        """Like `check_index_unchanged`, but with one small request and without retries.

        Engines create a missing index when a document arrives, without our mapping.

        Raises:
            IndexMismatch: the index was deleted or replaced.
            EngineError: the engine failed.
        """
        if self.engine.index_uuids(self.index.concrete).get(self.index.concrete) != self.index.state.uuid:
            raise self.index_replaced_error()

    def moved_alias_reason(self) -> str | None:
        """Say that the alias of the load points to a different index now, so there are no more writes to wait for.

        None if it does not, if the load names the index itself, or if the engine cannot be asked.
        """
        alias, concrete = self.index.alias, self.index.concrete
        try:
            state = None if alias == concrete else self.engine.get_index(alias)
        except EsSbertError:
            return None
        # Where the alias was deleted, a write of another program creates an index of that name.
        if state is None or state.name in (alias, concrete):
            return None
        return (
            f"{alias} pointed to {concrete} when the load began, and points to {state.name} now, as after a migration"
        )

    def index_replaced_error(self) -> IndexMismatch:
        """Create the error for an index that was deleted or replaced, or whose alias was moved."""
        alias, moved = self.index.alias, self.moved_alias_reason()
        if moved is not None:
            remedy = f"Run the same command again, with the model and text that `es-sbert index show {alias}` shows."
            return IndexMismatch(moved, remedy)
        return IndexMismatch(
            f"the index {self.index.concrete} was deleted or replaced during the load",
            f"Check the index under the name {alias}, delete it if only this load wrote to it, and run the same "
            "command again.",
        )

    def progress_callback(
        self, fraction_read: Callable[[], float | None], *, watching: Callable[[], bool] = lambda: False
    ) -> Callable[[], None]:
        """Return a function that shows the progress of the load whenever it is called.

        Args:
            fraction_read: The part of the source that was read, 0 to 1; None if its size is unknown.
            watching: Whether the load waits for changes of the index.
        """
        tracker, ledger = ProgressTracker(), self.outcomes.ledger

        def tick() -> None:
            read, processed = ledger.read, ledger.processed
            fraction = fraction_processed(read, processed, fraction_read())
            waiting, outcomes = self.control.engine_wait.reason, ledger.counts()
            self.meter.show(
                tracker.snapshot(read, processed, fraction, waiting, watching=watching(), outcomes=outcomes)
            )

        return tick
