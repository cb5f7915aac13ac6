"""JSON Lines: one object a line."""

from __future__ import annotations

from typing import Any

import orjson

# White space that may stand around an object.
SPACE = b" \t\r\x0b\x0c"


def parse_object(data: bytes) -> dict[str, Any] | str:
    """The object of a line without the space around it, or why there is none."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return utf8_problem(data) or f"malformed JSON: {error}"
    return value if isinstance(value, dict) else f"the line is a JSON {json_type(value)}, not an object"


def utf8_problem(data: bytes) -> str | None:
    """What is wrong with bytes that should be UTF-8, or None."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"invalid UTF-8: byte 0x{data[error.start]:02x} at position {error.start}"
    return None


def json_type(value: object) -> str:
    """JSON's name of a parsed value's type."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]
