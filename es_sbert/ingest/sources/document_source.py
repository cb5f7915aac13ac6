"""What every source of documents provides: a check before the load, and a stream of records.

`read_records` reads all sources of a load one after another; `check_sources` looks at the beginning of each before
anything is written.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from es_sbert.errors import SourceError
from es_sbert.index.text_template import closest_name
from es_sbert.ingest.records import Origin, Record, RejectedRecord
from es_sbert.io.compression import COMPRESSION_SUFFIXES, Compression
from es_sbert.io.lines import CorruptStream


def check_table_columns(name: str, columns: Sequence[str], wanted: RequiredColumns) -> None:
    """Make sure that rows of these columns can become documents.

    Raises:
        SourceError: two columns have the same name, or one that is wanted is missing.
    """
    twice = [column for column, count in Counter(columns).items() if count > 1]
    if twice:
        raise SourceError(f"{name} has two columns called {twice[0]}", "Give each a name of its own.")
    wanted.check(name, columns, nested=True)


class FileFormat(StrEnum):
    """What stands inside the compression."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    LINES = "lines"
    PARQUET = "parquet"
    ARROW = "arrow"
    LETTERS = "letters"  # a dead-letter file, by --retry alone


FORMAT_HINT = "Add --format jsonl, csv, tsv, lines, parquet or arrow."

_FORMATS_BY_SUFFIX = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".json": FileFormat.JSONL,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.TSV,
    ".tab": FileFormat.TSV,
    ".txt": FileFormat.LINES,
    ".parquet": FileFormat.PARQUET,
    ".pq": FileFormat.PARQUET,
    ".arrow": FileFormat.ARROW,
    ".arrows": FileFormat.ARROW,
    ".feather": FileFormat.ARROW,
    ".ipc": FileFormat.ARROW,
}


def guess_format(name: str) -> tuple[FileFormat | None, Compression | None]:
    """Format and compression that a file's name tells; None where it tells none."""
    path = PurePosixPath(name)
    compression = COMPRESSION_SUFFIXES.get(path.suffix.lower())
    inner = PurePosixPath(path.stem) if compression else path
    return _FORMATS_BY_SUFFIX.get(inner.suffix.lower()), compression


class ReadCancelled(Exception):
    """Somebody asked to stop reading; an unfinished record is left alone."""


class SourceUnavailable(Exception):
    """A source does not answer any more, though nothing is the matter with what it holds; the message says why."""


class ByteCounter:
    """Bytes taken from the sources so far: what a progress bar is drawn from."""

    def __init__(self) -> None:
        self.bytes = 0


@dataclass(frozen=True)
class ReadSettings:
    """How sources are read.

    Attributes:
        max_bytes: Longest record in bytes; longer ones become dead letters.
        plain_field: Field that takes the line where a source is plain text.
        index: The index that is loaded.
        retry_seconds: How long a source that does not answer is waited for.
    """

    max_bytes: int
    plain_field: str
    index: str = ""
    retry_seconds: float = 300.0


@dataclass(frozen=True)
class ReadContext:
    """One pass over the sources.

    Attributes:
        settings: How they are read.
        counter: Counts what was taken.
        stop: Set when no more is to be read.
    """

    settings: ReadSettings
    counter: ByteCounter
    stop: threading.Event


@dataclass(frozen=True)
class RequiredColumns:
    """Columns that a source with a header must have.

    Attributes:
        text_fields: Of which one must be there.
        id_field: Must be there, where one is asked for.
    """

    text_fields: Sequence[str]
    id_field: str | None = None

    def check(self, name: str, columns: Sequence[str], *, nested: bool = False) -> None:
        """Compare them with the columns that there are.

        Args:
            name: The source, for messages.
            columns: Its columns.
            nested: Whether a column may hold objects, whose fields are named with a dot.

        Raises:
            SourceError: one is missing; the message names those that there are.
        """
        remedy = f"its columns are: {', '.join(columns)}"
        if not any(_has_column(columns, field, nested) for field in self.text_fields):
            meant = _suggestion(self.text_fields, columns)
            raise SourceError(
                f"{name} has no column {' or '.join(self.text_fields)}", f"{meant}Name one with --text-field; {remedy}."
            )
        if self.id_field is not None and not _has_column(columns, self.id_field, nested):
            meant = _suggestion([self.id_field], columns)
            raise SourceError(f"{name} has no column {self.id_field}", f"{meant}Name one with --id-field; {remedy}.")


def _suggestion(names: Sequence[str], columns: Sequence[str]) -> str:
    near = [meant for name in names if (meant := closest_name(name, columns)) is not None]
    return f"Did you mean {' and '.join(dict.fromkeys(near))}? " if near else ""


def _has_column(columns: Sequence[str], field: str, nested: bool) -> bool:
    return field in columns or (nested and any(field.startswith(f"{column}.") for column in columns))


class DocumentSource(Protocol):
    """Records from somewhere. Sources are values: they can be compared, copied and sent to another process."""

    @property
    def name(self) -> str:
        """As it is called in messages, dead letters and the state; never holds a secret."""

    @property
    def path(self) -> Path | None:
        """The file on this machine; None where it is none."""

    @property
    def size(self) -> int | None:
        """Bytes that reading it will count; None where that is not known."""

    def check(self, max_bytes: int, wanted: RequiredColumns) -> None:
        """Look at its beginning; what can be read only once (a pipe) is left alone.

        Raises:
            SourceError: it cannot be opened, is not what its name says, or lacks the columns asked for.
            UsageError: a library that reads it is not installed.
        """

    def pieces(self, piece_bytes: int) -> Sequence[DocumentSource]:
        """Sources that give its records one after another, for processes that read them at the same time.

        Args:
            piece_bytes: Bytes of a piece, about; a source that cannot be cut is a piece of its own.

        Raises:
            UsageError: it can be read once only, by this process.
            OSError, StreamBroken: it cannot be read to cut it.
        """

    def records(self, reading: ReadContext) -> Iterator[Record | RejectedRecord]:
        """Its records, with bounded memory.

        Raises:
            OSError: it cannot be opened.
            StreamBroken: what comes after the records so far cannot be read.
            SourceLost: it does not answer any more.
            ReadingStopped: `reading.stop` was set.
        """


class ByteInput(Protocol):
    """Bytes from somewhere, from which the sources in files make records."""

    @property
    def name(self) -> str:
        """As it is called in messages; never holds a secret."""

    @property
    def path(self) -> Path | None:
        """The file on this machine; None where it is none."""

    @property
    def size(self) -> int | None:
        """Bytes; None where that is not known."""

    @property
    def again(self) -> bool:
        """Whether it can be read more than once."""

    def chunks(self, reading: ReadContext) -> Iterator[bytes]:
        """The bytes as they stand or come in, counted.

        Raises:
            OSError, StreamBroken, SourceLost, ReadingStopped: see `Source.records`.
        """

    def open(self, reading: ReadContext) -> BinaryIO:
        """A file that can be read anywhere, not counted.

        Raises:
            OSError, StreamBroken, SourceLost, ReadingStopped: see `Source.records`; its methods raise them too.
        """


@dataclass(frozen=True)
class FileSource:
    """What the sources in files share.

    Attributes:
        input: Where the bytes come from.
    """

    input: ByteInput

    @property
    def name(self) -> str:
        return self.input.name

    @property
    def path(self) -> Path | None:
        return self.input.path

    @property
    def size(self) -> int | None:
        return self.input.size


def check_sources(
    sources: Sequence[DocumentSource], max_bytes: int, text_fields: Sequence[str], id_field: str | None
) -> None:
    """Open every source that can be read twice and check what its first bytes tell; pipes are left alone.

    Args:
        text_fields: Fields of which a header must name at least one.
        id_field: Field that a header must name, where one is asked for.

    Raises:
        SourceError: a source cannot be opened, is not what its name says, or lacks the columns asked for.
        UsageError: a library that reads it is not installed.
    """
    wanted = RequiredColumns(text_fields, id_field)
    for source in sources:
        try:
            source.check(max_bytes, wanted)
        except OSError as error:
            raise SourceError(
                f"{source.name} cannot be read: {error.strerror or error}", "Check that this user may read it."
            ) from error
        except CorruptStream as broken:
            raise SourceError(f"{source.name}: {broken}", "Mend or convert the file and run again.") from broken
        except SourceUnavailable as lost:
            raise SourceError(
                f"{source.name} cannot be read: {lost}", "Run the same command again when it can be reached."
            ) from lost


def read_records(
    sources: Sequence[DocumentSource],
    settings: ReadSettings,
    counter: ByteCounter,
    stop: threading.Event,
    lost: Callable[[str], None],
) -> Generator[Record | RejectedRecord]:
    """Records of all sources, one after another, with bounded memory.

    A source that breaks off gives its records up to the break and then one reject that says so. Setting `stop`
    ends the stream at the next record.

    Args:
        lost: Told where and why a source stopped answering, which ends the stream: to read it again later gives the
            rest, so nothing of it is rejected.
    """
    reading = ReadContext(settings, counter, stop)
    for source in sources:
        last = 0
        try:
            for record in source.records(reading):
                last = record.origin.line
                yield record
                if stop.is_set():
                    return
        except ReadCancelled:
            return
        except SourceUnavailable as reason:
            lost(f"{source.name} could not be read {_position(last)}: {reason}")
            return
        except CorruptStream as broken:
            yield RejectedRecord(Origin(source.name), f"the source breaks off {_position(last)}: {broken}")
        except OSError as error:
            # It could be opened when the load began: removed or replaced since.
            yield RejectedRecord(Origin(source.name), f"the file cannot be opened: {error.strerror or error}")


def _position(last: int) -> str:
    return f"after the record of line {last}" if last else "before its first record"
