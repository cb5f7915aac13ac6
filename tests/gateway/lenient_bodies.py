"""Bodies that engines read although they are not plain JSON, and some that they reject."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import yaml

JSON_TYPE = "application/json"


def _same(text: bytes) -> bytes:
    return text


@dataclass(frozen=True)
class Form:
    """A way to write a body.

    Attributes:
        text: Rewrites one JSON object. A body of several lines has this form in each of them.
        body: Rewrites the whole body.
        headers: Of the request, in place of `content-type: application/json`.
    """

    text: Callable[[bytes], bytes] = _same
    body: Callable[[bytes], bytes] = _same
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": JSON_TYPE})

    def request(self, *objects: bytes) -> tuple[bytes, dict[str, str]]:
        """The body with these objects, and its headers."""
        lines = list(map(self.text, objects))
        return self.body(lines[0] if len(lines) == 1 else b"".join(line + b"\n" for line in lines)), dict(self.headers)


def _encoded(name: str, compress: Callable[[bytes], bytes] = _same) -> Form:
    return Form(body=compress, headers={"content-type": JSON_TYPE, "content-encoding": name})


def _typed(content_type: str, convert: Callable[[bytes], bytes] = _same) -> Form:
    return Form(text=convert, headers={"content-type": content_type})


def _deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


def _to_yaml(text: bytes) -> bytes:
    return yaml.safe_dump(orjson.loads(text)).encode()


def _overlong(text: bytes) -> bytes:
    """The letters of `semantic` and `text`, each in two bytes of UTF-8 instead of one."""
    for name in (b"semantic", b"text"):
        text = text.replace(
            b'"%s"' % name, b'"' + bytes(b for c in name for b in (0xC0 | c >> 6, 0x80 | c & 0x3F)) + b'"'
        )
    return text


def to_cbor(value: Any, *, in_pieces: bool = False) -> bytes:
    """Encode objects, lists, strings, booleans and integers below 24 (RFC 8949).

    Args:
        in_pieces: Whether to write strings in pieces of one character.
    """
    if isinstance(value, dict):
        members = (to_cbor(part, in_pieces=in_pieces) for member in value.items() for part in member)
        return b"\xbf" + b"".join(members) + b"\xff"
    if isinstance(value, list):
        return b"\x9f" + b"".join(to_cbor(part, in_pieces=in_pieces) for part in value) + b"\xff"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return bytes([value])
    text = value.encode()
    if in_pieces:
        return b"\x7f" + b"".join(b"\x61" + bytes([each]) for each in text) + b"\xff"
    return b"\x78" + bytes([len(text)]) + text


def to_smile(value: Any) -> bytes:
    """Encode the same as `to_cbor` in Jackson's format SMILE, with strings of up to 64 characters."""

    def encode(part: Any) -> bytes:
        if isinstance(part, dict):
            members = (bytes([0x7F + len(name)]) + name.encode() + encode(inner) for name, inner in part.items())
            return b"\xfa" + b"".join(members) + b"\xfb"
        if isinstance(part, list):
            return b"\xf8" + b"".join(map(encode, part)) + b"\xf9"
        if isinstance(part, bool):
            return b"\x23" if part else b"\x22"
        if isinstance(part, int):
            return b"\x24" + bytes([0x80 | 2 * part])
        return bytes([0x3F + len(part)]) + part.encode()

    return b":)\n\x00" + encode(value)


FORMS: dict[str, Form] = {
    "plain": Form(),
    "comment before": Form(lambda text: b"/* why */" + text),
    "comment inside": Form(lambda text: text.replace(b"{", b"{ /* why */ ", 1)),
    "comment at the end inside": Form(lambda text: text[:-1] + b"/* } */}"),
    "comment after": Form(lambda text: text + b" /* why */"),
    "comment after a key": Form(lambda text: text.replace(b'":', b'"/**/:')),
    "comment with quotes": Form(lambda text: text.replace(b"{", b'{/* " */', 1)),
    "comment to the end of the line": Form(lambda text: text + b" // why"),
    "comment that does not end": Form(lambda text: text + b" /* why"),
    "word after": Form(lambda text: text + b" x"),
    "object after": Form(lambda text: text + b" {}"),
    "brace after": Form(lambda text: text + b"}"),
    "zero after": Form(lambda text: text + b"\0"),
    "white space": Form(lambda text: b" \t" + text + b"\t "),
    "byte order mark": Form(lambda text: b"\xef\xbb\xbf" + text),
    "utf-16": Form(lambda text: text.decode().encode("utf-16-le"), lambda body: body),
    "overlong utf-8": Form(_overlong),
    "broken utf-8": Form(lambda text: text.replace(b'"}', b'\xff"}', 1)),
    "escapes": Form(lambda text: text.replace(b'"semantic"', b'"\\u0073emantic"').replace(b'"text"', b'"\\u0074ext"')),
    "key twice": Form(lambda text: text[:-1] + b"," + text[1:]),
    "comma at the end": Form(lambda text: text[:-1] + b",}"),
    "not a number": Form(lambda text: text[:-1] + b',"boost":NaN}'),
    "single quotes": Form(lambda text: text.replace(b'"', b"'")),
    "not closed": Form(lambda text: text[:-1]),
    "list": Form(lambda text: b"[" + text + b"]"),
    "yaml": _typed("application/yaml", _to_yaml),
    "yaml that looks like json": _typed("application/yaml; charset=json", _to_yaml),
    "json as yaml": _typed("application/yaml"),
    "cbor": _typed("application/cbor", lambda text: to_cbor(orjson.loads(text))),
    "cbor in pieces": _typed("application/cbor", lambda text: to_cbor(orjson.loads(text), in_pieces=True)),
    "smile": _typed("application/smile", lambda text: to_smile(orjson.loads(text))),
    "ndjson": _typed("application/x-ndjson"),
    "upper case": _typed("Application/JSON; charset=UTF-8"),
    "without a type": Form(headers={}),
    "form": _typed("application/x-www-form-urlencoded"),
    "gzip": _encoded("gzip", gzip.compress),
    "gzip in two members": _encoded("gzip", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
    "gzip with a tail": _encoded("gzip", lambda body: gzip.compress(body) + b"xx"),
    "gzip without its end": _encoded("gzip", lambda body: gzip.compress(body)[:-8]),
    "deflate": _encoded("deflate", _deflate),
    "deflate with a tail": _encoded("deflate", lambda body: zlib.compress(body) + b"xx"),
    "unknown encoding": _encoded("br"),
    "two encodings": _encoded("gzip, identity", gzip.compress),
}
