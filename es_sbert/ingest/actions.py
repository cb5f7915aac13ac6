"""Bulk actions as bytes: pure functions from documents and vectors to lines of a request body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import orjson

from es_sbert.engines.protocol import Json
from es_sbert.index.meta import DocumentMeta, document_meta_field
from es_sbert.index.vectors import FieldValue
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


@dataclass(frozen=True, slots=True)
class FilledField:
    """A vector field of a document and the object beside it.

    Attributes:
        field: Its name.
        value: As the engine takes it.
        meta: The object beside it.
    """

    field: str
    value: FieldValue
    meta: DocumentMeta


def index_action(document: Document, fields: Sequence[FilledField]) -> bytes:
    """Write the whole document: its own bytes, the vectors and the objects beside them put at the end."""
    head = orjson.dumps({"index": {"_id": document.id}})
    if not fields:
        return b"".join((head, b"\n", document.source, b"\n"))
    return b"".join((head, b"\n", document.source[:-1], b",", _json(_added(fields))[1:], b"\n"))


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
    head: Json = {"_id": document.id, "if_seq_no": sequence, "if_primary_term": term}
    if document.routing is not None:
        head["routing"] = document.routing
    gone: Json = {name: None for field in cleared for name in (field, document_meta_field(field))}
    return b"".join((orjson.dumps({"update": head}), b'\n{"doc":', _json(_added(fields) | gone), b"}\n"))


def _added(fields: Sequence[FilledField]) -> Json:
    added: Json = {}
    for filled in fields:
        added[filled.field] = filled.value
        added[document_meta_field(filled.field)] = filled.meta.as_json()
    return added


def _json(value: Json) -> bytes:
    # orjson writes a float32 array with the fewest digits that give the same float32 again.
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


class HasBody(Protocol):
    """Lines of a bulk request."""

    @property
    def body(self) -> bytes: ...


B = TypeVar("B", bound=HasBody)


def bodies(actions: Iterable[B], max_bytes: int) -> Iterator[list[B]]:
    """Actions in groups of at most `max_bytes`; a larger action goes alone."""
    group: list[B] = []
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
