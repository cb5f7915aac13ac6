"""Records as sources yield them, rejected records, and ids and routings taken from a field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from es_sbert.index.text_template import MISSING, find_field
from es_sbert.io.text_formats import SAMPLE_BYTES, json_type_name


# Named tuples: one of each is made per record, and a frozen dataclass takes three times as long to make.
class Origin(NamedTuple):
    """The place of a record in its source, for messages.

    Attributes:
        source: The file as it was named on the command line, `-` for standard input, or `index NAME`.
        line: First line of the record, from 1; 0 if the source has no lines.
    """

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


class Record(NamedTuple):
    """One object of a source.

    Attributes:
        origin: Its place in the source.
        fields: The object, parsed.
        source: The object as one line of JSON. For JSON Lines these are the bytes of the source, so that numbers and
            spacing reach the engine unchanged.
        id: Its id, if the source has it outside the fields.
        routing: Its routing, if the source has it outside the fields.
        superseded: Whether a later record of the same source replaces it.
        written: Time at which a dead letter was written, in UTC, ISO 8601; None for other records.
    """

    origin: Origin
    fields: dict[str, Any]
    source: bytes
    id: str | None = None
    written: str | None = None
    superseded: bool = False
    routing: str | None = None


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """Input that cannot become a document.

    Attributes:
        origin: Its place in the source.
        reason: Reason why it cannot be loaded.
        raw: First bytes of the input, at most `SAMPLE_BYTES`.
        size: Full size of the input in bytes, if known.
        document: The object as one line of JSON, if it could be parsed.
        id: Its id, if it has one.
        routing: Its custom routing, if it has one.
        partial: Whether `document` is only a part of the document.
        seq_no: `_seq_no` of the version that was read; None for input that is not from an index.
        index: The index that it belongs into; None for that of the load.
    """

    origin: Origin
    reason: str
    raw: bytes = b""
    size: int = 0
    document: bytes | None = None
    id: str | None = None
    partial: bool = False
    seq_no: int | None = None
    routing: str | None = None
    index: str | None = None

    @classmethod
    def of_bytes(cls, origin: Origin, reason: str, data: bytes) -> RejectedRecord:
        """Reject input of which only a sample is kept."""
        return cls(origin, reason, data[:SAMPLE_BYTES], len(data))


# Both engines reject longer ids.
MAX_ID_BYTES = 512


# Beyond this, a float does not represent every integer.
_EXACT_FLOATS = 2**53


# The field of the id in documents of engines and of MongoDB.
METADATA_ID = "_id"


def metadata_id_field(value: Any) -> str:
    """The field of the id in a document that has `METADATA_ID`: `_id.$oid` in MongoDB's extended JSON.

    Args:
        value: Value in the document.
    """
    [key] = value if isinstance(value, dict) and len(value) == 1 else ("",)
    return f"{METADATA_ID}.{key}" if key else METADATA_ID


class InvalidId(Exception):
    """The id or the routing of a document cannot be used; the message explains why."""


def document_id(record: Record, id_field: str) -> str:
    """Read the id from a field: a string, or an integer, which may be a float without a fraction.

    pandas converts a column of integers to floats if a value is missing.

    Raises:
        InvalidId: the id is missing, null, empty, longer than 512 bytes in UTF-8, or of another type.
    """
    value = find_field(record.fields, id_field)
    if value is MISSING:
        raise InvalidId(f"the id field {id_field} is missing")
    text = _key_text(record, value, "id", id_field)
    size = len(text.encode())
    if size > MAX_ID_BYTES:
        raise InvalidId(f"the id has {size} bytes; engines take at most {MAX_ID_BYTES}")
    return text


def document_routing(record: Record, routing_field: str) -> str | None:
    """Read the routing from a field, like an id; None if it is missing or null.

    Raises:
        InvalidId: the routing is empty, or of another type.
    """
    value = find_field(record.fields, routing_field)
    return None if value is MISSING or value is None else _key_text(record, value, "routing", routing_field)


def _key_text(record: Record, value: Any, kind: str, field: str) -> str:
    """Convert the value of the id field or the routing field to text."""
    if isinstance(value, float):
        value = _whole_number(record, value, kind, field)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        is_what = "null" if value is None else f"a JSON {json_type_name(value)}"
        raise InvalidId(f"the {kind} field {field} is {is_what}, not a string or an integer")
    text = str(value)
    if not text:
        raise InvalidId(f"the {kind} field {field} is empty")
    return text


def _whole_number(record: Record, value: float, kind: str, field: str) -> int:
    """Return the integer that a float represents, or that it was in the source.

    Raises:
        InvalidId: the number has a fraction, or the integer that it was in the source is unknown.
    """
    if not value.is_integer():
        raise InvalidId(f"the {kind} field {field} is {value}, a number with a fraction, not a string or an integer")
    if abs(value) < _EXACT_FLOATS:
        return int(value)
    # Parsed again, because the fast parser converts integers beyond 64 bits to floats.
    exact = find_field(json.loads(record.source), field)
    if isinstance(exact, int):
        return exact
    raise InvalidId(f"the {kind} field {field} is {value}, a float that is not exact: write it as a string")
