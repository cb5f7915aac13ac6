"""The lines of a bulk request: index and update actions that carry documents and their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from es_sbert.engines.protocol import Json
from es_sbert.index.document_vectors import EmbeddingTargets, VectorFieldValue, vector_members
from es_sbert.index.serialization import append_members, json_bytes
from es_sbert.ingest.documents import Document
from es_sbert.ingest.ledger import DocumentOutcome


def cleared_fields(document: Document, targets: EmbeddingTargets) -> list[str]:
    """Vector fields that a document of the index loses, because it lost their text."""
    return [targets[number].field for number in document.stale if not document.texts[number]]


@dataclass(frozen=True, slots=True)
class DocumentAction:
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
    outcome: DocumentOutcome
    lost_tokens: int
    embedded_at: str
    fields: tuple[VectorFieldValue, ...] = ()
    passages: int = 0


def index_action(document: Document, fields: Sequence[VectorFieldValue]) -> bytes:
    """Write the whole document: its own bytes, the vectors and the objects beside them put at the end."""
    head = orjson.dumps({"index": _action_metadata(document)})
    return b"".join((head, b"\n", append_members(document.source, vector_members(fields)), b"\n"))


def update_action(document: Document, fields: Sequence[VectorFieldValue], cleared: Sequence[str]) -> bytes:
    """Change vectors of a document of the index, unless it was written since it was read.

    Args:
        cleared: Vector fields whose text the document has lost; they and the objects beside them are taken away.

    Raises:
        ValueError: the document was not read from an index.
    """
    if document.version is None:
        raise ValueError(f"{document.origin} has no version to update")
    sequence, term = document.version
    head = _action_metadata(document) | {"if_seq_no": sequence, "if_primary_term": term}
    partial = json_bytes(vector_members(fields, cleared))
    return b"".join((orjson.dumps({"update": head}), b'\n{"doc":', partial, b"}\n"))


def _action_metadata(document: Document) -> Json:
    head: Json = {"_id": document.id}
    return head if document.routing is None else head | {"routing": document.routing}


def split_in_half(actions: list[DocumentAction]) -> tuple[list[DocumentAction], list[DocumentAction]]:
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
