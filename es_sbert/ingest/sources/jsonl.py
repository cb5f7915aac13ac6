"""JSON Lines: one object a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from es_sbert.ingest.records import SAMPLE_BYTES, Origin, Record, Reject
from es_sbert.ingest.sources.lines import Line

_SPACE = b" \t\r\x0b\x0c"


def jsonl_records(lines: Iterable[Line], source: str) -> Iterator[Record | Reject]:
    """One record a line; lines of nothing but white space are passed over."""
    for line in lines:
        if line.too_long:
            yield too_long(line, source)
            continue
        data = line.data.strip(_SPACE)
        if data:
            yield _record(data, Origin(source, line.number))


def _record(data: bytes, origin: Origin) -> Record | Reject:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        reason = utf8_problem(data) or f"malformed JSON: {error}"
        return Reject(origin, reason, data[:SAMPLE_BYTES], len(data))
    if not isinstance(value, dict):
        reason = f"the line is a JSON {json_type(value)}, not an object"
        return Reject(origin, reason, data[:SAMPLE_BYTES], len(data))
    return Record(origin, value, data)


def too_long(line: Line, source: str) -> Reject:
    """The dead letter of a line that is longer than allowed."""
    reason = f"the line has {line.size:,} bytes, more than --max-document-bytes allows"
    return Reject(Origin(source, line.number), reason, line.data, line.size)


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
