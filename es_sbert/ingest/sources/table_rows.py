"""Rows of SQL results and columnar files as records: their values converted to JSON.

| value | JSON |
|---|---|
| integer | unchanged; beyond 64 bits, which no numeric field holds, a string |
| decimal | a number with all its digits; an integer beyond 64 bits is a string |
| NaN | null: numpy and pandas write it for a missing value |
| infinity | rejected: JSON has no infinity |
| date, time | ISO 8601; with a time zone, converted to UTC and written with a Z |
| duration | ISO 8601 (`P1DT2H`) |
| binary | Base64, as the engines' `binary` fields expect it |
| UUID, IP address | text |
| anything else | rejected |

pyarrow's own `to_pylist` fails for a whole column on one nanosecond timestamp, one year beyond 9999 or one byte of
invalid UTF-8. Here only that value is an `UnserializableValue`; its neighbours are converted.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from itertools import islice
from typing import Any
from uuid import UUID

import orjson

from es_sbert.ingest.records import Origin, Record, RejectedRecord

_INTEGER_RANGE = (-(2**63), 2**64 - 1)
_TEXT_TYPES = (UUID, IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network)
# A date of the years 1 to 9999, or a time of day.
_IN_RANGE = re.compile(r"(?!0000)\d\d(\d\d-|:)")


class SerializationError(Exception):
    """A value that cannot be written as JSON; the message says why."""


class UnserializableValue:
    """Placeholder for a value that JSON cannot hold, in a converted column.

    Args:
        reason: Why not.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def row_to_json(row: Mapping[str, Any]) -> bytes:
    """A row of converted values as one line of JSON.

    Raises:
        SerializationError: a value is `UnserializableValue`, or a text is no Unicode; the message names the column.
    """
    try:
        return orjson.dumps(row, default=_refuse)
    except orjson.JSONEncodeError:
        pass
    for name, value in row.items():
        try:
            orjson.dumps({name: value}, default=_refuse)
        except orjson.JSONEncodeError as error:
            raise SerializationError(f"the column {name}: {error.__cause__ or error}") from error
    raise AssertionError("each column of the row can be written, the row cannot")


def preview_row(row: Mapping[str, Any]) -> bytes:
    """A row that cannot be serialized, for display: the reason replaces the value."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        try:
            orjson.dumps({name: value}, default=str)
            shown[name] = value
        except orjson.JSONEncodeError:
            shown[repr(name)] = repr(value)
    return orjson.dumps(shown, default=str)


def _refuse(value: object) -> Any:
    raise SerializationError(
        str(value) if isinstance(value, UnserializableValue) else f"a {type(value).__name__} cannot be written as JSON"
    )


def value_to_json(value: object) -> Any:
    """A value as Python's database drivers have it, as JSON has it; `UnserializableValue` where JSON has none."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if _INTEGER_RANGE[0] <= value <= _INTEGER_RANGE[1] else str(value)
        case float():
            return float_to_json(value)
        case Decimal():
            return decimal_to_json(value)
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
        case date() | time():
            return value.isoformat()
        case timedelta():
            return duration_to_json(value // timedelta(microseconds=1), 1_000_000)
        case bytes() | bytearray() | memoryview():
            return b64encode(bytes(value)).decode()
        case Mapping():
            return {str(key): value_to_json(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [value_to_json(inner) for inner in value]
        case _ if isinstance(value, _TEXT_TYPES):
            return str(value)
        case _:
            kind = type(value).__name__
            return UnserializableValue(f"a {kind} cannot be written as JSON: turn it into text in the query")


def float_to_json(value: float) -> float | UnserializableValue | None:
    if math.isinf(value):
        return UnserializableValue(f"{'-' if value < 0 else ''}Infinity cannot be written as JSON")
    return None if math.isnan(value) else value


def decimal_to_json(value: Decimal) -> Any:
    """An exact JSON number (an `orjson.Fragment`), or its replacement."""
    if value.is_nan():
        return None
    if value.is_infinite():
        return UnserializableValue(f"{value} cannot be written as JSON")
    if value == value.to_integral_value() and not _INTEGER_RANGE[0] <= value <= _INTEGER_RANGE[1]:
        return format(value, "f")
    return orjson.Fragment(format(value, "f").encode())


def temporal_to_json(text: str, zone: str) -> str | UnserializableValue:
    """A date, a time of day or a timestamp.

    Args:
        text: As Arrow writes it: with a space in the middle and all digits of the fraction.
        zone: `Z`, or nothing for what a clock shows.
    """
    if not _IN_RANGE.match(text):
        return UnserializableValue("the time lies outside the years 1 to 9999")
    whole, _, fraction = text.replace(" ", "T").partition(".")
    return whole + _format_fraction(fraction) + zone


def duration_to_json(count: int, unit: int) -> str:
    """A span of time, in days and less.

    Args:
        unit: Units per second: 1, 10³, 10⁶ or 10⁹.
    """
    seconds, rest = divmod(abs(count), unit)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    day = f"{days}D" if days else ""
    fraction = _format_fraction(f"{rest * 1_000_000_000 // unit:09}")
    inside = "".join(
        (f"{hour}H" if hour else "", f"{minute}M" if minute else "", f"{second}{fraction}S" if second or rest else "")
    )
    return f"{'-' if count < 0 else ''}P{day}{'T' + inside if inside else ''}" if day or inside else "PT0S"


def _format_fraction(digits: str) -> str:
    """`500000000` as `.500`: three, six or nine digits, as many as are needed."""
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}" if digits else ""


_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def column_to_json(array: Any) -> list[Any]:
    """The values of an array, each as JSON has it.

    Args:
        array: A `pyarrow.Array` of any type.

    Returns:
        As many values as the array has; null is None, and what JSON cannot say is `UnserializableValue`.
    """
    import pyarrow.compute as pc
    from pyarrow import types

    kind = array.type
    if hasattr(kind, "storage_type"):  # an extension: what it is to mean is known to its makers alone
        return column_to_json(array.storage)
    if types.is_dictionary(kind):
        values = column_to_json(array.dictionary)
        return [None if index is None else values[index] for index in array.indices.to_pylist()]
    if types.is_run_end_encoded(kind):
        return column_to_json(pc.run_end_decode(array))
    if types.is_struct(kind):
        return _structs_to_json(array)
    if types.is_map(kind):
        return _maps_to_json(array)
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    if any(test(kind) for test in tests):
        return _lists_to_json(array)
    return _scalars_to_json(array)


def _scalars_to_json(array: Any) -> list[Any]:
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return list(array.to_pylist())
    if types.is_floating(kind):
        return _convert_each(float_to_json, array)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _strings_to_json(array)
    if types.is_timestamp(kind) and kind.tz is not None:
        in_utc = array.cast(pa.timestamp(kind.unit)).cast(pa.string())
        return _convert_each(lambda text: temporal_to_json(text, "Z"), in_utc)
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return _convert_each(lambda text: temporal_to_json(text, ""), array.cast(pa.string()))
    if types.is_duration(kind):
        unit = _UNITS_PER_SECOND[kind.unit]
        return _convert_each(lambda count: duration_to_json(count, unit), array.cast(pa.int64()))
    if types.is_interval(kind):
        names = ("months", "days", "nanoseconds")
        return _convert_each(lambda interval: {name: getattr(interval, name) for name in names}, array)
    # Decimals and binary, and unions, which no Parquet file holds.
    return [value_to_json(value) for value in array.to_pylist()]


def _convert_each(convert: Callable[[Any], Any], array: Any) -> list[Any]:
    return [None if value is None else convert(value) for value in array.to_pylist()]


def _strings_to_json(array: Any) -> list[Any]:
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [_string_to_json(value) for value in array]


def _string_to_json(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return UnserializableValue(f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}")


def _structs_to_json(array: Any) -> list[Any]:
    names = [field.name for field in array.type]
    valid = array.is_valid().to_pylist()
    if len(set(names)) < len(names):
        invalid = UnserializableValue("two fields of an object have the same name")
        return [invalid if is_valid else None for is_valid in valid]
    if not names:
        return [{} if is_valid else None for is_valid in valid]
    columns = [column_to_json(child) for child in array.flatten()]
    rows = zip(*columns, strict=True)
    return [dict(zip(names, row, strict=True)) if is_valid else None for is_valid, row in zip(valid, rows, strict=True)]


def _lists_to_json(array: Any) -> list[Any]:
    lengths = array.value_lengths().to_pylist()
    values = iter(column_to_json(array.flatten()))  # those of lists that are not null
    valid = array.is_valid().to_pylist()
    return [list(islice(values, length)) if is_valid else None for is_valid, length in zip(valid, lengths, strict=True)]


def _maps_to_json(array: Any) -> list[Any]:
    """Maps as objects; keys become text."""
    import pyarrow as pa

    kind = array.type
    entry = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
    maps = _lists_to_json(array.cast(pa.list_(entry)))
    return [None if entries is None else _entries_to_object(entries) for entries in maps]


def _entries_to_object(entries: list[Any]) -> dict[str, Any] | UnserializableValue:
    result: dict[str, Any] = {}
    for entry in entries:
        key = entry["key"]
        if not isinstance(key, str | int) or isinstance(key, bool):
            return UnserializableValue("a key of a map is neither text nor an integer")
        if str(key) in result:
            return UnserializableValue(f"a map holds the key {key} twice")
        result[str(key)] = entry["value"]
    return result


def row_record(row: dict[str, Any], origin: Origin, max_bytes: int) -> Record | RejectedRecord:
    """A row whose values are converted as a record.

    Args:
        max_bytes: Longest document.
    """
    try:
        data = row_to_json(row)
    except SerializationError as bad:
        return RejectedRecord.of_bytes(origin, str(bad), preview_row(row))
    if len(data) > max_bytes:
        reason = f"the row has {len(data):,} bytes as JSON, more than --max-document-bytes allows"
        return RejectedRecord.of_bytes(origin, reason, data)
    return Record(origin, orjson.loads(data), data)
