"""The settings of a load, and the sources that they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.errors import UsageError
from es_sbert.ingest.dead_letters import find_dead_letters
from es_sbert.ingest.ledger import DEFAULT_LIMIT, NO_LIMIT, ErrorLimit
from es_sbert.ingest.sources.document_source import DocumentSource
from es_sbert.ingest.sources.file_sources import FileOptions, find_sources
from es_sbert.io.file_formats import FileFormat

_MIB = 1 << 20


class IngestSettings(BaseModel, frozen=True, extra="forbid"):
    """A load, apart from the engine and the model.

    Attributes:
        index: Index, or alias of one; an alias of several indices is refused.
        files: Files, patterns or `-`; none of them embeds what the index holds already.
        format: Format of all files; None derives it from their names.
        delimiter: Delimiter of CSV files; None detects it in each file.
        encoding: Encoding of text files; None for UTF-8. A byte order mark takes precedence.
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
        batch_window: Texts that are sorted by length and embedded together; by default what suits the device.
        bulk_bytes: Largest body of a bulk request.
        retry_seconds: Time limit for retries of transient failures of the engine.
        dead_letters: File of documents that cannot be loaded; None names it after the index.
        returns_dead_letters: Whether the caller reads that file, returns its content and deletes it.
        prune: Remove documents that an earlier load wrote and that the files no longer have.
        retry: Dead-letter file whose documents are loaded again, instead of `files`.
        watch_seconds: With no files: keep embedding what other writers add or change, checking at this interval in
            seconds.
        only_lacking: Read only documents of the index that lack a vector; all vectors in the index are known to be
            current.
        only_ids: Read only documents of the index with these ids, at most 8,000; None reads all.
        state: Checkpoint from which a killed load resumes; None puts it next to the first source.
        max_errors: Limit of failed documents at which the load stops; None for the default of this kind of load.
        dry_run: Number of documents to show as they would be embedded, without writing anything; None for a load.
    """

    index: str
    files: tuple[str, ...] = ()
    format: FileFormat | None = None
    delimiter: str | None = None
    encoding: str | None = None
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
    batch_window: int | None = Field(default=None, ge=1)
    bulk_bytes: int = Field(default=5 * _MIB, ge=1024)
    retry_seconds: float = Field(default=300.0, ge=0)
    dead_letters: Path | None = None
    returns_dead_letters: bool = False
    prune: bool = False
    retry: Path | None = None
    watch_seconds: float | None = Field(default=None, gt=0)
    only_lacking: bool = False
    only_ids: tuple[str, ...] | None = Field(default=None, max_length=8000)
    state: Path | None = None
    max_errors: ErrorLimit | None = None
    dry_run: int | None = Field(default=None, ge=1)

    @property
    def file_options(self) -> FileOptions:
        """The options for reading the files.

        Raises:
            UsageError: the delimiter is not a single character, or the encoding does not exist.
        """
        return FileOptions(self.format, self.delimiter, self.encoding)

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The id field and the routing field, if given."""
        return tuple(name for name in (self.id_field, self.routing_field) if name is not None)

    @property
    def error_limit(self) -> ErrorLimit:
        """Limit of failed documents at which the load stops.

        Three kinds of loads have no limit by default: a retry of dead letters, whose documents have failed before; a
        watch, which runs as a service; and a migration, which must not depend on documents that were invalid before.
        """
        if self.max_errors is not None:
            return self.max_errors
        unlimited = self.retry is not None or self.watch_seconds is not None or self.only_lacking
        return NO_LIMIT if unlimited else DEFAULT_LIMIT


def resolve_sources(settings: IngestSettings) -> Sequence[DocumentSource]:
    """Find the sources to load; none for documents of the index. Needs no engine, which may still be starting.

    Raises:
        UsageError: options conflict.
        SourceError: a file does not exist.
    """
    if settings.retry is None:
        return find_sources(settings.files, settings.file_options)
    if settings.files:
        raise UsageError("FILE and `retry` cannot be combined", "Use one of them.")
    if settings.delimiter or settings.encoding:
        raise UsageError("`delimiter` and `encoding` apply only to FILE", "Leave them out.")
    return [find_dead_letters(settings.retry)]
