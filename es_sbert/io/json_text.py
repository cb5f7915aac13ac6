"""JSON whose bytes are kept: its numbers have their text, and members are changed without changing other bytes.

A keyword field that gets `1.10` has the term `1.10`, not `1.1`.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

# What may lose its text: a zero at the end of decimals, many digits, a small fraction (which Java writes with an
# exponent), -0, a large fraction, an exponent. Text in a string may match too, which costs time and nothing else. The
# patterns begin with characters that are rare in documents: one that begins with any number takes eight times as long.
_INEXACT_FRACTION = re.compile(rb"\.(?:\d+0|\d{14,})\s*[,\]}]")
_SMALL_FRACTION = re.compile(rb"0\.000\d*\s*[,\]}]")
_NEGATIVE_ZERO = re.compile(rb"-0\s*[,\]}]")
# These two are searched in data in which every digit is a zero.
_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE_FRACTION = b"00000000.0"
_EXPONENT = re.compile(rb"0e[+-]?0+\s*[,\]}]")
# Java writes numbers outside of this range with an exponent.
_SMALLEST, _LARGEST = 1e-3, 1e7


class JsonNumber(float):
    """A number that engines or Python would write differently after parsing it; `dump_object` writes it unchanged.

    Attributes:
        text: The number as it was written.
    """

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> JsonNumber:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __reduce__(self) -> tuple[type[JsonNumber], tuple[str]]:
        return JsonNumber, (self.text,)


def exact_number(text: str) -> float:
    """Parse a number with a fraction or an exponent; it becomes a `JsonNumber` if its text would be lost otherwise."""
    value = float(text)
    is_plain = repr(value) == text and (_SMALLEST <= abs(value) < _LARGEST or not value)
    return value if is_plain else JsonNumber(text)


def _exact_integer(text: str) -> float:
    return JsonNumber(text) if text == "-0" else int(text)


def may_lose_numbers(data: bytes) -> bool:
    """Whether JSON may hold a number that loses its text when it is parsed and written again."""
    if any(pattern.search(data) for pattern in (_INEXACT_FRACTION, _SMALL_FRACTION, _NEGATIVE_ZERO)):
        return True
    zeros = data.translate(_ZEROS)
    return _LARGE_FRACTION in zeros or _EXPONENT.search(zeros) is not None


def parse_exact(data: bytes) -> Any:
    """Parse JSON with `JsonNumber` for each number whose text would be lost otherwise.

    Raises:
        ValueError: the data is not JSON.
    """
    return json.loads(data, parse_float=exact_number, parse_int=_exact_integer)


def number_text(value: float) -> str:
    """The text of a number that `parse_exact` has parsed."""
    return value.text if isinstance(value, JsonNumber) else repr(value)


def dump_object(fields: dict[str, Any], *, sort_keys: bool = False) -> bytes:
    """Write an object as JSON on one line, each `JsonNumber` with its own text.

    Documents of an engine may contain lone surrogates and integers of any size, which orjson does not write.
    """
    try:
        return orjson.dumps(fields, default=_fragment, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        mark = uuid.uuid4().hex
        text = json.dumps(_marked(fields, mark), sort_keys=sort_keys)
        return text.replace(f'"{mark}', "").replace(f'{mark}"', "").encode()


def _fragment(number: JsonNumber) -> orjson.Fragment:
    return orjson.Fragment(number.text)


def _marked(value: Any, mark: str) -> Any:
    """Replace each `JsonNumber` by a string with its text between marks, because json writes only their values."""
    if isinstance(value, dict):
        return {key: _marked(inner, mark) for key, inner in value.items()}
    if isinstance(value, list):
        return [_marked(inner, mark) for inner in value]
    return f"{mark}{value.text}{mark}" if isinstance(value, JsonNumber) else value


_WHITESPACE = " \t\r\n"
# Only the end of a value is needed, so numbers are not parsed and may be longer than Python accepts.
_DECODER = json.JSONDecoder(strict=False, parse_float=len, parse_int=len, parse_constant=len)


@dataclass(frozen=True, slots=True)
class JsonMember:
    """The position of a member in the text of an object.

    Attributes:
        name: Its key.
        start, value, end: Offsets of its key, its value and its end.
    """

    name: str
    start: int
    value: int
    end: int


def object_members(text: str) -> list[JsonMember]:
    """List the members of an object, in order.

    Args:
        text: A valid JSON object.
    """
    found: list[JsonMember] = []
    position = _skip_space(text, text.index("{") + 1)
    while text[position] != "}":
        name, end = _DECODER.raw_decode(text, position)
        value = _skip_space(text, text.index(":", end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        found.append(JsonMember(name, position, value, end))
        position = _skip_space(text, end)
        if text[position] == ",":
            position = _skip_space(text, position + 1)
    return found


def member_value(source: bytes, name: str) -> bytes:
    """Return the bytes of a member's value; those of the last member if the key is repeated.

    Args:
        source: A valid JSON object that has the member.
    """
    text = source.decode()
    member = [member for member in object_members(text) if member.name == name][-1]
    return text[member.value : member.end].encode()


def remove_members(source: bytes, names: Container[str]) -> bytes:
    """Remove some members of an object.

    Args:
        source: A valid JSON object.
    """
    text = source.decode()
    kept = [text[member.start : member.end] for member in object_members(text) if member.name not in names]
    return ("{" + ",".join(kept) + "}").encode()


def replace_values(source: bytes, values: Mapping[str, bytes]) -> bytes:
    """Replace the values of some members of an object.

    Args:
        source: A valid JSON object.
    """
    text = source.decode()
    parts: list[str] = []
    done = 0
    for member in object_members(text):
        if member.name in values:
            parts += text[done : member.value], values[member.name].decode()
            done = member.end
    return "".join([*parts, text[done:]]).encode()


def _skip_space(text: str, position: int) -> int:
    while text[position] in _WHITESPACE:
        position += 1
    return position
