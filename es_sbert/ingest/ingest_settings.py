"""The settings of a load."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, NonNegativeInt

from es_sbert.config import DEFAULT_VECTOR_FIELD, FrozenSettings
from es_sbert.errors import UsageError
from es_sbert.io.file_formats import FileFormat, FileOptions
from es_sbert.messages import setting
from es_sbert.settings import RETRY_SECONDS, Count, Seconds

# A percentage applies only after this many records have been read.
MIN_RECORDS_READ = 1000


@dataclass(frozen=True)
class ErrorLimit:
    """The number or share of documents that may fail before a load stops.

    Attributes:
        count: Maximum number of failures; None if a share is given, or if there is no limit.
        share: Maximum fraction of the records read that may fail, 0 to 1. Applies once `MIN_RECORDS_READ` were read.
    """

    count: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> ErrorLimit:
        """Parse `100`, `5%`, `0.5%` or `off`.

        Raises:
            UsageError: the text is none of these.
        """
        if text.strip().lower() == "off":
            return cls()
        match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?) ?%", text.strip(), re.ASCII)
        if match is None or (match[2] is not None and float(match[2]) > 100):
            message = f"{setting('max_errors', text)} is neither a number nor a percentage"
            remedy = "Use a number of documents (100), a percentage of those read (5%), or off."
            raise UsageError(message, remedy).about("max_errors", text)
        return cls(count=int(match[1])) if match[1] is not None else cls(share=float(match[2]) / 100)

    def is_exceeded(self, read: int, failed: int) -> bool:
        """Whether a load with these counts must stop."""
        if self.count is not None:
            return failed > self.count
        return self.share is not None and read >= MIN_RECORDS_READ and failed > self.share * read

    def __str__(self) -> str:
        if self.count is not None:
            return f"{self.count:,}"
        return "off" if self.share is None else f"{self.share * 100:g}%"


DEFAULT_LIMIT = ErrorLimit(share=0.1)
NO_LIMIT = ErrorLimit()


class IngestSettings(FrozenSettings):
    """A load, apart from the engine and the model.

    Attributes:
        index: Index or alias; created if it does not exist.
        files: Files, patterns or `-`; none of them embeds what the index holds already.
        format, delimiter, encoding: See `FileOptions`.
        text_fields: Field of the text, dotted if nested; may be repeated. Several fields, and the values of a list, are
            joined by line feeds. [default: what the index was loaded with, else text]
        text_template: Text made of several fields, e.g. '{title}. {body}'.
        strip_html: Embed texts without HTML tags; the documents keep them. For one field: '{title} {body|strip_html}'.
        id_field: Field of the id. [default: a hash of the content]
        routing_field: Routing field, such as my_join.parent; documents without a value there are routed by their id.
        vector_field: Field that holds the vector.
        vectors: Instead of `vector_field` and --text-…: a vector field and its text, e.g. 'title_vector={title}';
            repeat it for several. TEMPLATE is optional if the index has the field.
        passages: Split long texts at ends of sentences into passages of at most TOKENS tokens, each with its own
            vector; for a new vector field.
        passage_overlap: Maximum tokens that a passage shares with the next. [default: an eighth of `passages`]
        index_type: Index type of a new vector field: hnsw, int8_hnsw, flat, …; see `es-sbert index create`.
        batch_window: Number of texts that are sorted by length and embedded together. [default: 2048, or 32768 on CUDA]
        bulk_bytes: Maximum size of a bulk request body.
        retry_seconds: Maximum time to retry while the engine is overloaded or does not respond.
        dead_letters: Append documents that cannot be loaded to this file. [default: INDEX.dead-letters.jsonl]
        returns_dead_letters: Whether the caller reads that file, returns its content and deletes it.
        prune: At the end, remove documents of earlier loads if the source no longer contains them; asks first.
        retry: Load the documents of a dead-letter file again.
        watch_seconds: Without FILE: keep embedding documents that other writers add or change; check every SECONDS (5).
        only_lacking: Read only documents of the index that lack a vector; all vectors in the index are known to be
            current.
        only_ids: Read only documents of the index with these ids, at most 8,000; None reads all.
        state: Checkpoint from which a killed load resumes; removed when the load ends.
            [default: next to the first FILE]
        max_errors: Stop if more than this number, or this percentage, of the documents cannot be loaded.
            [default: 10%; off with --retry and --watch]
        ray: Load on the machines of a Ray cluster: host:port, auto or local.
        ray_workers: Workers on the cluster, each with a GPU or `threads` CPUs. [default: all that fit]
        dry_run: Write nothing: show the texts of the first N documents (5) exactly as they would be embedded.
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
    passages: Count | None = None
    passage_overlap: NonNegativeInt | None = None
    index_type: str | None = None
    batch_window: Count | None = None
    bulk_bytes: int = Field(default=5 << 20, ge=1024)
    retry_seconds: Seconds = RETRY_SECONDS
    dead_letters: Path | None = None
    returns_dead_letters: bool = False
    prune: bool = False
    retry: Path | None = None
    watch_seconds: float | None = Field(default=None, gt=0)
    only_lacking: bool = False
    only_ids: tuple[str, ...] | None = Field(default=None, max_length=8000)
    state: Path | None = None
    max_errors: ErrorLimit | None = None
    ray: str | None = None
    ray_workers: Count | None = None
    dry_run: Count | None = None

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
