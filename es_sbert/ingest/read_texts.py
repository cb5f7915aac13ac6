"""Read one text per record of a file, for a command in which no record may be left out."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import NoReturn

import orjson

from es_sbert.errors import SourceError
from es_sbert.index.text_template import TextFieldError, text_values
from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.find_sources import FileOptions, find_sources
from es_sbert.runtime.joined_text import SEPARATOR

# No text is this long: it is a damaged or hostile file.
_MAX_RECORD_BYTES = 64 << 20


def read_texts(file: str, options: FileOptions, text_field: str, left_out: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the text of each record of a file, and the record as a JSON object; those of JSON Lines keep their bytes.

    Args:
        file: Path, pattern or address, or `-` for standard input.
        options: Options for reading it.
        text_field: Field of the text, dotted if nested; the only field of a line of plain text.
        left_out: A field that is removed from the objects.

    Raises:
        SourceError: the file cannot be read, or a record is broken or has no text; the message names its line.
        UsageError: an option does not apply to the file.
    """
    sources = find_sources([file], options)
    check_sources(sources, _MAX_RECORD_BYTES, [text_field], None)
    settings = ReadSettings(_MAX_RECORD_BYTES, text_field, text_fields=(text_field,))
    for record in read_records(sources, settings, ByteCounter(), Event(), _fail):
        if isinstance(record, RejectedRecord):
            raise SourceError(f"{record.origin}: {record.reason}", "Fix the record, or remove it.")
        yield _text(record, text_field), _without(record, left_out)


def _fail(reason: str) -> NoReturn:
    raise SourceError(reason, "Check the source, and run the command again.")


def _text(record: Record, text_field: str) -> str:
    try:
        values = text_values(record.fields, text_field)
    except TextFieldError as error:
        raise SourceError(f"{record.origin}: {error}", "Set `text_field` to the field that holds the text.") from error
    if values is None:
        raise SourceError(
            f"{record.origin}: the text field {text_field} is missing, null or an empty list",
            "Set `text_field` to the field that holds the text, or remove the record; an empty string has a vector.",
        )
    return SEPARATOR.join(values)


def _without(record: Record, field: str) -> bytes:
    """The record as JSON. Its bytes are only changed if it has the field."""
    if field not in record.fields:
        return record.source
    return orjson.dumps({name: value for name, value in record.fields.items() if name != field})
