"""A load whose input and index were looked at, before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from es_sbert.engines.protocol import Engine, IndexState
from es_sbert.errors import UsageError, VectorIndexError
from es_sbert.index.ensure import missing_index
from es_sbert.index.meta import VectorFieldMeta, document_meta_field
from es_sbert.index.privileges import CREATE, LOAD, PRUNE, SEARCH, require
from es_sbert.index.schema import vector_fields
from es_sbert.ingest.dead_letters import check_letters, default_path
from es_sbert.ingest.fields import PlannedField, planned_fields
from es_sbert.ingest.index_fitness import check_takes_files, check_takes_vectors, read_target_index
from es_sbert.ingest.settings import IngestSettings, LoadSettings
from es_sbert.ingest.sources.check import check_sources
from es_sbert.ingest.sources.find import find_sources, letters_source
from es_sbert.ingest.sources.letters import check_index_of_letters
from es_sbert.ingest.sources.source import ReadSettings, Source
from es_sbert.ingest.sources.sql import SqlSource
from es_sbert.ingest.state import default_state
from es_sbert.ingest.triage import lost_fields


@dataclass(frozen=True)
class Plan:
    """A load whose input and index were looked at, before a model is loaded.

    Attributes:
        settings: What was asked for.
        sources: What to load; none for documents of the index.
        fields: The vector fields to fill; at least one.
        state: The index as it stands; None where it does not exist yet.
        dead_letters: The dead-letter file.
        state_file: Where a killed load goes on from; None for documents of the index, which is its own state.
    """

    settings: IngestSettings
    sources: Sequence[Source]
    fields: tuple[PlannedField, ...]
    state: IndexState | None
    dead_letters: Path
    state_file: Path | None

    @property
    def stored(self) -> VectorFieldMeta | None:
        """What the mapping says of the first field that is filled already; None where all of them are new."""
        return next((field.stored for field in self.fields if field.stored is not None), None)

    @property
    def text_fields(self) -> tuple[str, ...]:
        """All fields of all texts."""
        return tuple(dict.fromkeys(name for field in self.fields for name in field.template.fields))

    @property
    def reading(self) -> ReadSettings:
        """How the sources are read."""
        settings = self.settings
        return ReadSettings(
            settings.max_document_bytes, plain_field=self.text_fields[0], index=settings.index,
            retry_seconds=settings.retry_seconds,
        )  # fmt: skip

    @property
    def source(self) -> str:
        """`files`, `sql` or `index`: where the documents come from."""
        if self.settings.sql is not None:
            return "sql"
        return "files" if self.sources else "index"


def plan(engine: Engine, settings: IngestSettings, sources: Sequence[Source] | None = None) -> Plan:
    """Check everything that can be checked before a model is loaded and a document written.

    Args:
        sources: What `sources_of` has found, where it was called already.

    Raises:
        AccessDenied: the user lacks a privilege that the load needs.
        UsageError: options that contradict each other.
        SourceError: a file that cannot be read, or lacks the columns asked for.
        OutputError: the dead-letter file could not be written.
        IndexMissing: documents of an index that does not exist.
        IndexMismatch: the mapping's `_meta` is damaged, or an alias points to several indices.
        VectorIndexError: the index does not take documents in this way.
        EngineError: the engine failed.
    """
    sources = sources_of(settings) if sources is None else sources
    if settings.prune and (settings.retry is not None or not sources):
        raise UsageError("--prune compares the index with a source", "Give all that the index is loaded from.")
    if settings.watch_seconds is not None and sources:
        raise UsageError(
            "--watch looks at documents that are written to the index",
            "Leave FILE out; load it by a command of its own.",
        )
    if settings.watch_seconds is not None and settings.load_settings is LoadSettings.FAST:
        raise UsageError("--watch goes on for ever, so the settings of a load would stay", "Leave out --load-settings.")
    if not sources and settings.id_field is not None:
        raise UsageError("--id-field is for documents from elsewhere", "Leave it out: documents of the index have ids.")
    if settings.replace_text_template:
        check_replaces_text(settings, sources)
    letters = settings.dead_letters or default_path(settings.index)
    if settings.dry_run is None:
        check_letters(letters)
    state = read_target_index(engine, settings.index, files=bool(sources))
    fields = planned_fields(settings, vector_fields(state.mappings, state.name) if state else {})
    if settings.retry is not None:
        check_index_of_letters(settings.retry, {settings.index, *((state.name, *state.aliases) if state else ())})
    if not sources:
        if state is None:
            raise missing_index(settings.index, engine)
        check_takes_vectors(state)
        # Of several fields, a document may get one and would lose the others.
        lost = lost_fields(state.mappings, [field.field for field in fields] if len(fields) == 1 else [])
        if lost is not None:
            raise VectorIndexError(
                f"the index {state.name} keeps no {lost}: documents that get a vector where they stand would lose it",
                "Load the documents from files.",
            )
    elif state is not None:
        check_takes_files(state, settings.index, [document_meta_field(field.field) for field in fields])
    _require_privileges(engine, settings, state)
    state_file = (settings.state or default_state(settings.index, sources)) if sources else None
    wanted = Plan(settings, sources, fields, state, letters, state_file)
    if settings.retry is None:
        check_sources(sources, settings.max_document_bytes, wanted.text_fields, settings.id_field)
    return wanted


def _require_privileges(engine: Engine, settings: IngestSettings, state: IndexState | None) -> None:
    if state is None:
        if settings.dry_run is None:
            require(engine, settings.index, CREATE)
    elif settings.dry_run is not None:
        require(engine, state.name, SEARCH)
    else:
        require(engine, state.name, PRUNE if settings.prune else LOAD)


def check_replaces_text(settings: IngestSettings, sources: Sequence[Source]) -> None:
    """Refuse options that do not go with --replace-text-template.

    Raises:
        UsageError: documents from elsewhere, or no text.
    """
    if sources:
        raise UsageError(
            "--replace-text-template embeds all documents that the index holds",
            "Leave FILE, --sql and --retry out, and load them afterwards by a command without --replace-text-template.",
        )
    if not (settings.text_fields or settings.text_template or any("=" in given for given in settings.vectors)):
        raise UsageError(
            "--replace-text-template needs the new text", "Add --text-template '{title}. {body}' or --text-field FIELD."
        )


def sources_of(settings: IngestSettings) -> Sequence[Source]:
    """What is to be loaded; none for documents of the index. Found without the engine, which may be waited for.

    Raises:
        UsageError: options that contradict each other.
        SourceError: there is no such file.
    """
    ways = {"FILE": settings.files, "--retry": settings.retry, "--sql": settings.sql}
    given = [way for way, value in ways.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", "Give one of them.")
    if settings.retry is not None:
        return [letters_source(settings.retry)]
    if settings.sql is None:
        return find_sources(settings.files, settings.format)
    if settings.database is None:
        raise UsageError(
            "--sql needs a database", "Give its address in ES_SBERT_DATABASE, a --database-file or --database."
        )
    return [SqlSource(settings.sql, settings.database)]
