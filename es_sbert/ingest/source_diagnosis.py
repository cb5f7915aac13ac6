"""Diagnose why the first records of a source cannot be loaded, and suggest a remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from es_sbert.index.text_template import MISSING, document_field_names, fields_hint, find_field
from es_sbert.ingest.documents import Document, DocumentRules, to_document
from es_sbert.ingest.ledger import ErrorReasons
from es_sbert.ingest.records import Record, RejectedRecord
from es_sbert.io.json_lines import json_type_name

_BULK_ACTIONS = frozenset({"index", "create", "update", "delete"})
_BULK_PARAMETERS = frozenset({
    "_id", "_index", "_routing", "_source", "_type", "_version", "dynamic_templates", "if_primary_term", "if_seq_no",
    "list_executed_pipelines", "op_type", "parent", "pipeline", "require_alias", "require_data_stream",
    "retry_on_conflict", "routing", "version", "version_type",
})  # fmt: skip
# Documents whose fields are looked at for a message.
_LISTED = 100


@dataclass
class FirstRecords:
    """The first records of a source, examined as a load examines them.

    Attributes:
        rules: How documents are taken from records.
        records: The records.
        documents: Those that can be loaded, or have no text.
        rejects: Those that cannot be loaded, with the reason.
    """

    rules: DocumentRules
    records: list[Record | RejectedRecord] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    rejects: list[RejectedRecord] = field(default_factory=list)
    _present: set[str] = field(default_factory=set)

    def add(self, record: Record | RejectedRecord) -> None:
        """Examine the next record."""
        self.records.append(record)
        if isinstance(record, RejectedRecord):
            self.rejects.append(record)
            return
        self._present |= {name for name in self.absent if find_field(record.fields, name) is not MISSING}
        document = to_document(record, self.rules)
        if isinstance(document, RejectedRecord):
            self.rejects.append(document)
        else:
            self.documents.append(document)

    @property
    def absent(self) -> list[str]:
        """Fields of the texts that no record has; null counts as there."""
        return [name for name in self.rules.text_fields if name not in self._present]

    @property
    def has_text(self) -> bool:
        """Whether one of the documents has a text to embed."""
        return any(
            text
            for document in self.documents
            for text, target in zip(document.texts, self.rules.targets, strict=True)
            if target.filled
        )

    def objects(self) -> Iterator[dict[str, Any]]:
        """The fields of the records that are objects."""
        return (record.fields for record in self.records if isinstance(record, Record))

    def field_names(self) -> list[str]:
        """Names of the fields that the first documents have, in their order."""
        found: dict[str, None] = {}
        for _, fields in zip(range(_LISTED), self.objects(), strict=False):
            found |= dict.fromkeys(document_field_names(fields))
        return list(found)


def is_bulk_action(fields: Mapping[str, Any]) -> bool:
    """Whether an object is the action of a `_bulk` body, such as `{"index": {"_id": "1"}}`."""
    if len(fields) != 1:
        return False
    [(action, parameters)] = fields.items()
    return action in _BULK_ACTIONS and isinstance(parameters, dict) and parameters.keys() <= _BULK_PARAMETERS


def diagnose_format(window: FirstRecords) -> tuple[str, str] | None:
    """What a source is in place of documents, and what to do; None where its records may be documents.

    These formats are refused even if some of their lines could be loaded.
    """
    first = window.records[0] if window.records else None
    if first is None:
        return None
    name = _shell_name(first)
    if isinstance(first, RejectedRecord):
        # Files are refused for this before they are read; pipes are not.
        if first.raw.lstrip().startswith(b"[") and _is_json(first):
            return f"{first.origin.source} holds a JSON array, not one object a line", f"Use: jq -c '.[]' {name}"
        return None
    if is_bulk_action(first.fields):
        actions = {action for fields in window.objects() if is_bulk_action(fields) for action in fields}
        # An action alone may be a strange document; followed by another line it is a bulk body.
        if len(window.records) > 1:
            return f"{first.origin.source} looks like a _bulk body: each document comes after a line with its action", (
                _bulk_body_remedy(first.fields, actions, name)
            )
    if _is_response(first.fields):
        return (
            f"{first.origin.source} looks like the response to a search, not like one document a line",
            f"Write its documents one a line: jq -c '.hits.hits[] | ._source + {{id: ._id}}' {name}, and load them "
            "with --id-field id.",
        )
    if _is_hit(first.fields):
        return (
            f"{first.origin.source} holds the hits of a search: the documents are in _source",
            f"Write them one a line: jq -c '._source + {{id: ._id}}' {name}, and load them with --id-field id.",
        )
    return None


def diagnose_unloadable(window: FirstRecords) -> tuple[str, str]:
    """Why no record of the window can be loaded, and what to do.

    Args:
        window: At least one record, and none with a text.
    """
    source = _shell_name(window.records[0])
    shown = window.records[0].origin.source
    names = window.field_names()
    objects = list(window.objects())
    first_raw = next((reject.raw for reject in window.rejects if reject.raw), b"")
    if not objects:
        return _no_objects(window, shown, source, first_raw)
    count = f"{shown}: none of the first {len(window.records):,} records can be loaded"
    taken = [name for name in window.rules.reserved if all(name in fields for fields in objects)]
    if taken:
        filtered = ", ".join(f".{name}" for name in taken)
        return (
            f"{count}, since the documents already have the field {taken[0]}, into which this load would write",
            f"Give --vector-field another name, or leave the fields out: jq -c 'del({filtered})' {source}",
        )
    id_field = window.rules.id_field
    if id_field is not None and all(find_field(fields, id_field) is MISSING for fields in objects):
        return f"{count}, since no document has the id field {id_field}", (
            f"{fields_hint([id_field], names, 'The documents have')} Correct --id-field, or leave it out: ids are then "
            "hashes of the content."
        )
    texts = window.rules.text_fields
    for name in texts:
        types = {
            json_type_name(value) for fields in objects if (value := find_field(fields, name)) not in (MISSING, None)
        }
        if types and "string" not in types:
            return f"{count}, since the text field {name} is a JSON {' or '.join(sorted(types))}, not a string", (
                f"{fields_hint([], names, 'The documents have')} Name a field of text with --text-field or "
                "--text-template."
            )
    if window.rejects and not window.documents:
        return f"{count}: {_frequent_reasons(window)}", "Correct the source and run the command again."
    if window.absent == list(texts):
        return f"{count}, since no document has the text field {' or '.join(texts)}", (
            f"{fields_hint(texts, names, 'The documents have')} Name the fields of the text with --text-field or "
            "--text-template."
        )
    return f"{count}, since the text field {' and '.join(texts)} is empty in all of them", (
        f"{fields_hint([], names, 'The documents have')} Name the fields of the text with --text-field or "
        "--text-template."
    )


def _no_objects(window: FirstRecords, shown: str, file: str, first_raw: bytes) -> tuple[str, str]:
    lines = [reject.raw.strip() for reject in window.rejects if reject.raw.strip()]
    all_json = all(map(_is_json, window.rejects))
    if all_json and first_raw.strip() == b"{":
        text = b"\n".join(lines)
        picked = ".hits.hits[] | ._source + {id: ._id}" if b'"hits"' in text and b'"_source"' in text else "."
        return (
            f"{shown} holds a JSON object over several lines, not one object a line",
            f"Write one document a line: jq -c '{picked}' {file}",
        )
    delimiter = _delimiter(lines) if all_json else None
    if delimiter is not None:
        kind = "csv" if delimiter == b"," else "tsv"
        return (
            f"{shown} looks like {kind.upper()}, not like JSON Lines: its first line is "
            f"{lines[0][:200].decode(errors='replace')!r}",
            f"Add --format {kind}, or name the file .{kind}.",
        )
    return (
        f"{shown}: none of the first {len(window.records):,} records can be loaded: {_frequent_reasons(window)}",
        "Check that the file holds what its name or --format says.",
    )


def _is_json(reject: RejectedRecord) -> bool:
    """Whether a line was read as JSON, and was no object."""
    return reject.reason.startswith(("malformed JSON", "the line is a JSON"))


def _delimiter(lines: Sequence[bytes]) -> bytes | None:
    """What separates the columns of a table; None where the lines are none."""
    for delimiter in (b"\t", b","):
        # Quoted values may hold more of them.
        head, *rows = [line.count(delimiter) for line in lines[:5]]
        if head and rows and min(rows) >= head:
            return delimiter
    return None


def _frequent_reasons(window: FirstRecords) -> str:
    reasons = ErrorReasons()
    for reject in window.rejects:
        reasons.add(reject.reason)
    return "; ".join(reason for _, reason in reasons.most_frequent())


def _is_response(fields: Mapping[str, Any]) -> bool:
    hits = fields.get("hits")
    return isinstance(hits, dict) and isinstance(hits.get("hits"), list)


def _is_hit(fields: Mapping[str, Any]) -> bool:
    return isinstance(fields.get("_source"), dict) and "_id" in fields and "_index" in fields


def _bulk_body_remedy(first: Mapping[str, Any], actions: set[str], file: str) -> str:
    if not actions <= {"index", "create"}:
        return (
            "Send it to the _bulk API of the engine, then embed the documents in place: "
            "`es-sbert ingest --index INDEX --text-field FIELD`."
        )
    if any("_id" in parameters for parameters in first.values()):
        keep = f"jq -nc 'inputs as $action | input + {{id: ($action | first(.[])._id)}}' {file}"
        return f"Keep its documents, each with its id: {keep}, and load them with --id-field id."
    return f"Keep its documents: awk 'NR % 2 == 0' {file}"


def _shell_name(record: Record | RejectedRecord) -> str:
    """A record's source for a shell command."""
    name = record.origin.source
    return "FILE" if re.match(r"[\w+.-]+://", name) or name in ("-", "sql") else shlex.quote(name)
