"""Members of a JSON object found in its bytes, so that the others stay exactly as they were written."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass

_SPACE = " \t\r\n"
# Only where a value ends is asked: numbers need not be understood, and may be longer than Python likes to read.
_DECODER = json.JSONDecoder(strict=False, parse_float=len, parse_int=len, parse_constant=len)


@dataclass(frozen=True, slots=True)
class Member:
    """Where a member stands in an object's text.

    Attributes:
        name: Its key.
        start, value, end: Offsets of its key, of its value, and behind it.
    """

    name: str
    start: int
    value: int
    end: int


def members(text: str) -> list[Member]:
    """The members of an object, in order.

    Args:
        text: A valid JSON object.
    """
    found: list[Member] = []
    position = _behind_space(text, text.index("{") + 1)
    while text[position] != "}":
        name, end = _DECODER.raw_decode(text, position)
        value = _behind_space(text, text.index(":", end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        found.append(Member(name, position, value, end))
        position = _behind_space(text, end)
        if text[position] == ",":
            position = _behind_space(text, position + 1)
    return found


def value_of(source: bytes, name: str) -> bytes:
    """The bytes of a member's value; of the last one, where the key stands several times.

    Args:
        source: A valid JSON object that has the member.
    """
    text = source.decode()
    member = [member for member in members(text) if member.name == name][-1]
    return text[member.value : member.end].encode()


def without(source: bytes, names: Container[str]) -> bytes:
    """An object without some of its members.

    Args:
        source: A valid JSON object.
    """
    text = source.decode()
    kept = [text[member.start : member.end] for member in members(text) if member.name not in names]
    return ("{" + ",".join(kept) + "}").encode()


def with_values(source: bytes, values: Mapping[str, bytes]) -> bytes:
    """An object with other values for some of its members.

    Args:
        source: A valid JSON object.
    """
    text = source.decode()
    parts: list[str] = []
    done = 0
    for member in members(text):
        if member.name in values:
            parts += text[done : member.value], values[member.name].decode()
            done = member.end
    return "".join([*parts, text[done:]]).encode()


def _behind_space(text: str, position: int) -> int:
    while text[position] in _SPACE:
        position += 1
    return position
