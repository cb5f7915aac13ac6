"""JSON Lines, CSV and TSV as tables, with the line of every problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from es_sbert.errors import SourceError
from es_sbert.streams.compression import decompressed
from es_sbert.streams.delimited import csv_rows, named_rows, tsv_rows
from es_sbert.streams.json_lines import SPACE, parse_object
from es_sbert.streams.lines import Line, StreamBroken, split_lines, without_byte_order_mark
from es_sbert.tabular.missing import check_columns
from es_sbert.tabular.problems import Problems
from es_sbert.tabular.table import Table

_CHUNK = 1 << 18
# Tables are held in memory whole, so a long row is no danger of its own.
_MAX_BYTES = 1 << 40

# The line in which a row begins, and its fields by name, or why it has none.
_Row = tuple[int, dict[str, Any] | str]


def _jsonl(lines: Iterator[Line]) -> Iterator[_Row]:
    for line in lines:
        data = line.data.strip(SPACE)
        if data:
            yield line.number, parse_object(data)


def _csv(lines: Iterator[Line]) -> Iterator[_Row]:
    return ((number, fields) for number, _, fields in named_rows(csv_rows(lines, _MAX_BYTES)))


def _tsv(lines: Iterator[Line]) -> Iterator[_Row]:
    return ((number, fields) for number, _, fields in named_rows(tsv_rows(lines)))


_PARSERS: dict[str, Callable[[Iterator[Line]], Iterator[_Row]]] = {
    ".jsonl": _jsonl, ".ndjson": _jsonl, ".csv": _csv, ".tsv": _tsv, ".tab": _tsv,
}  # fmt: skip
TEXTUAL_SUFFIXES = frozenset(_PARSERS)


def read_textual(path: Path, suffix: str, columns: Sequence[str], limit: int | None) -> Table:
    """Read a JSONL, CSV or TSV file, compressed or not.

    Args:
        path: The file.
        suffix: One of `TEXTUAL_SUFFIXES`: its format.
        columns: Columns to keep.
        limit: Read only the first so many rows.

    Raises:
        SourceError: the file cannot be read, rows are broken (with their lines), or no row has a column.
    """
    values: dict[str, list[Any]] = {column: [] for column in columns}
    lines: list[int] = []
    names: dict[str, None] = {}  # in the order of the file
    problems = Problems(path)
    try:
        for line, fields in islice(_PARSERS[suffix](_lines(path)), limit):
            if isinstance(fields, str):
                problems.add(line, fields)
                continue
            names.update(dict.fromkeys(fields))
            lines.append(line)
            for column, kept in values.items():
                kept.append(fields.get(column))
    except StreamBroken as broken:
        where = f", after line {lines[-1]}" if lines else ""
        raise SourceError(f"{path}{where}: {broken}", "Mend the file, or fetch it again.") from broken
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "Check that this user may read it.") from error
    problems.check("Mend these rows, or leave them out.")
    if lines:
        check_columns(path, columns, list(names))
    return Table(path, values, np.array(lines, dtype=np.int64))


def _lines(path: Path) -> Iterator[Line]:
    return split_lines(without_byte_order_mark(decompressed(_chunks(path))), _MAX_BYTES)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
