"""Bulk actions as bytes: pure functions from documents and vectors to lines of a request body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from es_sbert.engines.protocol import Json
from es_sbert.index.bulk_lines import json_bytes, with_members
from es_sbert.index.filled import FilledField, added_members
from es_sbert.ingest.documents import Document
from es_sbert.ingest.ledger import Outcome


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a bulk request.

    Attributes:
        document: What it writes.
        body: The action's line and the line of its document, each with a line feed.
        outcome: How the document ends when the engine takes the action.
        lost_tokens: Tokens of its text that the model does not read.
        embedded_at: `embedded_at` of its vector; empty where it gets none.
        fields: The vector fields that it writes.
        passages: Passages among the new vectors.
    """

    document: Document
    body: bytes
    outcome: Outcome
    lost_tokens: int
    embedded_at: str
    fields: tuple[FilledField, ...] = ()
    passages: int = 0


def index_action(document: Document, fields: Sequence[FilledField]) -> bytes:
    """Write the whole document: its own bytes, the vectors and the objects beside them put at the end."""
    head = orjson.dumps({"index": _head(document)})
    return b"".join((head, b"\n", with_members(document.source, added_members(fields)), b"\n"))


def update_action(document: Document, fields: Sequence[FilledField], cleared: Sequence[str]) -> bytes:
    """Change vectors of a document of the index, unless it was written since it was read.

    Args:
        cleared: Vector fields whose text the document has lost; they and the objects beside them are taken away.

    Raises:
        ValueError: the document was not read from an index.
    """
    if document.version is None:
        raise ValueError(f"{document.origin} has no version to update")
    sequence, term = document.version
    head = _head(document) | {"if_seq_no": sequence, "if_primary_term": term}
    partial = json_bytes(added_members(fields, cleared))
    return b"".join((orjson.dumps({"update": head}), b'\n{"doc":', partial, b"}\n"))


def _head(document: Document) -> Json:
    head: Json = {"_id": document.id}
    return head if document.routing is None else head | {"routing": document.routing}


def halves(actions: list[Action]) -> tuple[list[Action], list[Action]]:
    """Two groups of about the same number of bytes, neither of them empty.

    Args:
        actions: At least two.
    """
    total = sum(len(action.body) for action in actions)
    size = 0
    for count, action in enumerate(actions[:-1], 1):
        size += len(action.body)
        if 2 * size >= total:
            return actions[:count], actions[count:]
    return actions[:-1], actions[-1:]
