"""Parse and write JSON Lines: one JSON object per line."""

from __future__ import annotations

import json
from typing import Any

import orjson

# White space that may stand around an object.
LINE_WHITESPACE = b" \t\r\x0b\x0c"
# orjson reads 1024 levels, but writes 254 only, and what is read must be written: hashed, and as a dead letter.
MAX_DEPTH = 200


def parse_json_line(data: bytes) -> dict[str, Any] | str:
    """The object of a line without the space around it, or why there is none."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return utf8_problem(data) or f"malformed JSON: {error}"
    return value if isinstance(value, dict) else f"the line is a JSON {json_type_name(value)}, not an object"


def dump_object(fields: dict[str, Any], *, sort_keys: bool = False) -> bytes:
    """An object as JSON on one line, also one that an engine gave: its documents may hold lone surrogates and integers
    of any size, which orjson does not write."""
    try:
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        return json.dumps(fields, sort_keys=sort_keys).encode()


def depth_problem(fields: dict[str, Any], data: bytes) -> str | None:
    """What is wrong with an object that is nested too deeply, or None.

    Args:
        data: What it was parsed from.
    """
    # Almost no object has so many brackets: the others need not be looked into.
    if data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return None
    level: list[Any] = [fields]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return None
    return f"the object is nested more than {MAX_DEPTH} levels deep"


def utf8_problem(data: bytes) -> str | None:
    """What is wrong with bytes that should be UTF-8, or None."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"invalid UTF-8: byte 0x{data[error.start]:02x} at position {error.start}"
    return None


def json_type_name(value: object) -> str:
    """JSON's name of a parsed value's type."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]
