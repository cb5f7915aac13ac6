"""The bulk actions of a load: the lines of a bulk request that write a document and its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import VectorFieldValue, append_members, vector_members
from es_sbert.index.whole_documents import write_lines
from es_sbert.ingest.ledger import DocumentOutcome
from es_sbert.ingest.read_documents import Document


class DocumentAction(NamedTuple):
    """One action of a bulk request.

    Attributes:
        document: The document that it writes.
        body: The line of the action and the line of the document, each with a line feed.
        outcome: The outcome of the document if the engine takes the action.
        fields: The vector fields that it writes.
        lost_tokens: Tokens of its text that the model does not read.
        chunks: Number of chunks that got a vector; 0 if texts are not split.
    """

    document: Document
    body: bytes
    outcome: DocumentOutcome
    fields: tuple[VectorFieldValue, ...] = ()
    lost_tokens: int = 0
    chunks: int = 0


def bulk_lines(document: Document, fields: Sequence[VectorFieldValue], cleared: Sequence[str] = ()) -> bytes:
    """Build the lines that write a document with its vectors.

    A document from a source is indexed as a whole: its bytes, with the vectors and their metadata appended. For a
    document read from the index, only the vectors are updated, see `write_lines`, and only if it was not written in the
    meantime.

    Args:
        cleared: Vector fields whose text a document of the index has lost; they and their metadata are removed.
    """
    if document.version is not None:
        return write_lines(document.hit, vector_members(fields, cleared), document.whole)
    head: Json = {"_id": document.id}
    if document.routing is not None:
        head["routing"] = document.routing
    source = append_members(document.source, vector_members(fields))
    return b"".join((orjson.dumps({"index": head}), b"\n", source, b"\n"))


def split_in_half(actions: list[DocumentAction]) -> tuple[list[DocumentAction], list[DocumentAction]]:
    """Split actions into two groups of about the same number of bytes, neither of them empty.

    Args:
        actions: At least two actions.
    """
    total = sum(len(action.body) for action in actions)
    size = 0
    for count, action in enumerate(actions[:-1], 1):
        size += len(action.body)
        if 2 * size >= total:
            return actions[:count], actions[count:]
    return actions[:-1], actions[-1:]
