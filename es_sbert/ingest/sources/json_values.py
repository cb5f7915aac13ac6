"""Values of tables as JSON: what JSON lacks is written as users and engines expect it, or refused with the reason.

number          as it is; an integer beyond 64 bits, which no numeric field holds, as a string
decimal         a number with all its digits; beyond 64 bits without a fraction, as a string
NaN             null: what numpy and pandas write for a missing value
infinity        refused: JSON has none, and null would be something else
date, time      ISO 8601; with a time zone in UTC, with a Z behind; without one as it stands
duration        ISO 8601 (`P1DT2H`)
binary          Base64, as the engines' `binary` fields take it
anything else   what `str` makes of a UUID or network address; otherwise refused
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any
from uuid import UUID

import orjson

_NUMBERS = (-(2**63), 2**64 - 1)
_PLAIN = (UUID, IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network)
# Digits behind the point, by the unit that they are counted in.
_DIGITS = {1: 0, 1_000: 3, 1_000_000: 6, 1_000_000_000: 9}
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 and 9999, since 1970


class BadValue(Exception):
    """A value that cannot be written as JSON; the message says why."""


class Unfit:
    """Stands for a value that cannot be written, in columns that are converted as a whole.

    Args:
        reason: Why not.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def json_object(row: Mapping[str, Any]) -> bytes:
    """A row of converted values as JSON in one line.

    Raises:
        BadValue: a value is `Unfit`, or a text is no Unicode; the message names the column.
    """
    try:
        return orjson.dumps(row, default=_refused)
    except orjson.JSONEncodeError:
        pass
    for name, value in row.items():
        try:
            orjson.dumps({name: value}, default=_refused)
        except orjson.JSONEncodeError as error:
            raise BadValue(f"the column {name}: {error.__cause__ or error}") from error
    raise AssertionError("each column of the row can be written, the row cannot")


def sample(row: Mapping[str, Any]) -> bytes:
    """A row that cannot be written, for people to look at: what is unfit stands there as its reason."""
    shown: dict[str, Any] = {}
    for name, value in row.items():
        try:
            orjson.dumps({name: value}, default=str)
            shown[name] = value
        except orjson.JSONEncodeError:
            shown[repr(name)] = repr(value)
    return orjson.dumps(shown, default=str)


def _refused(value: object) -> Any:
    raise BadValue(str(value) if isinstance(value, Unfit) else f"a {type(value).__name__} cannot be written as JSON")


def json_value(value: object) -> Any:
    """A value as Python's database drivers have it, as JSON has it; `Unfit` where JSON has none."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return integer(value)
        case float():
            return floating(value)
        case Decimal():
            return decimal(value)
        case datetime():
            return moment(value)
        case date():
            return value.isoformat()
        case time():
            return value.isoformat()
        case timedelta():
            return duration(value // timedelta(microseconds=1), 1_000_000)
        case bytes() | bytearray() | memoryview():
            return base64(bytes(value))
        case Mapping():
            return {str(key): json_value(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [json_value(inner) for inner in value]
        case _ if isinstance(value, _PLAIN):
            return str(value)
        case _:
            return Unfit(f"a {type(value).__name__} cannot be written as JSON: turn it into text in the query")


def integer(value: int) -> int | str:
    return value if _NUMBERS[0] <= value <= _NUMBERS[1] else str(value)


def floating(value: float) -> float | Unfit | None:
    if math.isinf(value):
        return Unfit(f"{'-' if value < 0 else ''}Infinity cannot be written as JSON")
    return None if math.isnan(value) else value


def decimal(value: Decimal) -> Any:
    """An exact JSON number (an `orjson.Fragment`), or what stands for one."""
    if value.is_nan():
        return None
    if value.is_infinite():
        return Unfit(f"{value} cannot be written as JSON")
    if value == value.to_integral_value() and not _NUMBERS[0] <= value <= _NUMBERS[1]:
        return format(value, "f")
    return orjson.Fragment(format(value, "f").encode())


def moment(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def instant(count: int, unit: int, *, utc: bool) -> str | Unfit:
    """A point in time.

    Args:
        count: Since the beginning of 1970.
        unit: Of which there are so many in a second: 1, 10³, 10⁶ or 10⁹.
        utc: Whether it is a point in time rather than what a clock shows.
    """
    seconds, rest = divmod(count, unit)
    if not _FIRST_SECOND <= seconds <= _LAST_SECOND:
        return Unfit("the time lies outside the years 1 to 9999")
    return _since_1970(seconds) + _fraction(rest, unit) + ("Z" if utc else "")


def day(count: int) -> str | Unfit:
    """A date, from the days since the beginning of 1970."""
    shown = instant(count * 86_400, 1, utc=False)
    return shown if isinstance(shown, Unfit) else shown.partition("T")[0]


def base64(value: bytes) -> str:
    return b64encode(value).decode()


def clock(count: int, unit: int) -> str:
    """A time of day, from what has passed of it."""
    seconds, rest = divmod(count, unit)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{_fraction(rest, unit)}"


def duration(count: int, unit: int) -> str:
    """A span of time, in days and less."""
    seconds, rest = divmod(abs(count), unit)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    day = f"{days}D" if days else ""
    inside = "".join((f"{hour}H" if hour else "", f"{minute}M" if minute else "",
                      f"{second}{_fraction(rest, unit)}S" if second or rest else ""))  # fmt: skip
    return f"{'-' if count < 0 else ''}P{day}{'T' + inside if inside else ''}" if day or inside else "PT0S"


def _since_1970(seconds: int) -> str:
    return (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat()


def _fraction(rest: int, unit: int) -> str:
    """`.5` seconds as `.500`: three, six or nine digits, as many as are needed."""
    if not rest:
        return ""
    digits = f"{rest:0{_DIGITS[unit]}}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}"
