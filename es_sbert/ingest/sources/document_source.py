"""The interface of every source of documents: a check before the load, and a stream of records.

`read_records` reads all sources of a load one after another; `check_sources` looks at the beginning of each before
anything is written.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from es_sbert.errors import SourceError
from es_sbert.index.text_template import MISSING, closest_name, find_field
from es_sbert.ingest.sources.column_types import ColumnType
from es_sbert.io.text_formats import SAMPLE_BYTES, CorruptStream, WrongFormat, json_type_name
from es_sbert.messages import setting, shorten


# Named tuples: one of each is made per record, and a frozen dataclass takes three times as long to make.
class Origin(NamedTuple):
    """The place of a record in its source, for messages.

    Attributes:
        source: The file as it was named on the command line, `-` for standard input, or `index NAME`.
        line: First line of the record, from 1; 0 if the source has no lines.
    """

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


class Record(NamedTuple):
    """One object of a source.

    Attributes:
        origin: Its place in the source.
        fields: The object, parsed.
        source: The object as one line of JSON. For JSON Lines these are the bytes of the source, so that numbers and
            spacing reach the engine unchanged.
        id: Its id, if the source has it outside the fields.
        routing: Its routing, if the source has it outside the fields.
        superseded: Whether a later record of the same source replaces it.
        written: Time at which a dead letter was written, in UTC, ISO 8601; None for other records.
    """

    origin: Origin
    fields: dict[str, Any]
    source: bytes
    id: str | None = None
    written: str | None = None
    superseded: bool = False
    routing: str | None = None


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """Input that cannot become a document.

    Attributes:
        origin: Its place in the source.
        reason: Reason why it cannot be loaded.
        raw: First bytes of the input, at most `SAMPLE_BYTES`.
        size: Full size of the input in bytes, if known.
        document: The object as one line of JSON, if it could be parsed.
        id: Its id, if it has one.
        routing: Its custom routing, if it has one.
        partial: Whether `document` is only a part of the document.
        seq_no: `_seq_no` of the version that was read; None for input that is not from an index.
    """

    origin: Origin
    reason: str
    raw: bytes = b""
    size: int = 0
    document: bytes | None = None
    id: str | None = None
    partial: bool = False
    seq_no: int | None = None
    routing: str | None = None

    @classmethod
    def of_bytes(cls, origin: Origin, reason: str, data: bytes) -> RejectedRecord:
        """Reject input of which only a sample is kept."""
        return cls(origin, reason, data[:SAMPLE_BYTES], len(data))


# Longer documents become dead letters.
MAX_DOCUMENT_BYTES = 16 << 20
# Both engines reject longer ids.
MAX_ID_BYTES = 512


# Beyond this, a float does not represent every integer.
_EXACT_FLOATS = 2**53


# The field of the id in documents of engines and of MongoDB.
METADATA_ID = "_id"


def metadata_id_field(value: Any) -> str:
    """The field of the id in a document that has `METADATA_ID`: `_id.$oid` in MongoDB's extended JSON.

    Args:
        value: Value in the document.
    """
    [key] = value if isinstance(value, dict) and len(value) == 1 else ("",)
    return f"{METADATA_ID}.{key}" if key else METADATA_ID


class InvalidId(Exception):
    """The id or the routing of a document cannot be used; the message explains why."""


def document_id(record: Record, id_field: str) -> str:
    """Read the id from a field: a string, or an integer, which may be a float without a fraction.

    pandas converts a column of integers to floats if a value is missing.

    Raises:
        InvalidId: the id is missing, null, empty, longer than 512 bytes in UTF-8, or of another type.
    """
    value = find_field(record.fields, id_field)
    if value is MISSING:
        raise InvalidId(f"the id field {id_field} is missing")
    text = _key_text(record, value, "id", id_field)
    size = len(text.encode())
    if size > MAX_ID_BYTES:
        raise InvalidId(f"the id has {size} bytes; engines take at most {MAX_ID_BYTES}")
    return text


def document_routing(record: Record, routing_field: str) -> str | None:
    """Read the routing from a field, like an id; None if it is missing or null.

    Raises:
        InvalidId: the routing is empty, or of another type.
    """
    value = find_field(record.fields, routing_field)
    return None if value is MISSING or value is None else _key_text(record, value, "routing", routing_field)


def _key_text(record: Record, value: Any, kind: str, field: str) -> str:
    """Convert the value of the id field or the routing field to text."""
    if isinstance(value, float):
        value = _whole_number(record, value, kind, field)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        is_what = "null" if value is None else f"a JSON {json_type_name(value)}"
        raise InvalidId(f"the {kind} field {field} is {is_what}, not a string or an integer")
    text = str(value)
    if not text:
        raise InvalidId(f"the {kind} field {field} is empty")
    return text


def _whole_number(record: Record, value: float, kind: str, field: str) -> int:
    """Return the integer that a float represents, or that it was in the source.

    Raises:
        InvalidId: the number has a fraction, or the integer that it was in the source is unknown.
    """
    if not value.is_integer():
        raise InvalidId(f"the {kind} field {field} is {value}, a number with a fraction, not a string or an integer")
    if abs(value) < _EXACT_FLOATS:
        return int(value)
    # Parsed again, because the fast parser converts integers beyond 64 bits to floats.
    exact = find_field(json.loads(record.source), field)
    if isinstance(exact, int):
        return exact
    raise InvalidId(f"the {kind} field {field} is {value}, a float that is not exact: write it as a string")


class ReadCancelled(Exception):
    """The load stops; an unfinished record is dropped."""


class ByteCounter:
    """Bytes read from the sources so far, for the progress bar."""

    def __init__(self) -> None:
        self.bytes = 0


@dataclass(frozen=True)
class ReadSettings:
    """Options for reading sources.

    Attributes:
        max_bytes: Longest record in bytes; longer ones become dead letters.
        plain_text_field: Field that holds the line of a plain text source.
        target_index: The index that is loaded.
        text_fields: Fields of texts: bytes in them are decoded.
        key_fields: Fields of the id and the routing: bytes in them are decoded.
        column_types: Column of CSV and TSV files → its type.
    """

    max_bytes: int
    plain_text_field: str
    target_index: str = ""
    text_fields: tuple[str, ...] = ()
    key_fields: tuple[str, ...] = ()
    column_types: Mapping[str, ColumnType] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadContext:
    """One pass over the sources.

    Attributes:
        settings: Options for reading the sources.
        counter: Counts the bytes that were read.
        stop: Set when nothing more is to be read.
    """

    settings: ReadSettings
    counter: ByteCounter
    stop: threading.Event


@dataclass(frozen=True)
class RequiredColumns:
    """Columns that a source with a header must have.

    Attributes:
        text_fields: Columns of which at least one must exist.
        id_field, routing_field: Columns that must exist, if given.
    """

    text_fields: Sequence[str]
    id_field: str | None = None
    routing_field: str | None = None

    def check(self, name: str, columns: Sequence[str], *, nested: bool = True) -> None:
        """Check that rows of these columns can become documents.

        Args:
            name: The source, for messages.
            columns: Its columns.
            nested: Whether a column may hold objects, whose fields are named with a dot.

        Raises:
            SourceError: two columns have the same name, or a required column is missing; the message lists the columns.
        """
        twice = [column for column, count in Counter(columns).items() if count > 1]
        if twice:
            raise SourceError(f"{name} has two columns called {twice[0]}", "Give each a different name.")
        objects = tuple(f"{column}." for column in columns) if nested else ()
        for fields, option in (
            (self.text_fields, setting("text_fields")),
            ([self.id_field], setting("id_field")),
            ([self.routing_field], setting("routing_field")),
        ):
            wanted = [field for field in fields if field is not None]
            if wanted and not any(field in columns or field.startswith(objects) for field in wanted):
                near = [meant for field in wanted if (meant := closest_name(field, columns)) is not None]
                suggestion = f"Did you mean {' and '.join(dict.fromkeys(near))}? " if near else ""
                remedy = f"{suggestion}Name one with {option}; its columns are: {shorten(', '.join(columns))}."
                raise SourceError(f"{name} has no column {' or '.join(wanted)}", remedy)


class DocumentSource(ABC):
    """A source of records. Sources are values: they can be compared, copied and sent to another process.

    Attributes:
        name: Its name in messages, dead letters and the checkpoint; never holds a secret.
        path: The file on this machine; None if it is not a local file.
        size: Number of bytes that reading will count; None if unknown.
    """

    name: str
    path: Path | None
    size: int | None

    @abstractmethod
    def check(self, max_bytes: int, required: RequiredColumns) -> None:
        """Check the beginning of the source, unless it can be read only once (a pipe).

        Raises:
            SourceError: the source cannot be opened, is not what its name says, or lacks a required column.
            UsageError: a library that reads the source is not installed.
        """

    def partitions(self, partition_bytes: int) -> Sequence[DocumentSource]:
        """Split the source into sources that together give its records, in order, for processes that read in parallel.

        Args:
            partition_bytes: Approximate bytes of a partition; a source that cannot be split is one partition.

        Raises:
            UsageError: the source can be read only once, by this process.
            OSError, CorruptStream: the source cannot be read to split it.
        """
        return [self]

    @abstractmethod
    def records(self, context: ReadContext) -> Iterator[Record | RejectedRecord]:
        """Yield the records, with bounded memory.

        Raises:
            OSError: the source cannot be opened.
            CorruptStream: the data after the records so far cannot be read.
            ReadCancelled: `context.stop` was set.
        """


def preview_context() -> ReadContext:
    """A context to read the beginning of a source: not counted."""
    return ReadContext(ReadSettings(0, ""), ByteCounter(), threading.Event())


def check_sources(
    sources: Sequence[DocumentSource],
    max_bytes: int,
    text_fields: Sequence[str],
    id_field: str | None,
    routing_field: str | None = None,
) -> None:
    """Open every source that can be read twice and check it; pipes are left alone.

    Args:
        text_fields: Fields of which a header must name at least one.
        id_field, routing_field: Fields that a header must name, if given.

    Raises:
        SourceError: a source cannot be opened, is not what its name says, or lacks a required column.
        UsageError: a library that reads a source is not installed.
    """
    required = RequiredColumns(text_fields, id_field, routing_field)
    for source in sources:
        try:
            source.check(max_bytes, required)
        except OSError as error:
            raise SourceError(
                f"{source.name} cannot be read: {error.strerror or error}", "Check that this user may read it."
            ) from error
        except CorruptStream as broken:
            remedy = broken.remedy if isinstance(broken, WrongFormat) else "Fix or convert the file and run again."
            raise SourceError(f"{source.name}: {broken}", remedy) from broken


def read_records(
    sources: Sequence[DocumentSource],
    settings: ReadSettings,
    counter: ByteCounter | None = None,
    stop: threading.Event | None = None,
) -> Generator[Record | RejectedRecord]:
    """Yield the records of all sources, one after another, with bounded memory.

    A source that ends early yields its records up to that point and then one rejected record with the reason. Setting
    `stop` ends the stream at the next record.

    Raises:
        SourceError: a source that could not be checked before, such as a pipe, has a different format or encoding.
    """
    context = ReadContext(settings, counter or ByteCounter(), stop or threading.Event())
    for source in sources:
        last = 0
        try:
            for record in source.records(context):
                last = record.origin.line
                yield record
                if context.stop.is_set():
                    return
        except ReadCancelled:  # the load was stopped
            return
        except WrongFormat as wrong:
            raise SourceError(f"{source.name}: {wrong}", wrong.remedy) from wrong
        except CorruptStream as broken:
            place = f"after the record of line {last}" if last else "before its first record"
            yield RejectedRecord(Origin(source.name), f"the source ends early {place}: {broken}")
        except OSError as error:
            # The file could be opened when the load started: it has been removed or replaced since then.
            yield RejectedRecord(Origin(source.name), f"the file cannot be opened: {error.strerror or error}")
