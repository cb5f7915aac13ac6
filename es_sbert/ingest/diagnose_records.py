"""Find the reason why a load would make no documents of the first records of a source.

A known wrong format is recognized, and the remedy is a command where there is one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from es_sbert.index.text_template import MISSING, fields_hint, find_field, text_problem
from es_sbert.ingest.first_records import FirstRecords, is_bulk_action
from es_sbert.ingest.ledger import ErrorReasons
from es_sbert.ingest.records import Record, RejectedRecord
from es_sbert.messages import pluralize, setting_text

DOCUMENTS_HAVE = "The documents have"
_PYTHON_HITS = "Pass the documents, each with its id: ({{'_id': hit['_id'], **hit['_source']}} for hit in {hits})."


def diagnose_format(first: FirstRecords) -> tuple[str, str] | None:
    """Return problem and remedy if a source has a known wrong format; None if its records may be documents.

    These formats are rejected even if some of their lines could be loaded.
    """
    if not first.records:
        return None
    record = first.records[0]
    source, name = record.origin.source, _shell_name(record)
    if isinstance(record, RejectedRecord):
        # Files are checked for this before they are read; pipes are not.
        if record.raw.lstrip().startswith(b"[") and _is_json(record):
            return f"{source} holds a JSON array, not one object per line", f"Use: jq -c '.[]' {name}"
        return None
    fields = record.fields
    # An action alone may be a strange document; followed by another line it is a bulk body.
    if is_bulk_action(fields) and len(first.records) > 1:
        if first.rules.from_python:
            problem = f"the {source} are the lines of a _bulk body: each document comes after its action"
            return problem, "Pass the documents without the actions, each with its id in the field _id."
        problem = f"{source} looks like a _bulk body: each document comes after a line with its action"
        return problem, _bulk_body_remedy(first, fields, name)
    hits = fields.get("hits")
    if isinstance(hits, dict) and isinstance(hits.get("hits"), list):
        if first.rules.from_python:
            return f"the {source} are responses to searches", _PYTHON_HITS.format(hits="response['hits']['hits']")
        return (
            f"{source} looks like the response to a search, not like one document per line",
            f"Write its documents one per line: jq -c '.hits.hits[] | ._source + {{_id: ._id}}' {name}, and load them "
            'with `id_field="_id"`.',
        )
    if isinstance(fields.get("_source"), dict):
        if first.rules.from_python:
            return f"the {source} are hits of a search: each document is in _source", _PYTHON_HITS.format(hits="hits")
        keys, options = "_id: ._id", '`id_field="_id"`'
        if any("_routing" in fields for fields in first.documents_as_json()):
            keys, options = f"{keys}, _routing: ._routing", f'{options} and `routing_field="_routing"`'
        return (
            f"{source} holds the hits of a search: the documents are in _source",
            f"Write them one per line: jq -c '._source + {{{keys}}}' {name}, and load them with {options}.",
        )
    return None


def diagnose_unloadable(first: FirstRecords) -> tuple[str, str]:
    """Find the reason why none of the first records can be loaded, and the remedy.

    Args:
        first: At least one record, and none with a text.
    """
    source, name = first.records[0].origin.source, _shell_name(first.records[0])
    problem = f"{source}: none of the first {pluralize(len(first.records), 'record')} can be loaded"
    objects = list(first.documents_as_json())
    from_python = first.rules.from_python
    if not objects:
        if from_python:
            return f"{problem}: {_frequent_reasons(first)}", "Correct the documents and add them again."
        columns = any(reject.reason.startswith("the column ") for reject in first.rejects)
        remedy = _CORRECT if columns else "Check that the file holds what its name or `format` says."
        return _diagnose_lines(first, source, name) or (f"{problem}: {_frequent_reasons(first)}", remedy)
    names, texts = first.field_names(), first.rules.text_fields
    have = fields_hint([], names, DOCUMENTS_HAVE)
    reserved = [field for field in first.rules.reserved if all(field in fields for fields in objects)]
    if reserved:
        filtered = ", ".join(f".{field}" for field in reserved)
        return (
            f"{problem}, since the documents already have the field {reserved[0]}, into which this load would write",
            f"Leave out the fields {', '.join(reserved)}, or create the index with another vector_field."
            if from_python
            else f"Set `vector_field` to a different name, or leave the fields out: jq -c 'del({filtered})' {name}",
        )
    metadata = _diagnose_metadata_fields(first, objects, name)
    if metadata is not None:
        return f"{problem}, {metadata[0]}", metadata[1]
    id_field = first.rules.id_field
    if id_field is not None and all(find_field(fields, id_field) is MISSING for fields in objects):
        hint = fields_hint([id_field], names, DOCUMENTS_HAVE)
        return (
            f"{problem}, since no document has the id field {id_field}",
            f"{hint} Correct `id_field`, or leave it out: ids are then hashes of the content.",
        )
    remedy = PYTHON_TEXT_REMEDY if from_python else "Name a field of text with `text_fields` or `text_template`."
    for text in texts:
        type_problem = text_problem(*(find_field(fields, text) for fields in objects))
        if type_problem is not None:
            return (
                f"{problem}, since the text field {text} is {type_problem}",
                f"{have} {remedy}",
            )
    if first.rejects and not first.documents:
        return f"{problem}: {_frequent_reasons(first)}", _CORRECT
    remedy = PYTHON_TEXT_REMEDY if from_python else "Name the fields of the text with `text_fields` or `text_template`."
    if first.missing == list(texts):
        hint = fields_hint(texts, names, DOCUMENTS_HAVE)
        return f"{problem}, since no document has the text field {' or '.join(texts)}", f"{hint} {remedy}"
    return f"{problem}, since the text field {' and '.join(texts)} is empty in all of them", f"{have} {remedy}"


_CORRECT = "Correct the source and run the command again."
PYTHON_TEXT_REMEDY = "Put the text there, or create the index with other text_fields or another text_template."


def _diagnose_metadata_fields(
    first: FirstRecords, objects: Sequence[Mapping[str, Any]], file: str
) -> tuple[str, str] | None:
    """Return reason and remedy if all of the first objects have metadata fields."""
    rules, values = first.rules, dict[str, Any]()
    for fields in objects:
        names = rules.metadata_names(fields)
        if not names:
            return None
        for name in names:
            values.setdefault(name, fields.get(name, MISSING))
    keys = [name for name in values if name in ("_id", "_routing")]
    others = [name for name in values if name not in keys]
    remedies = [rules.metadata_remedy(name, values[name]) for name in keys]
    if others and rules.from_python:
        remedies.append(f"remove {', '.join(others)} from the documents")
    elif others:
        filtered = ", ".join(f".{name}" for name in others)
        remedies.append(f"remove {', '.join(others)} from the documents: jq -c 'del({filtered})' {file}")
    several, are = ("fields", "metadata fields") if len(values) > 1 else ("field", "a metadata field")
    advice = ". ".join(remedy[0].upper() + remedy[1:] for remedy in remedies)
    return f"since they have the {several} {', '.join(values)}, {are} that engines refuse in documents", f"{advice}."


def _diagnose_lines(first: FirstRecords, source: str, name: str) -> tuple[str, str] | None:
    """Return problem and remedy if the lines, none of which is an object, have a known format."""
    lines = [reject.raw.strip() for reject in first.rejects if reject.raw.strip()]
    if not lines or not all(map(_is_json, first.rejects)):
        return None
    if lines[0] == b"{":
        text = b"\n".join(lines)
        is_response = b'"hits"' in text and b'"_source"' in text
        picked = ".hits.hits[] | ._source + {_id: ._id}" if is_response else "."
        return (
            f"{source} holds a JSON object over several lines, not one object per line",
            f"Write one document per line: jq -c '{picked}' {name}"
            + (', and load them with `id_field="_id"`.' if is_response else ""),
        )
    kind = _table_format(lines)
    if kind is None:
        return None
    first_line = lines[0][:200].decode(errors="replace")
    return (
        f"{source} looks like {kind.upper()}, not like JSON Lines: its first line is {first_line!r}",
        f"Add {setting_text('format', kind)}, or name the file .{kind}.",
    )


def _is_json(reject: RejectedRecord) -> bool:
    """Whether a line was read as JSON, but is not an object."""
    return reject.reason.startswith(("malformed JSON", "the line is a JSON"))


def _table_format(lines: Sequence[bytes]) -> str | None:
    """`tsv` or `csv` if the lines look like a table, else None."""
    for delimiter, kind in ((b"\t", "tsv"), (b",", "csv"), (b";", "csv")):
        # Rows may have more delimiters than the header, in quoted values.
        head, *rows = [line.count(delimiter) for line in lines[:5]]
        if head and rows and min(rows) >= head:
            return kind
    return None


def _frequent_reasons(first: FirstRecords) -> str:
    reasons = ErrorReasons()
    for reject in first.rejects:
        reasons.add(reject.reason)
    return "; ".join(reason for _, reason in reasons.most_frequent())


def _bulk_body_remedy(first: FirstRecords, action: Mapping[str, Any], file: str) -> str:
    actions = {name for fields in first.documents_as_json() if is_bulk_action(fields) for name in fields}
    if not actions <= {"index", "create"}:
        return (
            "Send it to the _bulk API of the engine, then embed the documents in place: "
            "`es-sbert ingest --index INDEX --text-field FIELD`."
        )
    if any("_id" in parameters for parameters in action.values()):
        keep = f"jq -nc 'inputs as $action | input + {{_id: ($action | first(.[])._id)}}' {file}"
        return f'Keep its documents, each with its id: {keep}, and load them with `id_field="_id"`.'
    return f"Keep its documents: awk 'NR % 2 == 0' {file}"


def _shell_name(record: Record | RejectedRecord) -> str:
    """A record's source for a shell command."""
    name = record.origin.source
    return "FILE" if re.match(r"[\w+.-]+://", name) or name in ("-", "sql") else shlex.quote(name)
