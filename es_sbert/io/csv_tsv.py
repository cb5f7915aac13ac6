"""CSV (with quoting) and TSV (without) as rows of strings, with the line number of every row."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from es_sbert.io.lines import SAMPLE_BYTES, CorruptStream, Line, line_too_long_reason

# A row as read: its first line, its raw bytes (for dead letters) and its values, or why it has none.
DelimitedRow = tuple[int, bytes, list[str] | str]

# The csv module keeps its own limit on a field (131,072 characters) for the whole process. Rows are bounded
# by --max-document-bytes here, so that limit is lifted to the largest number every platform takes.
_CSV_FIELD_LIMIT = 2**31 - 1


class _RowTooLong(Exception):
    """More lines than one row may hold: in all likelihood a quote that is never closed."""


class _LineFeeder:
    """Hands lines to csv.reader as text and remembers those of the row that is being read."""

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
        if line.too_long:
            self.too_long = line
            raise _RowTooLong
        self.raw.append(line.data)
        if self.size > self._max_bytes + 1:
            raise _RowTooLong
        # Bytes that are not UTF-8 travel through csv as surrogates; the row they stand in is rejected later.
        return line.data.decode(errors="surrogateescape") + "\n"


def csv_rows(lines: Iterable[Line], max_bytes: int) -> Iterator[DelimitedRow]:
    """Rows as RFC 4180 has them: quotes doubled inside quotes, line feeds allowed there."""
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    feeder = _LineFeeder(lines, max_bytes)
    reader = csv.reader(feeder, strict=True)
    while True:
        feeder.start_row()
        try:
            values = next(reader)
        except StopIteration:
            return
        except _RowTooLong:
            # The reader is in the middle of a field: a new one starts afresh at the next line.
            reader = csv.reader(feeder, strict=True)
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
        return f"line {line.number} has {line.size:,} bytes, more than --max-document-bytes allows"
    return (
        f"a quote that is opened in line {feeder.first} is not closed up to line {feeder.last}, within the bytes "
        "that --max-document-bytes allows; these lines were left out"
    )


def tsv_rows(lines: Iterable[Line]) -> Iterator[DelimitedRow]:
    """Rows split at tabs; quotes are letters like any other."""
    for line in lines:
        data = line.data.removesuffix(b"\r")
        if line.too_long:
            yield line.number, data, line_too_long_reason(line)
        elif data:
            yield line.number, data, data.decode(errors="surrogateescape").split("\t")


def dict_rows(rows: Iterable[DelimitedRow]) -> Iterator[tuple[int, bytes, dict[str, str] | str]]:
    """Rows as objects whose names come from the first row, each with its first line and raw bytes.

    A string in place of an object says why there is none.

    Raises:
        StreamBroken: the first row is no header.
    """
    names: list[str] | None = None
    for number, raw, values in rows:
        if names is None:
            names = parse_header(values)
            continue
        problem = values if isinstance(values, str) else _invalid_utf8(values)
        if problem is not None:
            yield number, raw, problem
        elif len(values) != len(names):
            yield number, raw, f"the row has {len(values)} columns, the header {len(names)}"
        else:
            yield number, raw, dict(zip(names, values, strict=True))


def parse_header(values: list[str] | str) -> list[str]:
    """The names of the columns.

    Args:
        values: The first row, or why it could not be read.

    Raises:
        StreamBroken: the row cannot be read, or a name is empty or stands there twice.
    """
    if isinstance(values, str):
        raise CorruptStream(f"the header cannot be read: {values}")
    problem = _invalid_utf8(values)
    if problem is not None:
        raise CorruptStream(f"the header cannot be read: {problem}")
    if "" in values:
        raise CorruptStream(f"column {values.index('') + 1} of the header has no name")
    twice = next((name for name in values if values.count(name) > 1), None)
    if twice is not None:
        raise CorruptStream(f"the header names the column {twice!r} twice")
    return values


def _invalid_utf8(values: list[str]) -> str | None:
    for column, value in enumerate(values, 1):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            byte = ord(value[error.start]) - 0xDC00
            return f"invalid UTF-8: byte 0x{byte:02x} in column {column}"
    return None
