"""Values of Python programs, database drivers and Arrow columns as JSON.

| value | JSON |
|---|---|
| integer | unchanged; beyond 64 bits, which no numeric field holds, a string |
| decimal | a number with all its digits; an integer beyond 64 bits is a string |
| NaN, and pandas' `NA` and `NaT` | null: numpy and pandas write them for a missing value |
| infinity | rejected: JSON has no infinity |
| date, time | ISO 8601; with a time zone, converted to UTC and written with a Z |
| duration | ISO 8601 (`P1DT2H`) |
| binary | text in the fields of the text, the id and the routing; elsewhere Base64, as `binary` fields expect it |
| UUID, IP address, path, BSON's `ObjectId` | text |
| numpy scalar, array, pandas Series | the value, or an array of the values |
| tuple, set | array; that of a set is sorted, so that equal documents have equal hashes in all processes |
| member of an Enum | its value |
| anything else | rejected |
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
import orjson

_INTEGER_RANGE = (-(2**63), 2**64 - 1)
# By default, Python refuses to convert longer integers to text.
_MAX_INTEGER_BITS = 4300 * 3
_TEXT_TYPES = (UUID, PurePath, IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network)
# A date of the years 1 to 9999, or a time of day.
_IN_RANGE = re.compile(r"(?!0000)\d\d(\d\d-|:)")
_OUT_OF_RANGE = "the time lies outside the years 1 to 9999"


class SerializationError(Exception):
    """A value that cannot be written as JSON; the message gives the reason."""


class UnknownTypeError(SerializationError):
    """A value of a type that is not converted; the caller can convert it."""


class UnserializableValue:
    """Placeholder for a value that JSON cannot hold, in a converted column.

    Args:
        reason: Reason why it cannot be converted.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class UnknownType(UnserializableValue):
    """Placeholder for a value of a type that is not converted; the caller can convert it."""

    def __init__(self, value: object) -> None:
        super().__init__(f"a {type(value).__name__} cannot be written as JSON")


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


def json_default(value: object) -> Any:
    """Return the value that orjson writes for a placeholder of a converted column.

    Raises:
        SerializationError: the value is `UnserializableValue`, or was not converted.
    """
    if isinstance(value, BinaryValue):
        return str(value)
    if isinstance(value, UnserializableValue) and not isinstance(value, UnknownType):
        raise SerializationError(str(value))
    raise UnknownTypeError(str(value if isinstance(value, UnknownType) else UnknownType(value)))


def value_to_json(value: object) -> Any:
    """Convert a value of a Python program or a database driver to its JSON form.

    Returns:
        The JSON form; `UnserializableValue` if there is none, `BinaryValue` for bytes.
    """
    match value:
        case Enum():
            return value_to_json(value.value)
        case None | bool() | str():
            return value
        case np.generic():
            return _numpy_scalar_to_json(value)
        case int():
            return _integer_to_json(int(value))
        case float():
            return float_to_json(float(value))
        case Decimal():
            return decimal_to_json(value)
        case date() | time():
            return _moment_to_json(value)
        case timedelta():
            # pandas counts nanoseconds, too.
            nanoseconds = int(value // timedelta(microseconds=1)) * 1000 + getattr(value, "nanoseconds", 0)
            return duration_to_json(nanoseconds, 10**9)
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
            return _array_to_json(value)
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


def _numpy_scalar_to_json(value: np.generic) -> Any:
    match value:
        case np.datetime64():
            return _numpy_moment_to_json(value)
        case np.timedelta64():
            return _numpy_duration_to_json(value)
        case np.bool_():
            return bool(value)
        case np.integer():
            return int(value)
        case np.floating():
            return float_to_json(float(value))
        case np.bytes_():
            return BinaryValue(bytes(value))
        case _:
            return UnknownType(value)


def _numpy_moment_to_json(value: np.datetime64) -> str | UnserializableValue | None:
    if np.isnat(value):
        return None
    unit = np.datetime_data(value.dtype)[0]
    # Engines reject hours without minutes, and fractions of a second below a nanosecond.
    target_unit = {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s", "ps": "ns", "fs": "ns", "as": "ns"}.get(unit, unit)
    return temporal_to_json(str(value.astype(f"datetime64[{target_unit}]")), "")


_NANOSECONDS = {
    "W": 604_800 * 10**9, "D": 86_400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000,
    "ns": 1,
}  # fmt: skip


def _numpy_duration_to_json(value: np.timedelta64) -> str | UnserializableValue | None:
    if np.isnat(value):
        return None
    unit, step = np.datetime_data(value.dtype)
    if unit not in _NANOSECONDS:
        return UnserializableValue(f"a duration in the unit {unit} of numpy cannot be written as ISO 8601")
    return duration_to_json(int(value.astype(np.int64)) * step * _NANOSECONDS[unit], 10**9)


def _array_to_json(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.kind in "biuf":
        return value_to_json(array.tolist())
    # `tolist` is not used for other types, because times would lose their unit.
    return value_to_json(list(array) if array.ndim else array[()])


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
    return UnknownType(value)


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
    return whole + _format_fraction(fraction) + zone


def duration_to_json(count: int, unit: int) -> str:
    """Format a span of time, in days and smaller units.

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
