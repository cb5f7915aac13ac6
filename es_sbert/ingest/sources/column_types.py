"""Types of the columns of CSV and TSV files, whose cells are texts: given by `types`, or taken from the mapping.

| type | cells | in the document |
|---|---|---|
| `string` | any | the same text |
| `integer` | `12`, `-3`, `1e5`, `7.0` | an integer of at most 64 bits |
| `float` | `12`, `1.5`, `.5`, `1e5` | a double; never an integer, which the engine would map as `long` |
| `boolean` | `true`, `yes`, `t`, `y`, `1`; `false`, `no`, `f`, `n`, `0`; in upper or lower case | `true` or `false` |
| `date` | ISO 8601, with `T` or a space before the time | ISO 8601 |
| `date:FORMAT` | by a format of `strptime`, such as `%d.%m.%Y` | ISO 8601 |

An empty cell of a column with a type other than `string` is null. A row with a cell that its type cannot read is
rejected.

pyarrow's CSV reader is not used: it does not report the lines or bytes of a row that has line feeds in quotes, and one
cell that cannot be converted fails a whole block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from es_sbert.engines.index_state import SettingValue
from es_sbert.errors import SourceError, UsageError
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.index.text_template import closest_name
from es_sbert.io.text_formats import ParsedRow
from es_sbert.messages import setting_text


class CellType(StrEnum):
    """The type of the cells of a column."""

    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    DATE = "date"


class DecimalMark(StrEnum):
    """The decimal mark of numbers."""

    POINT = "point"
    COMMA = "comma"


class _CellError(Exception):
    """A cell that its type cannot read; the message gives the reason."""


_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0"), False),
}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# A number with groups of thousands; its separator must not be the decimal mark.
_GROUPED = re.compile(r"([+-]?)([0-9]{1,3}(?:([ .,'’\u00a0\u202f])[0-9]{3})(?:\3[0-9]{3})*)(?![0-9])(.*)", re.DOTALL)
_ISO_DATE = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}([.,][0-9]{1,9})?)?) ?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
# Directives of `strptime` that give a time of day, and those that give a year.
_TIME_DIRECTIVES, _YEAR_DIRECTIVES = frozenset("HIMSfpcXTRr"), frozenset("YycxDF")
_MOST_SHOWN = 60


@dataclass(frozen=True)
class ColumnType:
    """The type of a column.

    Attributes:
        type: Type of its cells.
        date_format: The `strptime` format of dates; None for ISO 8601.
        is_mapped: Whether the type is that of the field in the mapping. Dates are then left to the engine, which knows
            their format.
        keeps_malformed: Whether the mapping accepts values of another type (`ignore_malformed`); such a cell stays
            text.
    """

    type: CellType
    date_format: str | None = None
    is_mapped: bool = False
    keeps_malformed: bool = False

    def __str__(self) -> str:
        return self.type if self.date_format is None else f"{self.type}:{self.date_format}"

    def read(self, cell: str, decimal: DecimalMark | None) -> Any:
        """Convert a cell to its JSON value; None for an empty cell.

        Raises:
            _CellError: the cell is not of this type.
        """
        text = cell.strip()
        if self.type is CellType.STRING:
            return cell
        if not text:
            return None
        try:
            return self._read(text, decimal)
        except _CellError:
            if self.keeps_malformed:
                return cell
            raise

    def _read(self, text: str, decimal: DecimalMark | None) -> Any:
        match self.type:
            case CellType.INTEGER:
                return _integer(text, decimal)
            case CellType.FLOAT:
                return _float(text, decimal)
            case CellType.BOOLEAN:
                return _boolean(text)
        if self.is_mapped:
            return text
        return _iso_date(text) if self.date_format is None else _formatted_date(text, self.date_format)


def parse_types(type_options: Iterable[str]) -> dict[str, ColumnType]:
    """Parse options such as `price=float,in_stock=boolean` into column → type.

    A comma separates columns, unless the option has a single `=`: the comma is then part of the name or the format.

    Raises:
        UsageError: an option is invalid, or names a column twice.
    """
    types: dict[str, ColumnType] = {}
    for option in type_options:
        for part in [option] if option.count("=") == 1 else option.split(","):
            name, equals, kind = part.rpartition("=")
            if not equals or not name:
                raise UsageError(
                    f"{setting_text('types', [option])} does not name columns and their types",
                    'Use `types=["price=float", "in_stock=boolean"]`.',
                )
            if name in types:
                raise UsageError(f"`types` names the column {name!r} twice", "Give each column one type.")
            types[name] = _parse_type(kind)
    return types


def _parse_type(text: str) -> ColumnType:
    name, colon, date_format = text.partition(":")
    types = {str(kind): kind for kind in CellType} | _TYPES_OF_FIELDS
    kind = types.get(name)
    if kind is None or (colon and kind is not CellType.DATE):
        raise UsageError(
            f"`types` does not know the type {text!r}",
            "Use string, integer, float, boolean, date, or date:FORMAT such as date:%d.%m.%Y.",
        )
    if not colon:
        return ColumnType(kind)
    directives = set(re.findall(r"%(.)", date_format.replace("%%", "")))
    try:
        datetime.strptime(datetime(2026, 1, 31).strftime(date_format), date_format)
    except ValueError as error:
        remedy = "Use the format codes of Python's strptime, such as date:%d.%m.%Y or date:%Y-%m-%d %H:%M."
        raise UsageError(f"`types` has the invalid date format {date_format!r}: {error}", remedy) from error
    if not directives & _YEAR_DIRECTIVES:
        raise UsageError(f"`types` has the date format {date_format!r} without a year", "Add %Y, or %y for two digits.")
    return ColumnType(kind, date_format)


# Types of fields in a mapping → types of their columns. Columns of other fields hold texts.
_TYPES_OF_FIELDS = {
    **dict.fromkeys(("byte", "short", "integer", "long", "unsigned_long"), CellType.INTEGER),
    **dict.fromkeys(("half_float", "float", "double", "scaled_float", "rank_feature"), CellType.FLOAT),
    "boolean": CellType.BOOLEAN,
    **dict.fromkeys(("date", "date_nanos"), CellType.DATE),
}


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
        decimal: The decimal mark. The other mark may group thousands, as may spaces and apostrophes. None for a point,
            without groups.
    """

    given: Mapping[str, ColumnType]
    mapped: Mapping[str, ColumnType]
    decimal: DecimalMark | None = None

    def check_columns(self, source: str, columns: Sequence[str]) -> None:
        """Check that a file has the columns that were given types.

        Raises:
            SourceError: the file lacks such a column.
        """
        for name in self.given:
            if name not in columns:
                near = closest_name(name, columns)
                raise SourceError(
                    f"{source} has no column {name}, which `types` names",
                    f"{f'Did you mean {near}? ' if near else ''}Its columns are: {', '.join(columns)}. Load files with "
                    "other columns by a separate command.",
                )

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
            problem = self._convert_row(row.fields, columns)
            yield row if problem is None else row._replace(fields=problem)

    def _convert_row(self, fields: dict[str, Any], columns: Sequence[tuple[str, ColumnType]]) -> str | None:
        """Convert the cells in place; return the reason why a cell cannot be converted, or None."""
        for name, kind in columns:
            try:
                fields[name] = kind.read(fields[name], self.decimal)
            except _CellError as error:
                cell = fields[name]
                shown = cell if len(cell) <= _MOST_SHOWN else f"{cell[:_MOST_SHOWN]}…"
                origin = f": the index maps it as {kind.type}" if kind.is_mapped else ""
                return f"the column {name} has {shown!r}, which {error}{origin}"
        return None


NO_TYPES = ColumnTypes({}, {})


def _plain_number(text: str, decimal: DecimalMark | None, kind: str) -> str:
    """Rewrite a number with a decimal point and without groups.

    Raises:
        _CellError: the text is not a number.
    """
    plain = text if decimal is None else _without_groups(text, decimal)
    if _NUMBER.fullmatch(plain):
        return plain
    hint = ""
    if decimal is None:
        marks = [mark for mark in DecimalMark if _NUMBER.fullmatch(_without_groups(text, mark))]
        hint = f" ({' or '.join(setting_text('decimal', mark) for mark in marks)} reads it)" if marks else ""
    raise _CellError(f"is not {kind}{hint}")


def _without_groups(text: str, decimal: DecimalMark) -> str:
    """Rewrite a number with a decimal point and without groups; any other text becomes one that is not a number."""
    mark, other = (".", ",") if decimal is DecimalMark.POINT else (",", ".")
    grouped = _GROUPED.fullmatch(text)
    if grouped is not None and grouped[3] != mark:
        text = grouped[1] + grouped[2].replace(grouped[3], "") + grouped[4]
    return "" if other in text else text.replace(mark, ".")


# The smallest `long` and the largest `unsigned_long`: engines accept no other integers.
_LEAST, _GREATEST = -(2**63), 2**64 - 1


def _integer(text: str, decimal: DecimalMark | None) -> int:
    plain = _plain_number(text, decimal, "an integer")
    try:
        number = Decimal(plain)
    except InvalidOperation:
        raise _CellError("has an exponent that is too large") from None
    # Check before the conversion: converting 1e999999999 to an integer would exhaust the memory.
    if number and number.adjusted() > 20:
        raise _CellError("is beyond 64 bits")
    if number != number.to_integral_value():
        raise _CellError("has a fraction, so it is not an integer")
    value = int(number)
    if not _LEAST <= value <= _GREATEST:
        raise _CellError("is beyond 64 bits")
    return value


def _float(text: str, decimal: DecimalMark | None) -> float:
    value = float(_plain_number(text, decimal, "a number"))
    if math.isinf(value):
        raise _CellError("is beyond the range of a double")
    return value


def _boolean(text: str) -> bool:
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise _CellError("is not a boolean (true or false, yes or no, t or f, y or n, 1 or 0)")
    return value


def _iso_date(text: str) -> str:
    """Convert a date to the form that engines read by default."""
    parts = _ISO_DATE.fullmatch(text)
    try:
        if parts is None:
            raise ValueError
        date, time, fraction, zone = parts.groups()
        datetime.fromisoformat(f"{date}T{(time or '00:00').removesuffix(fraction or '')}{_zone(zone)}")
    except ValueError:
        hint = "or set its format, such as date:%d.%m.%Y"
        raise _CellError(f"is not an ISO 8601 date, such as 2026-01-31 ({hint})") from None
    # The digits of the fraction are kept: a datetime has no nanoseconds.
    return date if time is None else f"{date}T{time.replace(',', '.')}{_zone(zone)}"


def _zone(zone: str | None) -> str:
    """Add minutes to an offset, which databases leave out."""
    if zone is None or zone == "Z":
        return zone or ""
    return f"{zone[:3]}:{zone[3:].removeprefix(':') or '00'}"


def _formatted_date(text: str, date_format: str) -> str:
    try:
        moment = datetime.strptime(text, date_format)
    except ValueError:
        raise _CellError(f"does not match the date format {date_format}") from None
    has_time = bool(set(re.findall(r"%(.)", date_format.replace("%%", ""))) & _TIME_DIRECTIVES)
    return moment.isoformat() if has_time else moment.date().isoformat()
