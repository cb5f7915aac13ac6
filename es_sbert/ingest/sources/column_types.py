"""Types of the columns of CSV and TSV files, whose cells are texts: given by `types`, or taken from the mapping.

| type | cells | in the document |
|---|---|---|
| `string` | any | the same text |
| `integer` | `12`, `-3`, `1e5`, `7.0` | an integer of at most 64 bits |
| `float` | `12`, `1.5`, `.5`, `1e5` | a double; never an integer, which the engine would map as `long` |
| `boolean` | `true`, `yes`, `t`, `y`, `1`; `false`, `no`, `f`, `n`, `0`; in upper or lower case | `true` or `false` |
| `date` | ISO 8601, with `T` or a space before the time | ISO 8601 |

An empty cell of a column with a type other than `string` is null. A row with a cell that its type cannot read is
rejected.

pyarrow's CSV reader is not used: it does not report the lines or bytes of a row that has line feeds in quotes, and one
cell that cannot be converted fails a whole block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from es_sbert.engines.index_state import SettingValue
from es_sbert.errors import SourceError, UsageError
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.index.text_template import closest_name
from es_sbert.io.text_formats import ParsedRow
from es_sbert.messages import setting_text

# Types of fields in a mapping → types of their columns. Columns of other fields hold texts.
_TYPES_OF_FIELDS = {
    **dict.fromkeys(("byte", "short", "integer", "long", "unsigned_long"), "integer"),
    **dict.fromkeys(("half_float", "float", "double", "scaled_float", "rank_feature"), "float"),
    "boolean": "boolean",
    **dict.fromkeys(("date", "date_nanos"), "date"),
}
_TYPES = _TYPES_OF_FIELDS | dict.fromkeys(("string", "text", "keyword"), "string")
_BOOLEANS = dict.fromkeys(("true", "yes", "t", "y", "1"), True) | dict.fromkeys(("false", "no", "f", "n", "0"), False)
# Bounded, because long numbers and exponents take long to convert.
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,3})?")
# The smallest `long` and the largest `unsigned_long`: engines accept no other integers.
_LEAST, _GREATEST = -(2**63), 2**64 - 1
_ISO_DATE = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}([.,][0-9]{1,9})?)?) ?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_MOST_SHOWN = 60
_EXPECTED = {
    "integer": "an integer of at most 64 bits",
    "float": "a number with a decimal point",
    "boolean": "a boolean (true or false, yes or no, t or f, y or n, 1 or 0)",
    "date": 'an ISO 8601 date, such as 2026-01-31 (or map the field as a date with its "format")',
}


@dataclass(frozen=True)
class ColumnType:
    """The type of a column.

    Attributes:
        name: `string`, `integer`, `float`, `boolean` or `date`.
        is_mapped: Whether the type is that of the field in the mapping. Dates are then left to the engine, which knows
            their format.
        keeps_malformed: Whether the mapping accepts values of another type (`ignore_malformed`); such a cell stays
            text.
    """

    name: str
    is_mapped: bool = False
    keeps_malformed: bool = False

    def __str__(self) -> str:
        return self.name

    def read(self, cell: str) -> Any:
        """Convert a cell to its JSON value; None for an empty cell.

        Raises:
            ValueError: the cell is not of this type.
        """
        if self.name == "string":
            return cell
        text = cell.strip()
        if not text or (self.name == "date" and self.is_mapped):
            return text or None
        try:
            return _READERS[self.name](text)
        except ValueError:
            if self.keeps_malformed:
                return cell
            raise


def parse_types(type_options: Iterable[str]) -> dict[str, ColumnType]:
    """Parse options such as `price=float,in_stock=boolean` into column → type.

    A comma separates columns, unless the option has a single `=`: the comma is then part of the name or the format.

    Raises:
        UsageError: an option is invalid, or names a column twice.
    """
    types: dict[str, ColumnType] = {}
    for option in type_options:
        for part in [option] if option.count("=") == 1 else option.split(","):
            name, _, kind = part.rpartition("=")
            if not name:
                raise UsageError(
                    f"{setting_text('types', [option])} does not name columns and their types",
                    'Use `types=["price=float", "in_stock=boolean"]`.',
                )
            if name in types:
                raise UsageError(f"`types` names the column {name!r} twice", "Give each column one type.")
            if kind not in _TYPES:
                raise UsageError(
                    f"`types` does not know the type {kind!r}",
                    "Use string, integer, float, boolean or date (ISO 8601). For other dates, map the field first as a "
                    'date with their format, such as `"format": "dd.MM.yyyy"`.',
                )
            types[name] = ColumnType(_TYPES[kind])
    return types


def mapped_types(
    mappings: Mapping[str, Any], settings: Mapping[str, SettingValue], texts: Iterable[str]
) -> dict[str, ColumnType]:
    """Derive column → type from the fields of an index that hold numbers, booleans and dates.

    Args:
        settings: The index settings.
        texts: Fields that are read as text: those of the embedded text, the id and the routing.
    """
    ignores = settings.get("index.mapping.ignore_malformed") == "true"
    excluded = set(texts)
    types: dict[str, ColumnType] = {}
    for name, field in mapped_fields(mappings.get("properties", {})):
        kind = _TYPES_OF_FIELDS.get(field.get("type", ""))
        if kind is not None and name not in excluded:
            keeps = field.get("ignore_malformed", ignores) in (True, "true")
            types[name] = ColumnType(kind, is_mapped=True, keeps_malformed=keeps)
    return types


@dataclass(frozen=True)
class ColumnTypes:
    """The types of the columns of a load.

    Attributes:
        given: Column → type, as set by `types`.
        mapped: Column → type, from the mapping; for columns that are not in `given`.
    """

    given: Mapping[str, ColumnType]
    mapped: Mapping[str, ColumnType]

    def check_columns(self, source: str, columns: Sequence[str]) -> None:
        """Check that a file has the columns that were given types.

        Raises:
            SourceError: the file lacks such a column.
        """
        for name in self.given:
            if name not in columns:
                near = closest_name(name, columns)
                meant = f"Did you mean {near}? " if near else ""
                remedy = f"{meant}Its columns are: {', '.join(columns)}. Load other files by a separate command."
                raise SourceError(f"{source} has no column {name}, which `types` names", remedy)

    def convert(self, rows: Iterable[ParsedRow], source: str) -> Iterator[ParsedRow]:
        """Convert the cells of rows to their types; a cell that its type cannot read makes its row invalid.

        Raises:
            SourceError: a column of `given` is missing.
        """
        types = {**self.mapped, **self.given}
        columns: list[tuple[str, ColumnType]] | None = None
        for row in rows:
            if isinstance(row.fields, str):
                yield row
                continue
            if columns is None:
                # All rows of a file have the columns of its header.
                self.check_columns(source, list(row.fields))
                columns = [(name, types[name]) for name in row.fields if name in types]
            problem = _convert_cells(row.fields, columns)
            yield row if problem is None else row._replace(fields=problem)


NO_TYPES = ColumnTypes({}, {})


def _convert_cells(fields: dict[str, Any], columns: Sequence[tuple[str, ColumnType]]) -> str | None:
    """Convert the cells in place; return the reason why a cell cannot be converted, or None."""
    for name, kind in columns:
        cell = fields[name]
        try:
            fields[name] = kind.read(cell)
        except ValueError:  # the reason rejects the row
            shown = cell if len(cell) <= _MOST_SHOWN else f"{cell[:_MOST_SHOWN]}…"
            origin = f": the index maps it as {kind.name}" if kind.is_mapped else ""
            return f"the column {name} has {shown!r}, which is not {_EXPECTED[kind.name]}{origin}"
    return None


def _integer(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    number = Decimal(text)
    if number != number.to_integral_value() or not _LEAST <= number <= _GREATEST:
        raise ValueError(text)
    return int(number)


def _float(text: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    if math.isinf(value):
        raise ValueError(text)
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


def _iso_date(text: str) -> str:
    """Convert a date to the form that engines read by default."""
    parts = _ISO_DATE.fullmatch(text)
    if parts is None:
        raise ValueError(text)
    date, time, fraction, zone = parts.groups(default="")
    # Databases leave the minutes of an offset out, or its colon.
    if zone[1:]:
        zone = f"{zone[:3]}:{zone[3:].removeprefix(':') or '00'}"
    datetime.fromisoformat(f"{date}T{time.removesuffix(fraction) or '00:00'}{zone}")
    # The digits of the fraction are kept: a datetime has no nanoseconds.
    return f"{date}T{time.replace(',', '.')}{zone}" if time else date


_READERS: dict[str, Callable[[str], Any]] = {
    "integer": _integer, "float": _float, "boolean": _boolean, "date": _iso_date,
}  # fmt: skip
