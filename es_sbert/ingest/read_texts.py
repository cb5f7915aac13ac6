"""Read the texts of files: of every record, or of those that have one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import orjson

from es_sbert.errors import SourceError
from es_sbert.index.text_template import (
    MISSING,
    TextFieldError,
    TextTemplate,
    document_field_names,
    fields_hint,
    find_field,
    text_values,
)
from es_sbert.ingest.sources.document_source import (
    InvalidId,
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    document_id,
    read_records,
)
from es_sbert.ingest.sources.file_sources import find_sources
from es_sbert.io.file_formats import FileOptions
from es_sbert.messages import escape_unprintable, pluralize, setting
from es_sbert.runtime.joined_text import SEPARATOR

# Longer records are damaged or hostile. Where no record may be left out, the limit is higher.
_MAX_RECORD_BYTES, _MAX_BYTES_OF_ALL = 16 << 20, 64 << 20


@dataclass
class SkippedDocuments:
    """Documents that were left out, by reason.

    Usage:
        ```python
        collection = read_index("docs", "http://localhost:9200")
        print(collection.skipped.counts)
        ```

    Attributes:
        counts: Reason → number of documents.
        first: Reason → id or `FILE:LINE` of the first document.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        """Record a document that was left out."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.first.setdefault(reason, name)

    def lines(self) -> list[str]:
        """Format messages about the documents, one line per reason."""
        return [f"{count:,} left out: {reason} (first: {self.first[reason]})" for reason, count in self.counts.items()]


def _records(
    files: Sequence[str], options: FileOptions | None, settings: ReadSettings, id_field: str | None = None
) -> Iterator[Record | RejectedRecord]:
    sources = find_sources(files, options)
    check_sources(sources, settings.max_bytes, settings.text_fields, id_field)
    return read_records(sources, settings)


@dataclass(frozen=True)
class FileTexts:
    """Texts from files, without vectors.

    Attributes:
        ids: Id of each text, or `FILE:LINE`.
        texts: The texts, which are not empty.
        skipped: Records that were left out.
    """

    ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    skipped: SkippedDocuments = field(default_factory=SkippedDocuments)


def read_file_texts(
    files: Sequence[str],
    *,
    template: TextTemplate,
    id_field: str | None = None,
    options: FileOptions | None = None,
) -> FileTexts:
    """Read the texts of files; records without one are left out.

    Args:
        files: Paths, patterns or `-`.
        template: Template of the text.
        id_field: Field of the id; None names texts by file and line.
        options: Options for reading the files; None detects their formats by their names.

    Raises:
        SourceError: a file cannot be read, or no record has the fields of the text.
    """
    key_fields = () if id_field is None else (id_field,)
    settings = ReadSettings(_MAX_RECORD_BYTES, template.fields[0], text_fields=template.fields, key_fields=key_fields)
    found = FileTexts()
    names: dict[str, None] = {}
    read, has_field = 0, False
    for record in _records(files, options, settings, id_field):
        read += 1
        name = escape_unprintable(str(record.origin))
        if isinstance(record, RejectedRecord):
            found.skipped.add("the record cannot be read", f"{name}: {record.reason}")
            continue
        if not has_field:
            has_field = any(find_field(record.fields, field) is not MISSING for field in template.fields)
            names |= dict.fromkeys(document_field_names(record.fields))
        try:
            text = template.text_of(record.fields)
            text_id = name if id_field is None else document_id(record, id_field)
        except (TextFieldError, InvalidId) as error:
            found.skipped.add(str(error), name)
            continue
        if not text or text.isspace():
            found.skipped.add("it has no text", name)
            continue
        found.ids.append(text_id)
        found.texts.append(text)
    if names and not has_field:
        raise SourceError(
            f"none of the {pluralize(read, 'record')} has the text field {' or '.join(template.fields)}",
            fields_hint(template.fields, list(names), "The records have"),
        )
    return found


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
    for record in _records([file], options, ReadSettings(_MAX_BYTES_OF_ALL, text_field, text_fields=(text_field,))):
        if isinstance(record, RejectedRecord):
            raise SourceError(f"{record.origin}: {record.reason}", "Fix the record, or remove it.")
        source = record.source
        if left_out in record.fields:
            source = orjson.dumps({name: value for name, value in record.fields.items() if name != left_out})
        yield _text(record, text_field), source


def _text(record: Record, text_field: str) -> str:
    try:
        values = text_values(record.fields, text_field)
    except TextFieldError as error:
        remedy = f"Set {setting('text_field')} to the field that holds the text."
        raise SourceError(f"{record.origin}: {error}", remedy).about("text_field", text_field) from error
    if values is None:
        raise SourceError(
            f"{record.origin}: the text field {text_field} is missing, null or an empty list",
            f"Set {setting('text_field')} to the field that holds the text, or remove the record; an empty string has "
            "a vector.",
        ).about("text_field", text_field)
    return SEPARATOR.join(values)
