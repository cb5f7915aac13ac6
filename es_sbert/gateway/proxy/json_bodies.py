"""Read, parse and write JSON as engines do, without losing anything that they would have seen."""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import re
from collections.abc import Sequence
from typing import Any

import orjson

from es_sbert.engines.rest import Json
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.errors import BadRequest, UnsupportedMediaType
from es_sbert.gateway.proxy.incoming_request import NO_ENCODING, IncomingRequest, decompress_body

_PASS_THROUGH = "X-Es-Sbert: off passes the request through unchanged."


class UnreadableJson(BadRequest):
    """JSON that the gateway cannot read. Engines read some of it: some of their APIs ignore what follows the object."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the gateway cannot read the request as JSON: {reason}",
            f"Send one JSON object without duplicate keys. {_PASS_THROUGH}",
        )


async def read_json(incoming: IncomingRequest, raw: bytes) -> bytes:
    """Return the text of a JSON body: not compressed.

    A body that only the engine can read is refused, because it may contain a semantic query, or a text to embed.

    Args:
        raw: The body, as sent.

    Raises:
        UnsupportedMediaType: the body is not JSON, or has another encoding than gzip and deflate.
        RequestTooLarge, Overloaded, BadRequest: see `decompress_body`.
    """
    if not raw:
        return raw
    require_json_type(incoming.header(b"content-type").decode("latin-1"))
    # The size of a compressed body is known only after decompression.
    size = len(raw) if incoming.content_encoding in NO_ENCODING else incoming.limits.body_bytes
    return await offload_if_large(size, decompress_body, raw, incoming)


def require_json_type(content_type: str) -> None:
    """Check the type of a body.

    Args:
        content_type: Value of the header, with its parameters.

    Raises:
        UnsupportedMediaType: it is not that of JSON, as `application/json`, `application/x-ndjson` and the media types
            of clients, `application/vnd.elasticsearch+json`.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if not media_type.endswith("json"):
        raise UnsupportedMediaType(
            f"the gateway cannot read a body with the content type {content_type!r}",
            f"Send it as JSON, with Content-Type: application/json. {_PASS_THROUGH}",
        )


def parse_object(raw: bytes, *, finite: bool = True) -> Json:
    """Parse a JSON object, which may contain comments. Integers keep all digits.

    Args:
        finite: Whether to reject numbers that are too large for a float.

    Raises:
        UnreadableJson: the text is not a JSON object, has a duplicate key, or is nested too deeply.
    """
    try:
        return _parse_object(raw, finite)
    except UnreadableJson:
        if b"/" not in raw:
            raise
        return _parse_object(blank_comments(raw), finite)


def _parse_object(raw: bytes, finite: bool) -> Json:
    number = _parse_finite if finite else None
    try:
        value = json.loads(
            raw, object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant, parse_float=number
        )
    except UnreadableJson:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(str(error)) from None
    if not isinstance(value, dict):
        raise UnreadableJson("it is not an object")
    return value


# A string or comment without an end takes the rest, which would otherwise be searched again from each of its quotes.
_STRING_OR_COMMENT = re.compile(
    rb'(?P<comment>/\*.*?\*/|//[^\r\n]*)|/\*.*|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL
)


def blank_comments(raw: bytes) -> bytes:
    """Replace the comments in JSON, `/* */` and `//`, by as many spaces, so that offsets stay the same."""
    return _STRING_OR_COMMENT.sub(lambda match: b" " * len(match[0]) if match["comment"] else match[0], raw)


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


def require_utf8(text: bytes) -> None:
    """Check that a text is UTF-8. Engines also read longer forms of its characters, in which a name looks different.

    Raises:
        UnreadableJson: the text is not UTF-8. Lone surrogates are allowed.
    """
    try:
        if not text.isascii():
            text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise UnreadableJson(f"it is not UTF-8 at byte {error.start}") from None


def lines_to_utf8(body: bytes) -> bytes:
    """Convert NDJSON to UTF-8 line by line: engines split it at line feed bytes and parse each line separately."""
    if b"\0" not in body and codecs.BOM_UTF8 not in body:
        return body
    return b"\n".join(map(to_utf8, body.split(b"\n")))


def write_object(value: Json) -> bytes:
    """Serialize JSON in UTF-8, on one line."""
    with contextlib.suppress(TypeError):  # written below
        return orjson.dumps(value)
    # orjson rejects lone surrogates and integers of more than 64 bits, which engines accept.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def _reject_duplicate_keys(pairs: Sequence[tuple[str, Any]]) -> Json:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise UnreadableJson("an object has a key twice")
    return result


def _reject_constant(name: str) -> Any:
    raise UnreadableJson(f"{name} is not a JSON value")


def _parse_finite(digits: str) -> float:
    """Parse a finite float; Python parses larger numbers as infinity."""
    number = float(digits)
    if math.isinf(number):
        raise UnreadableJson(f"{digits} is too large a number")
    return number
