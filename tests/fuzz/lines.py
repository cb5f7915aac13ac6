"""Fuzzed sources, the same ones for the same seed: made lines, known evil ones, and both with bytes changed."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

import zstandard

LONGEST = 20_000  # the limit of a document in fuzzed loads
# Deeper than any parser takes: orjson reads 1024 levels and writes 254, the engines take some hundred or thousand.
_DEPTHS = (19, 21, 100, 253, 254, 255, 256, 500, 998, 1023, 1025, 3000)

_EVIL_VALUES = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0", "-0.0", "0.1e1", "1E+2", "00", "01", "+1", ".5",
    "5.", "0x10", "9" * 400, "-" + "9" * 30, "9223372036854775807", "9223372036854775808", "18446744073709551615",
    "18446744073709551616", "1.7976931348623157e308", "4.9e-324", "123456789012345678901234567890", "1." + "3" * 300,
    "null", "true", "false", "nul", "True", "''", '"\\ud800"', '"\\udfff\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"',
    '"\x00"', '"\t"', '"\\x41"', '"\\u12"', '"\u2028\u2029"', '"\\/"', '"\ufeff"', '"a\\"', "[]", "{}", "[,]", "{,}",
    "[1,]", '{"a":1,}', '{"a":1,"a":2}', '{"":1}', '{" ":1}', '{".":1}', '{"a.b":1}', '{"a..b":1}', '{".a":1}',
    '{"a":{"b":1},"a.b":2}', '{"_id":"x"}', '{"_source":1}', '{"\\u0061":1,"a":2}', "/* c */ 1", "[[[[[[[]]]]]]]",
)  # fmt: skip
_EVIL_BYTES = (
    b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82",
    b"\r", b"\r\r", b"\x0b", b"\x0c", b"\x1a", b"\x85", b"\xc2\x85", b"\xe2\x80\xa8", b'"', b"\\", b"{", b"}", b"[",
    b"]", b",", b":", b"\t", b"'", b"e9999", b"\\u", b"\\ud8", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x7f", b" ",
)  # fmt: skip
_WORDS = (
    "río", "guitar", "the", "naïve", "日本語", "😀", "'quoted'", '"double"', "tab\there", "-", "", " ", "a,b", "z\x00z",
)  # fmt: skip
_NAMES = ("a", "b", "c.d", "price", "tags", "ü", "date", "nested", "x-y", "long_name_" * 5)


def jsonl(count: int, seed: int) -> bytes:
    """So many lines of JSON objects, or of what once were some."""
    return _file(count, seed, _json_line)


def delimited(count: int, seed: int, separator: str) -> bytes:
    """A good header and so many rows."""

    def row(chance: random.Random) -> bytes:
        cells = [_text(chance), _text(chance), _cell(chance, separator)]
        if chance.random() < 0.1:
            cells = cells[: chance.randrange(4)] + ["more"] * chance.randrange(3)
        return separator.join(cells).encode()

    return separator.join(("id", "text", "other")).encode() + b"\n" + _file(count, seed, row)


def plain(count: int, seed: int) -> bytes:
    """So many lines of plain text."""
    return _file(count, seed, lambda chance: _text(chance).encode())


def damaged(data: bytes, seed: int, *, compress: str) -> bytes:
    """A compressed file with bytes changed, cut off, or neither."""
    chance = random.Random(seed)
    packed = gzip.compress(data, 1) if compress == "gz" else zstandard.compress(data)
    kind = chance.randrange(4)
    if kind == 0:
        return packed
    if kind == 1:
        return packed[: chance.randrange(5, len(packed))]
    if kind == 2:
        return packed + packed[: chance.randrange(len(packed))]
    mutable = bytearray(packed)
    for _ in range(chance.randrange(1, 6)):
        mutable[chance.randrange(5, len(mutable))] = chance.randrange(256)
    return bytes(mutable)


def _file(count: int, seed: int, make: Callable[[random.Random], bytes]) -> bytes:
    chance = random.Random(seed)
    # A line feed inside a mutated line would make two of it, and bytes that are not UTF-8 refuse the whole file.
    lines = [_mutated(make(chance), chance).replace(b"\n", b"").decode(errors="replace").encode() for _ in range(count)]
    return b"".join(line + chance.choice((b"\n", b"\n", b"\n", b"\r\n")) for line in lines)


def _json_line(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.02:
        depth = chance.choice(_DEPTHS)
        opening, closing = chance.choice((("[", "]"), ('{"a":', "}")))
        inner = opening * depth + "1" + closing * chance.choice((depth, depth, depth - 1))
        return f'{{"id": "{_identity(chance)}", "text": "deep", "deep": {inner}}}'.encode()
    if kind < 0.03:
        return f'{{"id": "{_identity(chance)}", "text": "{"long " * chance.randrange(1, 10_000)}"}}'.encode()
    fields = [f'"id": {json.dumps(_identity(chance))}', f'"text": {_json_text(chance)}']
    for _ in range(chance.randrange(4)):
        name = json.dumps(chance.choice(_NAMES), ensure_ascii=chance.random() < 0.5)
        evil = chance.random() < 0.2
        value = chance.choice(_EVIL_VALUES) if evil else json.dumps(_value(chance, 3), ensure_ascii=False)
        fields.append(f"{name}: {value}")
    if chance.random() < 0.2:
        chance.shuffle(fields)
    return ("{" + ", ".join(fields) + "}").encode(errors="surrogatepass")


def _identity(chance: random.Random) -> Any:
    kind = chance.random()
    if kind < 0.9:
        return f"d{chance.randrange(10**9)}"
    usual: tuple[Any, ...] = (
        chance.randrange(-(10**6), 10**6), chance.randrange(50), "", "x" * 600, None, 1.5, True, ["a"], "ü" * 256,
        "a/b?c#d", " ", "\x00", 10**25,
    )  # fmt: skip
    return chance.choice(usual)


def _json_text(chance: random.Random) -> str:
    if chance.random() < 0.9:
        return json.dumps(_text(chance), ensure_ascii=chance.random() < 0.5)
    return chance.choice(_EVIL_VALUES)


def _text(chance: random.Random) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(chance.randrange(8)))


def _cell(chance: random.Random, separator: str) -> str:
    text = _text(chance)
    if separator == "," and chance.random() < 0.5:
        return '"' + text.replace('"', '""' if chance.random() < 0.9 else '"') + '"' * (chance.random() < 0.97)
    return text


def _value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(8 if depth else 6)
    simple: tuple[Any, ...] = (
        None, chance.random() < 0.5, chance.randrange(-(2**63), 2**63), chance.uniform(-1e6, 1e6), _text(chance),
        "2026-01-31",
    )  # fmt: skip
    if kind < 6:
        return simple[kind]
    if kind == 6:
        return [_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {chance.choice(_NAMES): _value(chance, depth - 1) for _ in range(chance.randrange(4))}


def _mutated(line: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.6:
        return line
    data = bytearray(line)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                del data[place:]
            case 1:
                data[place:place] = chance.choice(_EVIL_BYTES)
            case 2:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 3:
                del data[place : place + chance.randrange(1, 9)]
            case 4:
                data[place:place] = data[: chance.randrange(len(data) + 1)]
    return bytes(data)
