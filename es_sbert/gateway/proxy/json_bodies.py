"""Parse and serialize JSON without losing anything that the engine would have seen."""

from __future__ import annotations

import codecs
import contextlib
import json
import math
from collections.abc import Sequence
from typing import Any

import orjson

from es_sbert.engines.protocol import Json


class UnsupportedJson(ValueError):
    """What an engine reads in another way than we do, or not at all: passed on as it is."""


def parse_object(raw: bytes | str, *, finite: bool = True) -> Json:
    """A JSON object with every key once; numbers keep their digits as far as they are whole.

    Args:
        finite: Whether its numbers must be such as can be written again.

    Raises:
        NotPlainJson: no JSON object, or one that engines refuse (a key that stands twice) or that nests too deep.
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
    """A body of JSON in UTF-8 without a byte order mark; what is no text stays as it is.

    Engines tell UTF-16 and UTF-32 from a body's first bytes, whatever its headers say (RFC 4627, section 3).
    """
    encoding = json.detect_encoding(body)
    if encoding == "utf-8":
        return body
    try:
        return body.decode(encoding).encode()
    except UnicodeError:
        return body


def lines_to_utf8(body: bytes) -> bytes:
    """A body of lines of JSON in UTF-8: engines cut it at the bytes of line feeds, and read each line by itself."""
    if b"\0" not in body and codecs.BOM_UTF8 not in body:
        return body
    return b"\n".join(map(to_utf8, body.split(b"\n")))


def write_object(value: Json) -> bytes:
    """JSON in UTF-8, on one line."""
    with contextlib.suppress(TypeError):
        return orjson.dumps(value)
    # Lone surrogates and numbers of more than 64 bits, which engines take.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def _reject_duplicate_keys(pairs: Sequence[tuple[str, Any]]) -> Json:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise UnsupportedJson("a key stands twice")
    return result


def _reject_constant(name: str) -> Any:
    raise UnsupportedJson(f"{name} is no JSON")


def _parse_finite(digits: str) -> float:
    """A number that is written again as one: beyond the largest, Python reads infinity."""
    number = float(digits)
    if math.isinf(number):
        raise UnsupportedJson(f"{digits} is too large")
    return number
