"""Types of the columns of CSV and TSV files, whose cells are texts: those of the fields in the mapping.

| field | cells | in the document |
|---|---|---|
| integer | `12`, `-3`, `1e5`, `7.0` | an integer of at most 64 bits |
| float | `12`, `1.5`, `.5`, `1e5` | a double; never an integer |
| boolean | `true`, `yes`, `t`, `y`, `1`; `false`, `no`, `f`, `n`, `0`; in upper or lower case | `true` or `false` |
| date | any | the same text: the engine knows the format |

An empty cell of such a column is null. A row with a cell that its type cannot read is rejected, unless the field has
`ignore_malformed`.

pyarrow's CSV reader is not used: it does not report the lines or bytes of a row that has line feeds in quotes, and one
cell that cannot be converted fails a whole block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from es_sbert.engines.index_state import SettingValue
from es_sbert.index.derived_fields import mapped_fields
from es_sbert.io.text_formats import ParsedRow

_BOOLEANS = dict.fromkeys(("true", "yes", "t", "y", "1"), True) | dict.fromkeys(("false", "no", "f", "n", "0"), False)
# Bounded, because long numbers and exponents take long to convert.
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,3})?")
# The smallest `long` and the largest `unsigned_long`: engines accept no other integers.
_MIN_NUMBER, _MAX_NUMBER = -(2**63), 2**64 - 1
_MAX_SHOWN = 60


def _integer(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    number = Decimal(text)
    if number != number.to_integral_value() or not _MIN_NUMBER <= number <= _MAX_NUMBER:
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


class _CellType(NamedTuple):
    """How the cells of a column are read.

    Attributes:
        name: The type, for messages.
        expected: What its cells hold, for messages.
        read: Converts a cell without white space around it; raises ValueError.
    """

    name: str
    expected: str
    read: Callable[[str], Any]


_INTEGER = _CellType("integer", "an integer of at most 64 bits", _integer)
_FLOAT = _CellType("float", "a number with a decimal point", _float)
_CELL_TYPES = {
    **dict.fromkeys(("byte", "short", "integer", "long", "unsigned_long"), _INTEGER),
    **dict.fromkeys(("half_float", "float", "double", "scaled_float", "rank_feature"), _FLOAT),
    "boolean": _CellType("boolean", "a boolean (true or false, yes or no, t or f, y or n, 1 or 0)", _boolean),
    **dict.fromkeys(("date", "date_nanos"), _CellType("date", "a date", str)),
}


class ColumnType(NamedTuple):
    """The type of a column.

    Attributes:
        field_type: Type of its field in the mapping.
        keeps_malformed: Whether the mapping accepts values of another type (`ignore_malformed`); such a cell stays
            text.
    """

    field_type: str
    keeps_malformed: bool = False


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
    return {
        name: ColumnType(field["type"], field.get("ignore_malformed", ignores) in (True, "true"))
        for name, field in mapped_fields(mappings.get("properties", {}))
        if field.get("type") in _CELL_TYPES and name not in excluded
    }


def convert_cells(rows: Iterable[ParsedRow], types: Mapping[str, ColumnType]) -> Iterator[ParsedRow]:
    """Convert the cells of rows to their types; a cell that its type cannot read makes its row invalid.

    Args:
        rows: Rows that all have the columns of the header.
        types: Column → type; cells of other columns stay texts.
    """
    columns: list[tuple[str, _CellType, bool]] | None = None
    for row in rows:
        if isinstance(row.fields, str):
            yield row
            continue
        if columns is None:
            columns = [
                (name, _CELL_TYPES[t.field_type], t.keeps_malformed) for name, t in types.items() if name in row.fields
            ]
        yield row if (problem := _convert_row(row.fields, columns)) is None else row._replace(fields=problem)


def _convert_row(fields: dict[str, Any], columns: Iterable[tuple[str, _CellType, bool]]) -> str | None:
    """Convert the cells in place; return the reason why a cell cannot be converted, or None."""
    for name, kind, keeps_malformed in columns:
        cell = fields[name]
        text = cell.strip()
        try:
            fields[name] = kind.read(text) if text else None
        except ValueError:  # the reason rejects the row
            if not keeps_malformed:
                shown = cell if len(cell) <= _MAX_SHOWN else f"{cell[:_MAX_SHOWN]}…"
                return (
                    f"the column {name} has {shown!r}, which is not {kind.expected}: the index maps it as {kind.name}"
                )
    return None
