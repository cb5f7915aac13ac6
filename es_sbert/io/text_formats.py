"""Parse lines, JSON Lines, CSV and TSV, with the number of every line and bounded memory."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from es_sbert.messages import pluralize, shorten

# Number of bytes of unreadable input that are kept as a sample.
SAMPLE_BYTES = 64 * 1024


class CorruptStream(Exception):
    """A stream cannot be read further: damaged compression, a failing disk."""


class WrongFormat(CorruptStream):
    """A file has a different format or encoding than expected.

    Attributes:
        remedy: Advice on how to load it.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.remedy = remedy

    def __str__(self) -> str:
        return str(self.args[0])


class Line(NamedTuple):
    """One line without its line feed (a carriage return before it is kept).

    Attributes:
        number: Line number, from 1.
        data: The line, or its first `SAMPLE_BYTES` if it is too long.
        size: Its size in bytes.
        is_too_long: Whether it is longer than allowed.
    """

    number: int
    data: bytes
    size: int
    is_too_long: bool = False


def split_lines(chunks: Iterable[bytes], max_bytes: int, first: int = 1) -> Iterator[Line]:
    """Yield the lines of a byte stream; lines longer than `max_bytes` are skipped without reading them into memory.

    Bytes after the last line feed also count as a line.

    Args:
        first: Number of the first line.
    """
    number = first
    pieces: list[bytes] = []
    size = 0
    for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if pieces or len(end) > max_bytes:
                yield _make_line(number, [*pieces, end], size + len(end), max_bytes)
                pieces, size = [], 0
            else:
                yield Line(number, end, len(end))
            number += 1
        if rest:
            size += len(rest)
            pieces.append(rest)
            if size > max_bytes:
                pieces = [b"".join(pieces)[:SAMPLE_BYTES]]
    if size:
        yield _make_line(number, pieces, size, max_bytes)


def _make_line(number: int, pieces: list[bytes], size: int, max_bytes: int) -> Line:
    data, is_too_long = b"".join(pieces), size > max_bytes
    return Line(number, data[:SAMPLE_BYTES] if is_too_long else data, size, is_too_long)


def line_too_long_reason(line: Line) -> str:
    """The reason for rejecting a line that is longer than allowed."""
    return f"the line has {line.size:,} bytes, more than `max_document_bytes` allows"


def read_head(chunks: Iterable[bytes], count: int) -> tuple[bytes, Iterator[bytes]]:
    """Split a stream into its first chunks, with at least `count` bytes if it has them, and the remaining chunks."""
    rest = iter(chunks)
    head = b""
    # A pipe may deliver a single byte.
    while len(head) < count and (chunk := next(rest, b"")):
        head += chunk
    return head, rest


# White space that is allowed around an object.
LINE_WHITESPACE = b" \t\r\x0b\x0c"
# orjson reads 1024 levels but writes only 254. Objects must be written again, for their hash or as dead letters.
MAX_DEPTH = 200


def parse_json_line(data: bytes) -> dict[str, Any] | str:
    """Parse a stripped line; return the object, or the reason why the line is invalid."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return utf8_problem(data) or f"malformed JSON: {error}"
    return value if isinstance(value, dict) else f"the line is a JSON {json_type_name(value)}, not an object"


def format_csv_line(values: Iterable[object]) -> bytes:
    """Format a line of CSV in UTF-8, with quotes if necessary."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue().encode()


def depth_problem(fields: dict[str, Any], data: bytes) -> str | None:
    """The reason for rejecting an object that is nested too deeply, or None.

    Args:
        data: The bytes from which the object was parsed.
    """
    # Nearly all objects have fewer brackets than that, and need no check.
    if data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return None
    level: list[Any] = [fields]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            for inner in (value.values() if type(value) is dict else value)
            if type(inner) is dict or type(inner) is list  # three times as fast as isinstance
        ]
        if not level:
            return None
    return f"the object is nested more than {MAX_DEPTH} levels deep"


def utf8_problem(data: bytes) -> str | None:
    """The first error in bytes that should be UTF-8, or None."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"invalid UTF-8: byte 0x{data[error.start]:02x} at position {error.start}"
    return None


def json_type_name(value: object) -> str:
    """JSON's name for the type of a parsed value."""
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return "null" if value is None else names[type(value)]


class ParsedRow(NamedTuple):
    """One object of a text file.

    Attributes:
        number: Number of its first line.
        raw: Its bytes, or only the first ones if it is too long.
        fields: The object, or the reason why it is invalid.
        size: Its size in bytes if `raw` is incomplete.
    """

    number: int
    raw: bytes
    fields: dict[str, Any] | str
    size: int = 0


def jsonl_rows(lines: Iterable[Line]) -> Iterator[ParsedRow]:
    """Parse one object per line; blank lines are skipped."""
    for line in lines:
        data = line.data.strip(LINE_WHITESPACE)
        if line.is_too_long:
            yield ParsedRow(line.number, line.data, line_too_long_reason(line), line.size)
        elif data:
            fields = parse_json_line(data)
            problem = fields if isinstance(fields, str) else depth_problem(fields, data)
            yield ParsedRow(line.number, data, problem or fields)


def plain_rows(lines: Iterable[Line], field: str) -> Iterator[ParsedRow]:
    """Yield `{field: line}` for each line, including empty lines."""
    for line in lines:
        if line.is_too_long:
            yield ParsedRow(line.number, line.data, line_too_long_reason(line), line.size)
        else:
            data = line.data.removesuffix(b"\r")
            yield ParsedRow(line.number, data, utf8_problem(data) or {field: data.decode()})


# A row as read: number of its first line, raw bytes (for dead letters), and values or the reason why it is invalid.
DelimitedRow = tuple[int, bytes, list[str] | str]

# The csv module has a limit on a field (131,072 characters) for the whole process. Rows are bounded by
# `max_document_bytes` here, so that limit is raised to the largest number that every platform accepts.
_CSV_FIELD_LIMIT = 2**31 - 1


class _RowTooLong(Exception):
    """A row exceeds the limit in bytes, most likely because a quote is never closed."""


class _LineFeeder:
    """Feeds lines to csv.reader as text and keeps those of the current row."""

    def __init__(self, lines: Iterable[Line], max_bytes: int) -> None:
        self._lines = iter(lines)
        self._max_bytes = max_bytes
        self.first = 0
        self.last = 0
        self.size = 0
        self.raw: list[bytes] = []
        self.too_long: Line | None = None

    def start_row(self) -> None:
        self.first, self.size, self.raw, self.too_long = 0, 0, [], None

    def __iter__(self) -> _LineFeeder:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.first = self.first or line.number
        self.last = line.number
        self.size += line.size + 1
        if line.is_too_long:
            self.too_long = line
            raise _RowTooLong
        self.raw.append(line.data)
        if self.size > self._max_bytes + 1:
            raise _RowTooLong
        # Invalid UTF-8 passes through csv as surrogates; its row is rejected later.
        return line.data.decode(errors="surrogateescape") + "\n"


def csv_rows(lines: Iterable[Line], max_bytes: int, delimiter: str = ",") -> Iterator[DelimitedRow]:
    """Yield rows according to RFC 4180: inside quotes, quotes are doubled and line feeds are allowed."""
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    feeder = _LineFeeder(lines, max_bytes)
    reader = csv.reader(feeder, delimiter=delimiter, strict=True)
    while True:
        feeder.start_row()
        try:
            values = next(reader)
        except StopIteration:
            return
        except _RowTooLong:
            # The reader is inside a field, so a new reader starts at the next line.
            reader = csv.reader(feeder, delimiter=delimiter, strict=True)
            yield feeder.first, b"\n".join(feeder.raw)[:SAMPLE_BYTES], _unclosed_quote_reason(feeder)
            continue
        except csv.Error as error:
            span = f" (lines {feeder.first} to {feeder.last})" if feeder.last > feeder.first else ""
            reason = "a quote is never closed" if "unexpected end of data" in str(error) else str(error)
            yield feeder.first, b"\n".join(feeder.raw)[:SAMPLE_BYTES], f"malformed CSV: {reason}{span}"
            continue
        if values:
            yield feeder.first, b"\n".join(feeder.raw), values


def _unclosed_quote_reason(feeder: _LineFeeder) -> str:
    line = feeder.too_long
    if line is not None:
        return f"line {line.number} has {line.size:,} bytes, more than `max_document_bytes` allows"
    return (
        f"a quote that is opened in line {feeder.first} is not closed up to line {feeder.last}, within the bytes "
        "that `max_document_bytes` allows; these lines were skipped"
    )


def tsv_rows(lines: Iterable[Line]) -> Iterator[DelimitedRow]:
    """Yield rows split at tabs; quotes have no special meaning."""
    for line in lines:
        data = line.data.removesuffix(b"\r")
        if line.is_too_long:
            yield line.number, data, line_too_long_reason(line)
        elif data:
            yield line.number, data, data.decode(errors="surrogateescape").split("\t")


def dict_rows(rows: Iterable[DelimitedRow]) -> Iterator[ParsedRow]:
    """Yield rows as objects with the names in the first row.

    Raises:
        CorruptStream: the first row is not a header.
    """
    names: list[str] | None = None
    width = 0
    for number, raw, values in rows:
        if names is None:
            names, width = parse_header(values), len(values)
            continue
        problem = _row_problem(values)
        if problem is None and len(values) not in (width, len(names)):
            problem = f"the row has {pluralize(len(values), 'column')}, the header {width}"
        if problem is None and any(values[len(names) :]):
            problem = f"the row has a value in column {len(names) + 1} or later, which has no name in the header"
        yield ParsedRow(number, raw, problem or dict(zip(names, values, strict=False)))


# Names that `DataFrame.reset_index` of pandas gives an unnamed index; the second if a column already has the first.
_INDEX_NAMES = ("index", "level_0")
# As many as a sheet of Excel has. Engines allow 1,000 fields by default.
MAX_COLUMNS = 16_384


def parse_header(values: list[str] | str) -> list[str]:
    """Parse the names of the columns, up to the last one that has a name.

    pandas writes its index as a first column without a name, which is named `index`. Spreadsheets write columns without
    names at the end if a cell there was ever used.

    Args:
        values: The first row, or the reason why it could not be read.

    Raises:
        CorruptStream: the row cannot be read, there are more than `MAX_COLUMNS`, or a name is missing or duplicated.
    """
    if isinstance(values, list) and len(values) > MAX_COLUMNS:
        raise CorruptStream(
            f"the header has {len(values):,} columns, more than the limit of {MAX_COLUMNS:,}: leave some out, or write "
            "them as objects in JSON Lines"
        )
    problem = _row_problem(values)
    if isinstance(values, str) or problem is not None:
        raise CorruptStream(f"the header cannot be read: {problem}")
    names = list(values)
    while len(names) > 1 and not names[-1]:
        names.pop()
    if len(names) > 1 and not names[0]:
        names[0] = next((name for name in _INDEX_NAMES if name not in names), "")
    if "" in names:
        raise CorruptStream(f"column {names.index('') + 1} of the header has no name")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise CorruptStream(f"the header contains the column {shorten(repr(twice))} twice")
    return names


def _row_problem(values: list[str] | str) -> str | None:
    """The reason why a row cannot be used, or None."""
    if isinstance(values, str):
        return values
    for column, value in enumerate(values, 1):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            byte = ord(value[error.start]) - 0xDC00
            return f"invalid UTF-8: byte 0x{byte:02x} in column {column}"
    return None
