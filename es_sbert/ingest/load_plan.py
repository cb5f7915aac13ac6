"""The settings of a load, and its plan: sources, vector fields and index, checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, Field, SecretStr

from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.index_state import IndexState
from es_sbert.errors import UsageError, VectorIndexError
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.index.document_vectors import EmbeddingTargets
from es_sbert.index.load_checks import (
    check_can_hold_vectors,
    check_can_load_files,
    fields_missing_from_source,
    read_target_index,
)
from es_sbert.index.mapping import ChunkRules, VectorFieldMeta, check_field_name, document_meta_field, vector_fields
from es_sbert.index.privileges import CREATE, LOAD, PRUNE, SEARCH, require_privileges
from es_sbert.index.text_template import (
    DEFAULT_TEXT_FIELD,
    TextTemplate,
    check_name_conflicts,
    format_text_options,
    parse_text_options,
)
from es_sbert.index.vector_field import FieldRequest, VectorField, index_not_found, similar_fields
from es_sbert.ingest.checkpoint import default_checkpoint_path
from es_sbert.ingest.dead_letters import (
    check_dead_letter_index,
    check_dead_letters_writable,
    default_dead_letters_path,
    find_dead_letters,
)
from es_sbert.ingest.ledger import DEFAULT_LIMIT, NO_LIMIT, ErrorLimit
from es_sbert.ingest.read_documents import DocumentRules
from es_sbert.ingest.sources.column_types import CellType, ColumnTypes, DecimalMark, mapped_types, parse_types
from es_sbert.ingest.sources.document_source import DocumentSource, ReadSettings, check_sources
from es_sbert.ingest.sources.find_sources import FileOptions, find_sources
from es_sbert.ingest.sources.sql_source import SqlSource
from es_sbert.io.file_formats import FileFormat
from es_sbert.messages import setting_text

MIB = 1 << 20


class BulkLoadSettings(StrEnum):
    """Whether an index is loaded without refreshes and replicas."""

    AUTO = "auto"  # an index that this load creates
    FAST = "fast"  # any index: searches see nothing new before the end, and a lost node would lose the load
    KEEP = "keep"  # none


class IngestSettings(BaseModel, frozen=True, extra="forbid"):
    """A load, apart from the engine and the model.

    Attributes:
        index: Index or alias; of an alias of several indices, its write index is loaded.
        files: Files, patterns, addresses or `-`; none of them, and no query, embeds what the index holds already.
        format: Format of all files; None derives it from their names.
        delimiter: Delimiter of CSV files; None detects it in each file.
        encoding: Encoding of text files; None for UTF-8, or UTF-16 with a byte order mark.
        sheet: Sheet of Excel workbooks; None for the only one.
        types: Types of columns of CSV and TSV files, such as `price=float,in_stock=boolean`; columns without one have
            the type of their field in the index.
        decimal: Decimal mark of numbers in CSV and TSV files; None for a point, without groups of thousands.
        text_fields: Fields of the text; several, and the values of a list, are joined with line feeds. Empty takes the
            index's template, or `text`.
        text_template: Template of the text instead of `text_fields`.
        strip_html: Embed the text of HTML without its tags; the documents keep them.
        id_field: Field of the id; None takes the hash of the content.
        routing_field: Field of the custom routing, such as the parent of a join field; documents without a value there
            have none.
        vector_field: Field that takes the vector.
        vectors: Several vector fields, instead of the settings above: each `NAME={field} …`, or just `NAME` if the
            index knows its text.
        passages: Split texts into passages: `TOKENS` for every vector field, or `NAME=TOKENS`.
        passage_overlap: Tokens that neighboring passages share; None for an eighth of a passage.
        index_type: Index type of a field that does not exist yet.
        element_type: Element type of a field that does not exist yet.
        batch_window: Texts that are sorted by length and embedded together; by default what suits the device.
        bulk_bytes: Largest body of a bulk request.
        retry_seconds: How long transient failures of the engine are retried.
        max_document_bytes: Longest document.
        dead_letters: File of documents that cannot be loaded; None names it after the index.
        returns_dead_letters: Whether the caller reads that file, returns its content and deletes it.
        load_settings: Whether to switch refreshes and replicas off while loading.
        prune: Remove documents that an earlier load wrote and that the files no longer have.
        retry: Dead-letter file whose documents are loaded again, instead of `files`.
        watch_seconds: With no files: keep embedding what other writers add or change, checking at this interval in
            seconds.
        sql: Query whose rows are loaded, instead of `files`.
        database: Address of the database; may hold a password.
        only_lacking: Read only documents of the index that lack a vector; all vectors in the index are known to be
            current.
        only_ids: Read only documents of the index with these ids, at most 8,000; None reads all.
        state: Checkpoint from which a killed load resumes; None puts it next to the first source.
        max_errors: How many documents may fail before the load stops; None for the default of this kind of load.
        replace_text_template: With no files: embed all documents again, from a different text.
        dry_run: Number of documents to show as they would be embedded, without writing anything; None for a load.
    """

    index: str
    files: tuple[str, ...] = ()
    format: FileFormat | None = None
    delimiter: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    types: tuple[str, ...] = ()
    decimal: DecimalMark | None = None
    text_fields: tuple[str, ...] = ()
    text_template: str | None = None
    strip_html: bool = False
    id_field: str | None = None
    routing_field: str | None = None
    vector_field: str = DEFAULT_VECTOR_FIELD
    vectors: tuple[str, ...] = ()
    passages: tuple[str, ...] = ()
    passage_overlap: int | None = Field(default=None, ge=0)
    index_type: str | None = None
    element_type: str | None = None
    batch_window: int | None = Field(default=None, ge=1)
    bulk_bytes: int = Field(default=5 * MIB, ge=1024)
    retry_seconds: float = Field(default=300.0, ge=0)
    max_document_bytes: int = Field(default=16 * MIB, ge=1024)
    dead_letters: Path | None = None
    returns_dead_letters: bool = False
    load_settings: BulkLoadSettings = BulkLoadSettings.AUTO
    prune: bool = False
    retry: Path | None = None
    watch_seconds: float | None = Field(default=None, gt=0)
    sql: str | None = None
    database: SecretStr | None = None
    only_lacking: bool = False
    only_ids: tuple[str, ...] | None = Field(default=None, max_length=8000)
    state: Path | None = None
    max_errors: ErrorLimit | None = None
    replace_text_template: bool = False
    dry_run: int | None = Field(default=None, ge=1)

    @property
    def file_options(self) -> FileOptions:
        """The options for reading the files.

        Raises:
            UsageError: there is no such encoding, delimiter or type.
        """
        return FileOptions(self.format, self.delimiter, self.encoding, self.sheet, self.types, self.decimal)

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The id field and the routing field, if given."""
        return tuple(name for name in (self.id_field, self.routing_field) if name is not None)

    @property
    def error_limit(self) -> ErrorLimit:
        """How many documents may fail before the load stops.

        Three kinds of loads have no limit by default: a retry of dead letters, whose documents have failed before; a
        watch, which runs as a service; and a migration, which must not depend on documents that were invalid before.
        """
        if self.max_errors is not None:
            return self.max_errors
        unlimited = self.retry is not None or self.watch_seconds is not None or self.only_lacking
        return NO_LIMIT if unlimited else DEFAULT_LIMIT


@dataclass(frozen=True)
class PlannedField:
    """A vector field that a load is to fill.

    Attributes:
        field: Its name.
        template: The text of its vectors.
        chunk_rules: The chunking rules of `passages`; None keeps those of the index.
        stored: Its metadata in the mapping; None if it is new.
        text_options: The options that gave the text, for commands in messages; None if it is that of the index or the
            default.
        similar: The field of this name in another index of the alias, which a new field must match.
    """

    field: str
    template: TextTemplate
    chunk_rules: ChunkRules | None
    stored: VectorFieldMeta | None
    text_options: str | None = None
    similar: VectorField | None = None

    @property
    def known(self) -> VectorFieldMeta | None:
        """The metadata of the field, else of `similar`; None if the field is new everywhere."""
        return self.stored or (None if self.similar is None else self.similar.meta)


def plan_fields(
    settings: IngestSettings,
    stored: Mapping[str, VectorFieldMeta],
    similar: Mapping[str, VectorField] | None = None,
) -> tuple[PlannedField, ...]:
    """The vector fields of the settings.

    Args:
        stored: Fields of the index.
        similar: Fields of the other indices of the alias; a field that the index lacks follows them.

    Raises:
        UsageError: options that contradict each other or cannot be read, or a new field without a text.
    """
    followed = {field: other for field, other in (similar or {}).items() if field not in stored}
    metas = {field: other.meta for field, other in followed.items()} | dict(stored)
    option_texts = _given_texts(settings)
    texts = {
        field: template or _stored_text(settings, field, metas.get(field))
        for field, (template, _) in option_texts.items()
    }
    options = {field: text for field, (_, text) in option_texts.items()}
    if settings.strip_html:
        texts = {field: template.stripping_html() for field, template in texts.items()}
        options = {field: format_text_options(field, (), template.template) for field, template in texts.items()}
    check_name_conflicts(texts, settings.key_fields)
    chunk_rules = _chunk_rules(settings, list(texts))
    for field, other in followed.items():
        if other.meta.passages is not None:
            chunk_rules.setdefault(field, other.meta.passages)
    return tuple(
        PlannedField(field, template, chunk_rules.get(field), stored.get(field), options[field], followed.get(field))
        for field, template in texts.items()
    )


def _given_texts(settings: IngestSettings) -> dict[str, tuple[TextTemplate | None, str | None]]:
    """Vector field → the text that the options give, and these options as `ingest` takes them for this field alone."""
    text_fields, text_template = settings.text_fields, settings.text_template
    if not settings.vectors:
        field = settings.vector_field
        options = format_text_options(field, text_fields, text_template)
        return {field: (parse_text_options(text_fields, text_template), options)}
    if text_fields or text_template is not None:
        raise UsageError(
            "`vectors` includes the text of its vector fields", "Leave `text_fields` and `text_template` out."
        )
    option_texts: dict[str, tuple[TextTemplate | None, str | None]] = {}
    for option in settings.vectors:
        field, equals, template = option.partition("=")
        check_field_name(field)
        if field in option_texts:
            raise UsageError(f"the vector field {field} is named twice", "Name each field of `vectors` once.")
        parsed = TextTemplate.parse(template) if equals else None
        option_texts[field] = parsed, format_text_options(field, (), template if equals else None)
    return option_texts


def _stored_text(settings: IngestSettings, field: str, stored: VectorFieldMeta | None) -> TextTemplate:
    """The text of a field for which no option gives one."""
    if stored is not None and stored.text is not None:
        return TextTemplate.parse(stored.text)
    if settings.vectors:
        raise UsageError(
            f"the mapping does not name the text of {field}",
            f"Write {setting_text('vectors', [f'{field}={{FIELD}}'])}.",
        )
    return TextTemplate.from_fields([DEFAULT_TEXT_FIELD])


def _chunk_rules(settings: IngestSettings, fields: list[str]) -> dict[str, ChunkRules]:
    """Vector field → the chunk rules of `passages`: `256` for all fields, `body=256` for one."""
    if settings.passage_overlap is not None and not settings.passages:
        raise UsageError("`passage_overlap` is for passages", "Give `passages=TOKENS` too.")
    rules: dict[str, ChunkRules] = {}
    for rule in settings.passages:
        field, tokens = _parse_chunk_rule(rule)
        if field and field not in fields:
            raise UsageError(
                f"`passages` names {field}, which this load does not fill", f"Name one of: {', '.join(fields)}."
            )
        for name in [field] if field else fields:
            rules[name] = ChunkRules.from_tokens(tokens, settings.passage_overlap)
    return rules


def _parse_chunk_rule(rule: str) -> tuple[str, int]:
    """The vector field, empty for all, and the tokens of `256` or `body=256`."""
    field, _, number = rule.rpartition("=")
    if not number.isascii() or not number.isdigit() or int(number) < 1:
        raise UsageError(
            f"{setting_text('passages', rule)} is not a number of tokens",
            'Write `passages=256`, or `passages=["FIELD=256"]`.',
        )
    return field, int(number)


@dataclass(frozen=True)
class ModelIdentity:
    """The information about a model in an index."""

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
        alias: The alias of several indices that was named; `settings.index` is then its write index. None otherwise.
    """

    settings: IngestSettings
    sources: Sequence[DocumentSource]
    fields: tuple[PlannedField, ...]
    state: IndexState | None
    dead_letters: Path
    state_file: Path | None
    alias: str | None = None

    @property
    def name(self) -> str:
        """The index or alias as the user calls it."""
        return self.alias or self.settings.index

    @property
    def dead_letters_place(self) -> str:
        """Location of the dead letters, for messages."""
        return "LoadReport.rejected" if self.settings.returns_dead_letters else str(self.dead_letters)

    @property
    def stored(self) -> VectorFieldMeta | None:
        """The metadata of the first field that exists already, here or in another index of the alias; else None."""
        return next((field.known for field in self.fields if field.known is not None), None)

    @property
    def text_fields(self) -> tuple[str, ...]:
        """All fields of all texts."""
        return tuple(dict.fromkeys(name for field in self.fields for name in field.template.fields))

    @property
    def reading(self) -> ReadSettings:
        """The options for reading the sources."""
        settings = self.settings
        # The load keeps vectors of other fields whose text has not changed.
        metas = vector_fields(self.state.mappings, self.state.name).values() if self.state is not None else ()
        kept_fields = (name for meta in metas if meta.text is not None for name in TextTemplate.parse(meta.text).fields)
        text_fields = tuple(dict.fromkeys((*self.text_fields, *kept_fields)))
        return ReadSettings(
            settings.max_document_bytes,
            plain_text_field=self.text_fields[0],
            target_index=settings.index,
            retry_seconds=settings.retry_seconds,
            text_fields=text_fields,
            key_fields=settings.key_fields,
            column_types=self._column_types(text_fields),
        )

    def _column_types(self, text_fields: Sequence[str]) -> ColumnTypes:
        """The types of the columns of CSV and TSV files: those of `types`, and for other columns those of the index."""
        settings, state = self.settings, self.state
        option_types = parse_types(settings.types)
        # The mapping as it was when the load was planned, on every machine.
        mapped = (
            {} if state is None else mapped_types(state.mappings, state.settings, (*text_fields, *settings.key_fields))
        )
        return ColumnTypes(option_types, mapped, settings.decimal)

    def check_chunk_rules(self, make_chunker: Callable[[int, int, PromptKind], object]) -> None:
        """Check that chunk rules fit the model, before an index is created with them.

        Args:
            make_chunker: See `Encoder.make_chunker`.

        Raises:
            UsageError: they do not.
        """
        for planned in self.fields:
            if planned.chunk_rules is not None:
                make_chunker(planned.chunk_rules.tokens, planned.chunk_rules.overlap, "document")

    def field_requests(self, model: ModelIdentity) -> list[FieldRequest]:
        """The vector fields that the index must have for a model, one request per planned field.

        Raises:
            IndexMismatch: another index of the alias has the field with another model, or with other chunks.
        """
        return [self._field_request(planned, model) for planned in self.fields]

    def _field_request(self, planned: PlannedField, model: ModelIdentity) -> FieldRequest:
        request = FieldRequest(
            planned.field,
            model.fingerprint,
            model.name,
            model.dimensions,
            index_type=self.settings.index_type,
            element_type=self.settings.element_type,
            text=planned.template.template,
            passages=planned.chunk_rules,
            text_options=planned.text_options,
            replace_text=self.settings.replace_text_template,
            documents_checked=True,  # by `check_first_records`
        )
        return request if planned.similar is None else request.like(planned.similar)

    @property
    def from_python(self) -> bool:
        """Whether the documents come from `SemanticIndex.add`."""
        return any(source.from_python for source in self.sources)

    def document_rules(self, targets: EmbeddingTargets, info: EngineInfo, index: IndexState | None) -> DocumentRules:
        """The rules that turn records into documents.

        Args:
            targets: The vector fields of the index.
            info: The engine.
            index: The index; None if it does not exist yet.
        """
        settings = self.settings
        return DocumentRules(
            targets,
            settings.id_field,
            None if index is None else index.alias_routing(settings.index),
            routing_field=settings.routing_field,
            metadata_fields=info.metadata_fields,
            join_fields=() if index is None else _join_fields(index),
            from_python=self.from_python,
        )

    @property
    def source(self) -> str:
        """`files`, `sql` or `index`: where the documents come from."""
        if self.settings.sql is not None:
            return "sql"
        return "files" if self.sources else "index"


def _join_fields(index: IndexState) -> tuple[str, ...]:
    fields = mapped_fields(index.mappings.get("properties", {}))
    return tuple(name for name, field in fields if field.get("type") == "join")


def plan_load(engine: Engine, settings: IngestSettings, sources: Sequence[DocumentSource]) -> LoadPlan:
    """Check everything that can be checked before a model is loaded and a document is written.

    Args:
        sources: What `resolve_sources` found, or documents from Python; none for documents of the index.

    Raises:
        AccessDenied: the user lacks a privilege that the load needs.
        UsageError: options that contradict each other.
        SourceError: a file that cannot be read, or lacks the columns asked for.
        OutputError: the dead-letter file could not be written.
        IndexMissing: documents of an index that does not exist.
        IndexMismatch: the mapping's `_meta` is damaged, or an alias of several indices has no write index.
        VectorIndexError: the index cannot take the documents.
        EngineError: the engine failed.
    """
    for rule in settings.passages:
        _parse_chunk_rule(rule)  # first: on a command line, `passages` may have taken a file for its number
    if settings.prune and (settings.retry is not None or not sources):
        raise UsageError("`prune` compares the index with a source", "Give all sources that the index is loaded from.")
    if settings.watch_seconds is not None and sources:
        remedy = "Leave FILE out, and load it with a separate command."
        raise UsageError("`watch_seconds` embeds documents that other programs write to the index, not files", remedy)
    if settings.watch_seconds is not None and settings.load_settings is BulkLoadSettings.FAST:
        raise UsageError(
            "`watch_seconds` never ends, so bulk load settings would never be restored", "Leave out `load_settings`."
        )
    if not sources and settings.id_field is not None:
        raise UsageError(
            "`id_field` does not apply to documents of the index", "Leave it out: these documents have ids."
        )
    if not sources and settings.routing_field is not None:
        remedy = "Leave it out: documents of the index keep their routing."
        raise UsageError("`routing_field` does not apply to documents of the index", remedy)
    if settings.replace_text_template:
        _check_replace_text_options(settings, sources)
    name = settings.index
    dead_letters = settings.dead_letters or default_dead_letters_path(name)
    if settings.dry_run is None:
        check_dead_letters_writable(dead_letters)
    target = read_target_index(engine, name, files=bool(sources))
    state, alias = target.state, name if target.others else None
    stored = vector_fields(state.mappings, state.name) if state else {}
    fields = plan_fields(settings, stored, similar_fields(target.others))
    if settings.retry is not None:
        index_names = (state.name, *state.aliases) if state else ()
        check_dead_letter_index(settings.retry, {name, *index_names, *(other.name for other in target.others)})
    if not sources:
        if state is None:
            raise index_not_found(name, engine)
        check_can_hold_vectors(state)
        # With several fields, a document may get a vector in one of them and would lose the others.
        lost = fields_missing_from_source(state.mappings, [field.field for field in fields] if len(fields) == 1 else [])
        if lost is not None:
            reason = f"the index {state.name} does not keep {lost}: documents that are embedded in place would lose it"
            raise VectorIndexError(reason, "Load the documents from files.")
    elif state is not None:
        meta_fields = [document_meta_field(field.field) for field in fields]
        check_can_load_files(state, name, meta_fields, routing_field=settings.routing_field)
    _require_privileges(engine, settings, state)
    state_file = (settings.state or default_checkpoint_path(name, sources)) if sources else None
    if state is not None and alias is not None:
        # Requests that read documents by an alias of several indices are refused, or see the documents of all of them.
        settings = settings.model_copy(update={"index": state.name})
    plan = LoadPlan(settings, sources, fields, state, dead_letters, state_file, alias)
    _check_types_of_texts(plan.reading)
    if settings.retry is None:
        check_sources(
            sources,
            settings.max_document_bytes,
            plan.text_fields,
            settings.id_field,
            settings.routing_field,
            plan.reading.column_types,
        )
    return plan


def _check_types_of_texts(reading: ReadSettings) -> None:
    """Refuse a type other than text for a column whose text is embedded.

    Raises:
        UsageError: there is one.
    """
    for name, kind in reading.column_types.given.items():
        if name in reading.text_fields and kind.type is not CellType.STRING:
            raise UsageError(
                f"`types` makes {name} a {kind.type}, and its text is embedded", f"Leave {name} out of `types`."
            )


def _require_privileges(engine: Engine, settings: IngestSettings, state: IndexState | None) -> None:
    if state is None and settings.dry_run is None:
        require_privileges(engine, settings.index, CREATE)
    elif state is not None:
        needed = PRUNE if settings.prune else LOAD
        require_privileges(engine, state.name, needed if settings.dry_run is None else SEARCH)


def _check_replace_text_options(settings: IngestSettings, sources: Sequence[DocumentSource]) -> None:
    """Check the settings that `replace_text_template` needs or excludes.

    Raises:
        UsageError: there are sources, or there is no text.
    """
    if sources:
        raise UsageError(
            "`replace_text_template` embeds all documents that the index holds",
            "Leave FILE, `sql` and `retry` out, and load them afterwards without `replace_text_template`.",
        )
    names_text = settings.text_fields or settings.text_template or settings.strip_html
    if not names_text and not any("=" in vector for vector in settings.vectors):
        raise UsageError(
            "`replace_text_template` needs the new text",
            'Add `text_template="{title}. {body}"` or `text_fields=["FIELD"]`.',
        )


def resolve_sources(settings: IngestSettings) -> Sequence[DocumentSource]:
    """The sources to load; none for documents of the index. Needs no engine, which may still be starting.

    Raises:
        UsageError: options that contradict each other.
        SourceError: there is no such file.
    """
    options = {"FILE": settings.files, "`retry`": settings.retry, "`sql`": settings.sql}
    given_options = [option for option, value in options.items() if value]
    if len(given_options) > 1:
        raise UsageError(f"{' and '.join(given_options)} cannot be combined", "Give one of them.")
    of_files = settings.delimiter or settings.encoding or settings.sheet or settings.types or settings.decimal
    if (settings.retry or settings.sql) and of_files:
        raise UsageError("`delimiter`, `encoding`, `sheet`, `types` and `decimal` are for FILE", "Leave them out.")
    if settings.retry is not None:
        return [find_dead_letters(settings.retry)]
    if settings.sql is None:
        return find_sources(settings.files, settings.file_options)
    if settings.database is None:
        raise UsageError(
            "`sql` needs a database", "Give its address in ES_SBERT_DATABASE, a `database_file` or `database`."
        )
    return [SqlSource(settings.sql, settings.database)]
