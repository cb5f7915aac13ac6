"""Rows of Parquet files and documents of Python programs as records.

| value | JSON |
|---|---|
| integer | unchanged; beyond 64 bits, which no numeric field holds, a string |
| decimal | a number with all its digits; an integer beyond 64 bits is a string |
| NaN, and pandas' `NA` and `NaT` | null: numpy and pandas write them for a missing value |
| infinity | rejected: JSON has no infinity |
| date, time | ISO 8601; with a time zone, converted to UTC and written with a Z |
| binary | text in the fields of the text, the id and the routing; elsewhere Base64, as `binary` fields expect it |
| UUID, IP address, path, BSON's `ObjectId` | text |
| numpy scalar, array, pandas Series | the value, or an array of the values |
| tuple, set | array; that of a set is sorted, so that equal documents have equal hashes in all processes |
| member of an Enum | its value |
| anything else | rejected |

pyarrow's own `to_pylist` fails for a whole column on one nanosecond timestamp, one year beyond 9999 or one byte of
invalid UTF-8. Here only that value is an `UnserializableValue`; the other values are converted.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from itertools import islice
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
import orjson

from es_sbert.index.text_template import change_values
from es_sbert.ingest.sources.document_source import Origin, ReadSettings, Record, RejectedRecord
from es_sbert.messages import pluralize

_INTEGER_RANGE = (-(2**63), 2**64 - 1)
# By default, Python refuses to convert longer integers to text.
_MAX_INTEGER_BITS = 4300 * 3
_TEXT_TYPES = (UUID, PurePath, IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network)
# A date of the years 1 to 9999, or a time of day.
_IN_RANGE = re.compile(r"(?!0000)\d\d(\d\d-|:)")
_OUT_OF_RANGE = "the time lies outside the years 1 to 9999"


class SerializationError(Exception):
    """A value that cannot be written as JSON; the message gives the reason."""


class UnserializableValue:
    """Placeholder for a value that JSON cannot hold, in a converted column.

    Args:
        reason: Reason why it cannot be converted.
        has_cast: Whether a cast to text converts it: its type is unknown here.
    """

    def __init__(self, reason: str, *, has_cast: bool = False) -> None:
        self.reason = reason
        self.has_cast = has_cast

    def __str__(self) -> str:
        return self.reason


class BinaryValue:
    """Placeholder for bytes in a converted column: whether they are text depends on the field.

    Args:
        data: The bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __str__(self) -> str:
        return b64encode(self.data).decode()

    def text(self) -> str:
        """Decode the bytes.

        Raises:
            SerializationError: the bytes are not valid UTF-8.
        """
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            position = f"byte 0x{self.data[error.start]:02x} at position {error.start}"
            raise SerializationError(f"bytes that are not valid UTF-8 ({position})") from None


def value_to_json(value: object) -> Any:
    """Convert a value of a Python program to its JSON form.

    Returns:
        The JSON form; `UnserializableValue` if there is none, `BinaryValue` for bytes.
    """
    match value:
        case Enum():
            return value_to_json(value.value)
        case None | bool() | str():
            return value
        case int():
            return _integer_to_json(int(value))
        case float() | np.floating():
            return float_to_json(float(value))
        case np.datetime64():
            return _numpy_moment_to_json(value)
        case timedelta() | np.timedelta64():  # before numpy's scalars, whose `item` may be a number
            return None if value != value else _unknown_type(value)
        case np.generic():
            item = value.item()
            # Python has no type for a long complex number.
            return _unknown_type(value) if isinstance(item, np.generic) else value_to_json(item)
        case Decimal():
            return decimal_to_json(value)
        case date() | time():
            return _moment_to_json(value)
        case bytes() | bytearray() | memoryview():
            return BinaryValue(bytes(value))
        case Mapping():
            return object_to_json(value)
        case list() | tuple():
            return [value_to_json(inner) for inner in value]
        case set() | frozenset():
            # Sorted, because the order of a set depends on the process, and ids may be hashes of the document.
            return sorted(map(value_to_json, value), key=lambda inner: orjson.dumps(inner, default=str))
        case np.ndarray():
            # `tolist` is not used for other types than numbers, because times would lose their unit.
            is_plain = value.dtype.kind in "biuf"
            return value_to_json(value.tolist() if is_plain else list(value) if value.ndim else value[()])
        case _ if isinstance(value, _TEXT_TYPES):
            return str(value)
        case _:
            return _foreign_to_json(value)


def object_to_json(value: Mapping[Any, Any]) -> dict[str, Any] | UnserializableValue:
    """Convert a mapping to an object, and its keys to text."""
    result: dict[str, Any] = {}
    for key, inner in value.items():
        name = key.value if isinstance(key, Enum) else key
        try:
            name = BinaryValue(name).text() if isinstance(name, bytes) else str(name)
        except SerializationError as error:
            return UnserializableValue(f"a key is {error}")
        if name in result:
            return UnserializableValue(f"two keys of an object are {name} as text")
        result[name] = value_to_json(inner)
    return result


def _integer_to_json(value: int) -> int | str | UnserializableValue:
    if _INTEGER_RANGE[0] <= value <= _INTEGER_RANGE[1]:
        return value
    if value.bit_length() > _MAX_INTEGER_BITS:
        return UnserializableValue("an integer of thousands of digits cannot be written as JSON")
    return str(value)


def _moment_to_json(value: date | time) -> str | UnserializableValue | None:
    if value != value:  # pandas' NaT, which is a datetime
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return value.isoformat()
    try:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        return UnserializableValue(_OUT_OF_RANGE)


def _numpy_moment_to_json(value: np.datetime64) -> str | UnserializableValue | None:
    if np.isnat(value):
        return None
    unit = np.datetime_data(value.dtype)[0]
    # Engines reject hours without minutes, and fractions of a second below a nanosecond.
    target_unit = {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s", "ps": "ns", "fs": "ns", "as": "ns"}.get(unit, unit)
    return temporal_to_json(str(value.astype(f"datetime64[{target_unit}]")), "")


def _foreign_to_json(value: object) -> Any:
    """Convert a value of another library, recognized without importing that library."""
    module, name = type(value).__module__.partition(".")[0], type(value).__qualname__
    if (module, name) == ("pandas", "NAType"):
        return None
    if (module, name) == ("bson", "ObjectId"):
        return str(value)
    if (module, name) == ("bson", "Decimal128"):
        return decimal_to_json(Decimal(str(value)))
    if hasattr(value, "__array__") and hasattr(value, "tolist"):  # pandas' Series, Index and Categorical; tensors
        return value_to_json(value.tolist())
    return _unknown_type(value)


def _unknown_type(value: object) -> UnserializableValue:
    return UnserializableValue(f"a {type(value).__name__} cannot be written as JSON", has_cast=True)


def float_to_json(value: float) -> float | UnserializableValue | None:
    if math.isinf(value):
        return UnserializableValue(f"{'-' if value < 0 else ''}Infinity cannot be written as JSON")
    return None if math.isnan(value) else value


def decimal_to_json(value: Decimal) -> Any:
    """Convert a decimal to an exact JSON number (an `orjson.Fragment`), or to its replacement."""
    if value.is_nan():
        return None
    if value.is_infinite():
        return UnserializableValue(f"{value} cannot be written as JSON")
    if value == value.to_integral_value() and not _INTEGER_RANGE[0] <= value <= _INTEGER_RANGE[1]:
        return format(value, "f")
    return orjson.Fragment(format(value, "f").encode())


def temporal_to_json(text: str, zone: str) -> str | UnserializableValue:
    """Format a date, a time of day or a timestamp.

    Args:
        text: The time as Arrow writes it: with a space in the middle and all digits of the fraction.
        zone: `Z`, or empty for a local time.
    """
    if not _IN_RANGE.match(text):
        return UnserializableValue(_OUT_OF_RANGE)
    whole, _, fraction = text.replace(" ", "T").partition(".")
    # Three, six or nine digits, as many as are needed: `500000000` as `.500`.
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return whole + (f".{fraction}" if fraction else "") + zone


@dataclass(frozen=True)
class RowTerms:
    """The words and advice of messages about the rows of one kind of source.

    Attributes:
        row, column: The words for a row and a column.
        cast: Advice on how to turn a value of a type that JSON lacks into text.
        decode: Advice on how to turn bytes into text.
    """

    row: str
    column: str
    cast: str
    decode: str


PARQUET_ROWS = RowTerms(
    row="row",
    column="column",
    cast="cast the column to a string when you write the file",
    decode="cast the column to a string when you write the file: decode(COLUMN, 'ISO-8859-1') or hex(COLUMN) in Spark",
)
PYTHON_ROWS = RowTerms(
    row="document",
    column="field",
    cast="convert it to a str first",
    decode="decode it first: value.decode('latin-1') or value.hex()",
)


def _json_default(value: object) -> str:
    if isinstance(value, BinaryValue):
        return str(value)
    raise SerializationError(value)


def row_to_json(row: Mapping[str, Any], terms: RowTerms = PYTHON_ROWS) -> bytes:
    """Write a row of converted values as one line of JSON.

    Raises:
        SerializationError: a value is `UnserializableValue`, or a text is not Unicode; the message names the column.
    """
    try:
        return orjson.dumps(row, default=_json_default)
    except orjson.JSONEncodeError:  # the loop finds the column to blame
        pass
    for name, value in row.items():
        try:
            orjson.dumps({name: value}, default=_json_default)
        except orjson.JSONEncodeError as error:
            [refused] = error.__cause__.args if isinstance(error.__cause__, SerializationError) else [error]
            advice = f": {terms.cast}" if getattr(refused, "has_cast", False) else ""
            raise SerializationError(f"the {terms.column} {name}: {refused}{advice}") from error
    raise AssertionError("each column of the row can be written, the row cannot")


def _decode_row(row: dict[str, Any], settings: ReadSettings, terms: RowTerms) -> None:
    """Turn bytes in the fields of the text, the id and the routing into text.

    Raises:
        SerializationError: the bytes are not valid UTF-8; the message names the column.
    """
    for name in (*settings.text_fields, *settings.key_fields):
        if type(row.get(name)) is str:
            continue  # nearly all values
        try:
            change_values(row, name, lambda value: value.text() if isinstance(value, BinaryValue) else value)
        except SerializationError as error:
            raise SerializationError(f"the {terms.column} {name} holds {error}: {terms.decode}") from None


def _preview_row(row: Mapping[str, Any]) -> bytes:
    """Format a row for display if it cannot be serialized: reasons replace the values concerned."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        try:
            orjson.dumps({name: value}, default=str)
            shown[name] = value
        except orjson.JSONEncodeError:
            shown[repr(name)] = repr(value)
    return orjson.dumps(shown, default=str)


def column_to_json(array: Any) -> list[Any]:
    """Convert the values of an array to their JSON form.

    Args:
        array: A `pyarrow.Array` of any type that Parquet files have.

    Returns:
        As many values as the array has. Null is None, and a value that JSON cannot represent is `UnserializableValue`.
    """
    from pyarrow import types

    kind = array.type
    if getattr(kind, "extension_name", None) == "arrow.uuid":
        return [None if value is None else str(UUID(bytes=value)) for value in array.storage.to_pylist()]
    if hasattr(kind, "storage_type"):  # an extension type, whose meaning is not known here
        return column_to_json(array.storage)
    if types.is_dictionary(kind):
        # Only the values that occur: a slice has the dictionary of the whole array.
        used = array.indices.unique()
        values = dict(zip(used.to_pylist(), column_to_json(array.dictionary.take(used)), strict=True))
        return [values[index] for index in array.indices.to_pylist()]
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
        invalid = UnserializableValue("a duration cannot be written as JSON", has_cast=True)
        return [invalid if is_valid else None for is_valid in array.is_valid().to_pylist()]
    # Decimals and binary values.
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
    columns = [column_to_json(child) for child in array.flatten()]
    rows = zip(*columns, strict=True)
    return [dict(zip(names, row, strict=True)) if is_valid else None for is_valid, row in zip(valid, rows, strict=True)]


def _lists_to_json(array: Any) -> list[Any]:
    lengths = array.value_lengths().to_pylist()
    values = iter(column_to_json(array.flatten()))  # those of lists that are not null
    valid = array.is_valid().to_pylist()
    return [list(islice(values, length)) if is_valid else None for is_valid, length in zip(valid, lengths, strict=True)]


def _maps_to_json(array: Any) -> list[Any]:
    """Convert maps to objects, and their keys to text."""
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


def row_record(row: dict[str, Any], origin: Origin, settings: ReadSettings, terms: RowTerms) -> Record | RejectedRecord:
    """Create the record of a row whose values are already converted.

    Args:
        row: The row, which is changed.
        settings: The longest document, and the fields whose bytes are text.
        terms: The words of messages.
    """
    try:
        _decode_row(row, settings, terms)
        data = row_to_json(row, terms)
    except SerializationError as bad:
        return RejectedRecord.of_bytes(origin, str(bad), _preview_row(row))
    if len(data) > settings.max_bytes:
        reason = f"the {terms.row} has {pluralize(len(data), 'byte')} as JSON, more than the limit"
        return RejectedRecord.of_bytes(origin, reason, data)
    return Record(origin, orjson.loads(data), data)
