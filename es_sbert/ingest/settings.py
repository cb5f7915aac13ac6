"""The settings of a load, among them the error limit of `--max-errors`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.errors import UsageError
from es_sbert.ingest.sources.document_source import FileFormat

# A share means nothing before so many records were read.
MIN_RECORDS_READ = 1000


@dataclass(frozen=True)
class ErrorLimit:
    """How many documents may fail before a load stops.

    Attributes:
        count: The most that may fail; None where a share is given, or nothing.
        share: The largest part of the records read that may fail, 0 to 1, once `MIN_RECORDS_READ` were read.
    """

    count: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> ErrorLimit:
        """Read `100`, `5%`, `0.5%` or `off`.

        Raises:
            UsageError: it is none of these.
        """
        if text.strip().lower() == "off":
            return cls()
        match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?) ?%", text.strip(), re.ASCII)
        if match is None or (match[2] is not None and float(match[2]) > 100):
            raise UsageError(
                f"--max-errors {text!r} is neither a number nor a percentage",
                "Write a number of documents (100), a part of those read (5%), or off.",
            )
        return cls(count=int(match[1])) if match[1] is not None else cls(share=float(match[2]) / 100)

    def is_exceeded(self, read: int, failed: int) -> bool:
        """Whether a load with these counts is to stop."""
        if self.count is not None:
            return failed > self.count
        return self.share is not None and read >= MIN_RECORDS_READ and failed > self.share * read

    def __str__(self) -> str:
        if self.count is not None:
            return f"{self.count:,}"
        return "off" if self.share is None else f"{self.share * 100:g}%"


DEFAULT_LIMIT = ErrorLimit(share=0.1)
NO_LIMIT = ErrorLimit()

MIB = 1 << 20


class BulkLoadSettings(StrEnum):
    """Whether an index is loaded without refreshes and replicas."""

    AUTO = "auto"  # an index that this load creates
    FAST = "fast"  # any index: searches see nothing new before the end, and a lost node would lose the load
    KEEP = "keep"  # none


class IngestSettings(BaseModel):
    """A load, apart from the engine and the model.

    Attributes:
        index: Index or alias.
        files: Files, patterns, addresses or `-`; none of them, and no query, embeds what the index holds already.
        format: Format of all files; None tells it from their names.
        text_fields: Fields whose texts are joined with line feeds; empty takes the index's template, or `text`.
        text_template: Template in their place.
        id_field: Field of the id; None takes the hash of the content.
        vector_field: Field that takes the vector.
        vectors: In place of it and of the text: several fields, each `NAME={field} …`, or `NAME` alone where the
            index knows its text.
        passages: Cut texts into passages: `TOKENS` for every vector field, or `NAME=TOKENS`.
        passage_overlap: Tokens that neighbouring passages share; None takes an eighth of a passage.
        index_type: Index type of a field that does not exist yet.
        batch_window: Texts that are sorted by length and embedded together; by default what suits the device.
        bulk_bytes: Largest body of a bulk request.
        retry_seconds: How long an engine that refuses or does not answer is waited for.
        max_document_bytes: Longest document.
        dead_letters: File of documents that cannot be loaded; None names it after the index.
        load_settings: Whether to switch refreshes and replicas off while loading.
        prune: Remove documents that an earlier load wrote and that the files no longer have.
        retry: Dead-letter file whose documents are tried once more, in place of `files`.
        watch_seconds: With no files: go on with what other writers add or change, looking every so many seconds.
        sql: Query whose rows are loaded, in place of `files`.
        database: Address of the database that is asked; may hold a password.
        only_lacking: Of documents of the index, read those alone that lack a vector; the vectors of all others are
            known to be current.
        only_ids: Of documents of the index, read those alone that have one of these ids; None reads all. At most 8,000.
        state: File that a killed load goes on from; None puts it beside the first source.
        max_errors: How many documents may fail before the load stops; None for the default of this kind of load.
        replace_text_template: With no files: embed the documents anew from another text than their vectors were made
            from.
        dry_run: Documents to show as they would be embedded, with nothing written; None for a load.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: str
    files: tuple[str, ...] = ()
    format: FileFormat | None = None
    text_fields: tuple[str, ...] = ()
    text_template: str | None = None
    id_field: str | None = None
    vector_field: str = DEFAULT_VECTOR_FIELD
    vectors: tuple[str, ...] = ()
    passages: tuple[str, ...] = ()
    passage_overlap: int | None = Field(default=None, ge=0)
    index_type: str | None = None
    batch_window: int | None = Field(default=None, ge=1)
    bulk_bytes: int = Field(default=5 * MIB, ge=1024)
    retry_seconds: float = Field(default=300.0, ge=0)
    max_document_bytes: int = Field(default=16 * MIB, ge=1024)
    dead_letters: Path | None = None
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
    def error_limit(self) -> ErrorLimit:
        """How many documents may fail before the load stops.

        By default none of three kinds of loads stops: dead letters are bad documents to begin with, a watch is a
        service, and the migration of an index must not depend on what was wrong with its documents before.
        """
        if self.max_errors is not None:
            return self.max_errors
        unlimited = self.retry is not None or self.watch_seconds is not None or self.only_lacking
        return NO_LIMIT if unlimited else DEFAULT_LIMIT
