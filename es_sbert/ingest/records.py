"""Records as sources yield them, rejected records, and document ids taken from a field."""

from __future__ import annotations

from collections.abc import Mapping
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
        superseded: Whether a later record of the same source replaces it.
        written: Of a dead letter: when it was written, in UTC, ISO 8601.
    """

    origin: Origin
    fields: dict[str, Any]
    source: bytes
    id: str | None = None
    written: str | None = None
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """Input that cannot become a document.

    Attributes:
        origin: Its place in the source.
        reason: Why it cannot be loaded.
        raw: Its first bytes, at most `SAMPLE_BYTES`.
        size: Its full size in bytes, if known.
        document: The object as one line of JSON, if it could be parsed.
        id: Its id, if it has one.
        partial: Whether `document` is only a part of it.
        seq_no: `_seq_no` of the version that was read; None for input that is not from an index.
    """

    origin: Origin
    reason: str
    raw: bytes = b""
    size: int = 0
    document: bytes | None = None
    id: str | None = None
    partial: bool = False
    seq_no: int | None = None

    @classmethod
    def of_bytes(cls, origin: Origin, reason: str, data: bytes) -> RejectedRecord:
        """Input of which a sample is kept."""
        return cls(origin, reason, data[:SAMPLE_BYTES], len(data))


# Both engines reject longer ids.
MAX_ID_BYTES = 512


class InvalidId(Exception):
    """The id of a document cannot be used; the message tells why."""


def document_id(fields: Mapping[str, Any], id_field: str) -> str:
    """The id in a field: a string or an integer.

    Raises:
        InvalidId: missing, null, empty, longer than 512 bytes in UTF-8, or of another type.
    """
    value = find_field(fields, id_field)
    if value is MISSING:
        raise InvalidId(f"the id field {id_field} is missing")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidId(f"the id field {id_field} is a JSON {json_type_name(value)}, not a string or an integer")
    text = str(value)
    if not text:
        raise InvalidId(f"the id field {id_field} is empty")
    size = len(text.encode())
    if size > MAX_ID_BYTES:
        raise InvalidId(f"the id has {size} bytes; engines take at most {MAX_ID_BYTES}")
    return text
