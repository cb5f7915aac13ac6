"""Read columns of JSON Lines, CSV, TSV or Parquet files into memory, with the line number of each row.

Training, evaluation and calibration read their data through `read_table`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import SourceError, error_summary
from es_sbert.io.file_formats import FileFormat, guess_format, open_parquet, parquet_batches, text_chunks
from es_sbert.io.text_formats import (
    CorruptStream,
    ParsedRow,
    WrongFormat,
    csv_rows,
    dict_rows,
    find_delimiter,
    jsonl_rows,
    split_lines,
    tsv_rows,
)
from es_sbert.messages import setting, shorten

_MAX_LISTED = 5


@dataclass
class RowErrors:
    """Bad rows of a file: the first few in full and the rest as a count, so that one run shows what to fix.

    Args:
        path: The file.
        unit: Unit of row numbers: `line`, or `row` if the format has no lines.
    """

    _path: Path
    _unit: str = "line"
    _found: list[tuple[int, str]] = field(default_factory=list, init=False)

    def add(self, number: int, reason: str) -> None:
        """Record a problem.

        Args:
            number: The line or row, from 1.
            reason: The problem.
        """
        self._found.append((number, reason))

    def check(self, remedy: str) -> None:
        """Raise an error if there are problems.

        Raises:
            SourceError: there are problems; the message lists the first ones in the order of the file.
        """
        if not self._found:
            return
        found = sorted(self._found, key=lambda problem: problem[0])
        lines = [f"{self._path}, {self._unit} {number}: {reason}" for number, reason in found[:_MAX_LISTED]]
        if len(found) > _MAX_LISTED:
            lines.append(f"… and {len(found) - _MAX_LISTED:,} more")
        raise SourceError("\n".join(lines), remedy)


class MissingColumns(SourceError):
    """A file lacks requested columns.

    Attributes:
        path: The file.
        missing: Requested columns that are missing.
        names: Columns of the file.
    """

    path: Path
    missing: Sequence[str]
    names: Sequence[str]


def require_columns(path: Path, columns: Sequence[str], names: Sequence[str]) -> None:
    """Check that a file has the requested columns.

    Args:
        path: The file.
        columns: Requested columns.
        names: Columns of the file.

    Raises:
        MissingColumns: a column is missing; the message lists the existing columns.
    """
    missing = [column for column in dict.fromkeys(columns) if column not in names]
    if missing:
        present = shorten(", ".join(names)) or "none"
        error = MissingColumns(f"{path} has no column {', '.join(missing)}", f"Choose one of its columns: {present}.")
        error.path, error.missing, error.names = path, missing, names
        raise error


@dataclass(frozen=True)
class Table:
    """Some columns of a file.

    Attributes:
        path: The file.
        columns: Maps each name to one value per row: strings in CSV and TSV, else the format's own type; None if a JSON
            object lacks the key.
        lines: ``(rows,)`` int64, from 1: the line in which a row begins (a header counts), or the number of the row if
            the format has no lines.
        unit: Unit of `lines`: `line` or `row`.
    """

    path: Path
    columns: dict[str, list[Any]]
    lines: NDArray[np.int64]
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.lines)

    def problems(self) -> RowErrors:
        """Create an empty list of problems of this file."""
        return RowErrors(self.path, self.unit)

    def texts(self, column: str, problems: RowErrors | None = None) -> list[str]:
        """Return a column of texts, unchanged; UTF-8 bytes, as Spark writes strings to Parquet, count as texts.

        Args:
            column: Name of the column.
            problems: Collects the rows whose text is missing, not a string, or only white space; None raises an error
                for them.

        Raises:
            SourceError: rows have no text; the message lists the first ones.
        """
        found = self.problems() if problems is None else problems
        values = [_decode(value) for value in self.columns[column]]
        for row, value in enumerate(values):
            reason = _text_problem(value)
            if reason is not None:
                found.add(int(self.lines[row]), f"{column} {reason}")
        if problems is None:
            found.check("Fill in the text or remove the row.")
        return values

    def floats(self, column: str, problems: RowErrors | None = None) -> NDArray[np.float64]:
        """Return a column of finite numbers, *shape* ``(rows,)``.

        Args:
            column: Name of the column.
            problems: Collects the rows whose value is not a finite number (they are NaN in the result); None raises an
                error for them.

        Raises:
            SourceError: values are not finite numbers; the message lists the first ones.
        """
        found = self.problems() if problems is None else problems
        numbers = np.array([_to_float(value) for value in self.columns[column]], dtype=np.float64)  # (rows,)
        for row in np.flatnonzero(~np.isfinite(numbers)):
            value = _abbreviate(self.columns[column][row])
            found.add(int(self.lines[row]), f"{column} is not a finite number: {value}")
        if problems is None:
            found.check("Write the number in digits, with a decimal point, or remove the row.")
        return numbers


def _decode(value: Any) -> Any:
    """Decode UTF-8 bytes; other values are returned unchanged."""
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return value


def _text_problem(value: object) -> str | None:
    if value is None:
        return "is missing"
    if isinstance(value, bytes):
        return f"holds bytes that are not valid UTF-8; cast the column to a string: {_abbreviate(value)}"
    if not isinstance(value, str):
        return f"is not a text: {_abbreviate(value)}"
    return None if value.strip() else "is empty"


def _to_float(value: object) -> float:
    """Convert the value to a number; NaN if it is not a number."""
    # float() would also accept "1_000" and True, which are not meant as numbers in data sets.
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        return math.nan
    if isinstance(value, str) and "_" in value:
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _abbreviate(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


# Bytes of a row. Tables are completely in memory, but no example is this long: it is a damaged or hostile file.
_MAX_BYTES = 64 << 20


def _read_text(path: Path, form: FileFormat, columns: Sequence[str], limit: int | None) -> Table:
    values: dict[str, list[Any]] = {column: [] for column in columns}
    lines: list[int] = []
    names: dict[str, None] = {}  # in the order of the file
    problems = RowErrors(path)
    try:
        for row in islice(_file_rows(path, form), limit):
            if isinstance(row.fields, str):
                problems.add(row.number, row.fields)
                continue
            names.update(dict.fromkeys(row.fields))
            lines.append(row.number)
            for column, kept in values.items():
                kept.append(row.fields.get(column))
    except WrongFormat as wrong:
        raise SourceError(f"{path}: {wrong}", f"Save it as UTF-8, in a file that ends in {_KNOWN_FORMATS}.") from wrong
    except CorruptStream as broken:
        location = f", after line {lines[-1]}" if lines else ""
        raise SourceError(f"{path}{location}: {broken}", "Fix the file, or download it again.") from broken
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "Check its permissions.") from error
    problems.check("Fix these rows, or remove them.")
    if lines:
        require_columns(path, columns, list(names))
    return Table(path, values, np.array(lines, dtype=np.int64))


def _file_rows(path: Path, form: FileFormat) -> Iterator[ParsedRow]:
    lines = split_lines(text_chunks(_file_chunks(path)), _MAX_BYTES)
    if form is FileFormat.JSONL:
        return jsonl_rows(lines)
    if form is FileFormat.TSV:
        return dict_rows(tsv_rows(lines))
    delimiter, lines = find_delimiter(lines)
    return dict_rows(csv_rows(lines, _MAX_BYTES, delimiter))


def _file_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(partial(file.read, 1 << 18), b"")


def _read_parquet(path: Path, columns: Sequence[str], limit: int | None) -> Table:
    values: dict[str, list[Any]] = {column: [] for column in columns}
    rows = 0
    try:
        with open_parquet(path) as file:
            require_columns(path, columns, file.schema_arrow.names)
            # Read in batches, so that only part of the file is read if there is a limit.
            for batch in parquet_batches(file, list(values)):
                taken = batch.slice(0, None if limit is None else limit - rows)
                for column, kept in values.items():
                    kept.extend(taken.column(column).to_pylist())
                rows += taken.num_rows
                if rows == limit:
                    break
    except (CorruptStream, OSError) as error:
        raise SourceError(
            f"{path} cannot be read as Parquet: {error_summary(error)}", "Write it again, or check the path."
        ) from error
    return Table(path, values, np.arange(1, rows + 1, dtype=np.int64), unit="row")


_KNOWN_FORMATS = ".jsonl, .csv or .tsv (each also .gz or .zst), or .parquet"


def read_table(path: Path, columns: Sequence[str], *, limit: int | None = None) -> Table:
    """Read columns of a JSONL, CSV (RFC 4180), TSV (without quoting) or Parquet file.

    JSONL, CSV and TSV may be compressed by gzip or zstd, and are UTF-8, or have a byte order mark. The
    delimiter of CSV is recognized. Parquet needs the extra `parquet` or `train`.

    Args:
        path: The file.
        columns: Names of the columns to keep.
        limit: Maximum number of rows to read.

    Returns:
        The table, of at least one row.

    Raises:
        SourceError: the file does not exist, its format is unknown, the file or a row is broken, a column is missing in
            all rows, or there are no rows.
        UsageError: the library that reads the format is not installed.
    """
    if path.is_dir():
        raise SourceError(
            f"{path} is a folder", "Name a file. `datasets` writes one: dataset.to_parquet('FILE.parquet')."
        )
    if not path.exists():
        raise SourceError(
            f"{path} does not exist", f"Check it; relative paths start at the data folder ({setting('data')})."
        )
    if not path.is_file():
        raise SourceError(f"{path} is a pipe, a device or a socket", "Write its data to a file.")
    form = guess_format(path.name)
    if form in (FileFormat.JSONL, FileFormat.CSV, FileFormat.TSV):
        table = _read_text(path, form, columns, limit)
    elif form is FileFormat.PARQUET:
        table = _read_parquet(path, columns, limit)
    else:
        raise SourceError(
            f"the name of {path} does not indicate a format that is read here",
            f"Use a file that ends in {_KNOWN_FORMATS}.",
        )
    if not len(table):
        raise SourceError(f"{path} has no rows", "Choose a file with data.")
    return table
