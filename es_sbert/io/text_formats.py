"""Read text files: lines, JSON Lines, CSV and TSV, their encoding, and the delimiter of CSV.

Every line has its number, and memory is bounded. A file is UTF-8 unless a byte order mark or the user names another
encoding; encodings are not guessed. The delimiter is given by the user, by Excel's `sep=` line, or recognized from the
first rows.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import orjson

from es_sbert.errors import UsageError, error_summary
from es_sbert.messages import pluralize, setting, shorten

# Number of bytes of unreadable input that are kept as a sample.
SAMPLE_BYTES = 64 * 1024


def encoding_remedy() -> str:
    """Advice for a file that is not text in its encoding."""
    return (
        f"Name its encoding, such as {setting('encoding', 'windows-1252')}, or save it as UTF-8. For Excel, PDF and "
        "other files that are not text, see docs/sources.md."
    )


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
    return f"the line has {line.size:,} bytes, more than the limit"


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


class JsonProblem(str):
    """The reason why a line is not a JSON object."""


def parse_json_line(data: bytes) -> dict[str, Any] | str:
    """Parse a stripped line; return the object, or the reason why the line is invalid."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return utf8_problem(data) or JsonProblem(f"malformed JSON: {error}")
    return (
        value if isinstance(value, dict) else JsonProblem(f"the line is a JSON {json_type_name(value)}, not an object")
    )


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
            yield ParsedRow(line.number, data, {field: data.decode()})


# A row as read: number of its first line, raw bytes (for dead letters), and values or the reason why it is invalid.
DelimitedRow = tuple[int, bytes, list[str] | str]

# The csv module has a limit on a field (131,072 characters) for the whole process. Rows are bounded by
# their size in bytes here, so that limit is raised to the largest number that every platform accepts.
_CSV_FIELD_LIMIT = 2**31 - 1


class _RowTooLong(Exception):
    """A row exceeds the limit in bytes, most likely because a quote is never closed."""


def csv_rows(lines: Iterable[Line], max_bytes: int, delimiter: str = ",") -> Iterator[DelimitedRow]:
    """Yield rows according to RFC 4180: inside quotes, quotes are doubled and line feeds are allowed."""
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    rest = iter(lines)
    # The bytes of the lines of a row, its size, and its first and last line: an open quote may span millions of lines.
    raw: list[bytes] = []
    size = 0
    first = last = Line(0, b"", 0)

    def texts() -> Iterator[str]:
        nonlocal size, first, last
        for last in rest:
            first = last if not raw else first
            raw.append(last.data)
            size += last.size + 1
            if last.is_too_long or size > max_bytes + 1:
                raise _RowTooLong
            yield last.data.decode() + "\n"

    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        raw, size = [], 0
        values: list[str] | str
        try:
            values = next(reader)
        except StopIteration:
            return
        except _RowTooLong:
            # The reader is inside a field, so a new reader starts at the next line.
            reader = csv.reader(texts(), delimiter=delimiter, strict=True)
            values = _row_too_long_reason(first, last)
        except csv.Error as error:
            span = f" (lines {first.number} to {last.number})" if len(raw) > 1 else ""
            reason = "a quote is never closed" if "unexpected end of data" in str(error) else str(error)
            values = f"malformed CSV: {reason}{span}"
        if values:
            data = raw[0] if len(raw) == 1 else b"\n".join(raw)
            yield first.number, data if isinstance(values, list) else data[:SAMPLE_BYTES], values


def _row_too_long_reason(first: Line, last: Line) -> str:
    if last.is_too_long:
        return f"line {last.number} has {last.size:,} bytes, more than the limit"
    return (
        f"a quote that is opened in line {first.number} is not closed up to line {last.number}, within the limit of a "
        "document; these lines were skipped"
    )


def tsv_rows(lines: Iterable[Line]) -> Iterator[DelimitedRow]:
    """Yield rows split at tabs; quotes have no special meaning."""
    for line in lines:
        data = line.data.removesuffix(b"\r")
        if line.is_too_long:
            yield line.number, data, line_too_long_reason(line)
        elif data:
            yield line.number, data, data.decode().split("\t")


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
        problem = None
        if isinstance(values, str):
            problem = values
        elif len(values) not in (width, len(names)):
            problem = f"the row has {pluralize(len(values), 'column')}, the header {width}"
        elif any(values[len(names) :]):
            problem = f"the row has a value in column {len(names) + 1} or later, which has no name in the header"
        yield ParsedRow(number, raw, problem or dict(zip(names, values, strict=False)))


# Names that `DataFrame.reset_index` of pandas gives an unnamed index; the second if a column already has the first.
_INDEX_NAMES = ("index", "level_0")
# As many as a spreadsheet has. Engines allow 1,000 fields by default.
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
    if isinstance(values, str):
        raise CorruptStream(f"the header cannot be read: {values}")
    if len(values) > MAX_COLUMNS:
        raise CorruptStream(
            f"the header has {len(values):,} columns, more than the limit of {MAX_COLUMNS:,}: leave some out, or write "
            "them as objects in JSON Lines"
        )
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


UTF8 = "utf-8"

# UTF-32 first, because its mark begins with that of UTF-16.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def byte_order_mark(head: bytes) -> tuple[bytes, str | None]:
    """Return the byte order mark at the beginning of a text and the encoding that it stands for; none is empty.

    Args:
        head: The first four bytes.
    """
    return next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if head.startswith(mark)), (b"", None))


def without_mark(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a text in UTF-8 without the byte order mark at its beginning."""
    head, rest = read_head(chunks, len(codecs.BOM_UTF8))
    return chain([head.removeprefix(codecs.BOM_UTF8)], rest)


def check_encoding(name: str) -> str:
    """Check an encoding, and return its name in lower case.

    Raises:
        UsageError: Python does not know this text encoding.
    """
    try:
        "a\n".encode(name).decode(name)
        return UTF8 if codecs.lookup(name).name == UTF8 else name.lower()
    except (LookupError, UnicodeError, ValueError):  # refused below
        pass
    raise UsageError(
        f"unknown text encoding {name!r}",
        f"Use an encoding that Python supports, e.g. {setting('encoding', 'windows-1252')}, utf-16 or shift_jis.",
    ).about("encoding", name)


def to_utf8(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Convert a text to UTF-8, up to the first bytes that its encoding does not define.

    Raises:
        WrongFormat: the text is not in this encoding.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = 0
    try:
        for chunk in chunks:
            if text := decoder.decode(chunk):
                yield text.encode()
            offset += len(chunk)
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        raise WrongFormat(
            f"it is not {encoding}: near offset {offset:,}, {error_summary(error)}", encoding_remedy()
        ) from error


def is_utf8(chunks: Iterable[bytes]) -> bool:
    """Whether a text is UTF-8 to its end, and not only ASCII."""
    try:
        are_ascii = [chunk.isascii() for chunk in checked_utf8(chunks)]  # to the end
    except WrongFormat:
        return False
    return not all(are_ascii)


def checked_utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a text, up to the first that is not UTF-8.

    Raises:
        WrongFormat: the text is not UTF-8; the message names the first byte that cannot be decoded.
    """
    decoder = codecs.getincrementaldecoder(UTF8)()
    line, offset = 1, 0
    for chunk in chain(chunks, [b""]):
        try:
            decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            # The decoder puts the beginning of a character, without a line feed, in front of the chunk.
            data, start = error.object, error.start
            line += data.count(b"\n", 0, start)
            offset += len(chunk) - len(data) + start
            raise WrongFormat(
                f"it is not UTF-8: line {line:,} has the byte 0x{data[start]:02x}, at offset {offset:,} of the text",
                encoding_remedy(),
            ) from error
        line += chunk.count(b"\n")
        offset += len(chunk)
        if chunk:
            yield chunk


COMMA = ","
# Other delimiters, in the order of preference.
_OTHERS = (";", "\t", "|")
_SEP_LINE = re.compile(rb'"?sep=([^\r\n"])"?\r?')

_SAMPLE_LINES = 20
_SAMPLE_BYTES = 1 << 18


def check_delimiter(text: str) -> str:
    r"""Parse a delimiter: a single character, or `tab` or `\t` for a tab.

    Raises:
        UsageError: the delimiter is not a single character, or is a quote or a line break.
    """
    delimiter = "\t" if text in ("tab", "\\t") else text
    if len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise UsageError(
            f"the delimiter {text!r} must be a single character, and not a quote or a line break",
            f"Use e.g. {setting('delimiter', ';')} or {setting('delimiter', 'tab')}.",
        ).about("delimiter", text)
    return delimiter


def find_delimiter(lines: Iterable[Line], chosen: str | None = None) -> tuple[str, Iterator[Line]]:
    """Find the delimiter of a CSV file, and return it with the lines, without a `sep=` line.

    The comma is used unless it is implausible: if it splits the header into a single column, or most of the first rows
    into a different number of columns than the header. Then, the delimiter is used that splits the largest share of
    rows, at least half of them, into as many columns as the header, and the header into at least two.

    Args:
        lines: The lines; only as many as necessary are read in advance.
        chosen: The delimiter, if the user has set it.
    """
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        return chosen or COMMA, rest
    if first.number == 1 and (named := _SEP_LINE.fullmatch(first.data)):
        return chosen or named[1].decode(errors="replace"), rest
    if chosen is not None:
        return chosen, chain([first], rest)
    held = [first]
    candidates = [delimiter for delimiter in _OTHERS if delimiter.encode() in first.data]
    # One line is enough for most files, and the lines of a pipe may arrive one by one.
    if not first.is_too_long and candidates:
        size = first.size
        for line in rest:
            held.append(line)
            size += line.size
            if len(held) > _SAMPLE_LINES or size > _SAMPLE_BYTES:
                break
    sample = [line.data.decode(errors="replace") + "\n" for line in held if not line.is_too_long]
    return _most_plausible(sample, candidates), chain(held, rest)


def _most_plausible(sample: list[str], candidates: list[str]) -> str:
    shares = {delimiter: _regular_share(sample, delimiter) for delimiter in (COMMA, *candidates)}
    best = max(shares, key=shares.__getitem__)
    return best if shares[COMMA] < 0.5 <= shares[best] else COMMA


def _regular_share(sample: list[str], delimiter: str) -> float:
    """Share of rows with as many columns as the header; 0 if the header has only one."""
    rows: list[list[str]] = []
    # Errors are ignored, because the last row may continue after the sample.
    with suppress(csv.Error):
        rows.extend(row for row in csv.reader(sample, delimiter=delimiter, strict=True) if row)
    if not rows:
        return 0.0
    header, *counts = map(len, rows)
    # Columns without names at the end of the header may be missing in the rows.
    named = next((number for number in range(header, 0, -1) if rows[0][number - 1]), 0)
    if named < 2:
        return 0.0
    return 1.0 if not counts else sum(count in (named, header) for count in counts) / len(counts)
