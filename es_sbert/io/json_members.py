"""Find, remove and replace members of a JSON object, without changing a byte of the other members."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass

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
