"""Bulk actions as bytes: pure functions from documents and vectors to lines of a request body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from es_sbert.index.meta import DocumentMeta, document_meta_field
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
    """

    document: Document
    body: bytes
    outcome: Outcome
    lost_tokens: int
    embedded_at: str


def index_action(document: Document, vector_field: str, vector: Any, meta: DocumentMeta) -> bytes:
    """Write the whole document: its own bytes, the vector and the object beside it put at the end.

    Args:
        vector: As the engine takes it: base64 or a one-dimensional float32 array.
    """
    head = orjson.dumps({"index": {"_id": document.id}})
    added = _added(vector_field, vector, meta)
    return b"".join((head, b"\n", document.source[:-1], b",", added[1:], b"\n"))


def plain_action(document: Document) -> bytes:
    """Write the whole document without a vector."""
    return b"".join((orjson.dumps({"index": {"_id": document.id}}), b"\n", document.source, b"\n"))


def update_action(document: Document, vector_field: str, vector: Any, meta: DocumentMeta) -> bytes:
    """Add vector and meta to a document of the index, unless it was written since it was read.

    Raises:
        ValueError: the document was not read from an index.
    """
    return _update(document, _added(vector_field, vector, meta))


def clear_action(document: Document, vector_field: str) -> bytes:
    """Take vector and meta away from a document of the index that has lost its text.

    Raises:
        ValueError: the document was not read from an index.
    """
    return _update(document, orjson.dumps({vector_field: None, document_meta_field(vector_field): None}))


def _update(document: Document, part: bytes) -> bytes:
    if document.version is None:
        raise ValueError(f"{document.origin} has no version to update")
    sequence, term = document.version
    head = orjson.dumps({"update": {"_id": document.id, "if_seq_no": sequence, "if_primary_term": term}})
    return b"".join((head, b'\n{"doc":', part, b"}\n"))


def _added(vector_field: str, vector: Any, meta: DocumentMeta) -> bytes:
    # orjson writes a float32 array with the fewest digits that give the same float32 again.
    return orjson.dumps(
        {vector_field: vector, document_meta_field(vector_field): meta.model_dump()},
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def bodies(actions: Iterable[Action], max_bytes: int) -> Iterator[list[Action]]:
    """Actions in groups of at most `max_bytes`; a larger action goes alone."""
    group: list[Action] = []
    size = 0
    for action in actions:
        if group and size + len(action.body) > max_bytes:
            yield group
            group, size = [], 0
        group.append(action)
        size += len(action.body)
    if group:
        yield group


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
