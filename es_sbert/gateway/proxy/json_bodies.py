"""Parse and serialize JSON without losing anything that the engine would have seen."""

from __future__ import annotations

import codecs
import contextlib
import json
import math
from collections.abc import Sequence
from typing import Any

import orjson

from es_sbert.engines.rest import Json


class UnsupportedJson(ValueError):
    """JSON that the engine parses differently or rejects; such a body is forwarded unchanged."""


def parse_object(raw: bytes | str, *, finite: bool = True) -> Json:
    """Parse a JSON object. Integers keep all digits.

    Args:
        finite: Whether to reject numbers that are too large for a float.

    Raises:
        UnsupportedJson: the text is not a JSON object, has a duplicate key, which engines reject, or is nested too
            deeply.
    """
    number = _parse_finite if finite else None
    try:
        value = json.loads(
            raw, object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant, parse_float=number
        )
    except (ValueError, RecursionError) as error:
        raise UnsupportedJson(str(error)) from None
    if not isinstance(value, dict):
        raise UnsupportedJson("not an object")
    return value


def to_utf8(body: bytes) -> bytes:
    """Convert JSON to UTF-8 without a byte order mark; invalid text stays unchanged.

    Engines detect UTF-16 and UTF-32 by the first bytes of a body, not by its headers (RFC 4627, section 3).
    """
    encoding = json.detect_encoding(body)
    if encoding == "utf-8":
        return body
    try:
        return body.decode(encoding).encode()
    except UnicodeError:
        return body


def lines_to_utf8(body: bytes) -> bytes:
    """Convert NDJSON to UTF-8 line by line: engines split it at line feed bytes and parse each line separately."""
    if b"\0" not in body and codecs.BOM_UTF8 not in body:
        return body
    return b"\n".join(map(to_utf8, body.split(b"\n")))


def write_object(value: Json) -> bytes:
    """Serialize JSON in UTF-8, on one line."""
    with contextlib.suppress(TypeError):
        return orjson.dumps(value)
    # orjson rejects lone surrogates and integers of more than 64 bits, which engines accept.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def _reject_duplicate_keys(pairs: Sequence[tuple[str, Any]]) -> Json:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise UnsupportedJson("a duplicate key")
    return result


def _reject_constant(name: str) -> Any:
    raise UnsupportedJson(f"{name} is not JSON")


def _parse_finite(digits: str) -> float:
    """Parse a finite float; Python parses larger numbers as infinity."""
    number = float(digits)
    if math.isinf(number):
        raise UnsupportedJson(f"{digits} is too large")
    return number
