"""Ids of documents: from a field, or the hash of the content; never random, so that a second load adds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from es_sbert.index.text import MISSING, find_field
from es_sbert.streams.json_lines import json_type

# Both engines refuse longer ids.
MAX_ID_BYTES = 512


class BadId(Exception):
    """A document whose id cannot be used; the message says why."""


def document_id(fields: Mapping[str, Any], id_field: str) -> str:
    """The id that stands in a field: a string, or an integer written out.

    Raises:
        BadId: missing, null, empty, longer than 512 bytes in UTF-8, or of another type.
    """
    value = find_field(fields, id_field)
    if value is MISSING:
        raise BadId(f"the id field {id_field} is missing")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadId(f"the id field {id_field} is a JSON {json_type(value)}, not a string or an integer")
    text = str(value)
    if not text:
        raise BadId(f"the id field {id_field} is empty")
    size = len(text.encode())
    if size > MAX_ID_BYTES:
        raise BadId(f"the id has {size} bytes; engines take at most {MAX_ID_BYTES}")
    return text
