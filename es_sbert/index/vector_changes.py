"""Decide whether a vector field of a document gets a new vector, keeps its vector, or loses it.

Loads and the gateway's writes share this rule.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import (
    DocumentMeta,
    EmbeddingTarget,
    EmbeddingTargets,
    is_vector_current,
    member_names,
    read_document_meta,
)


class StoredVector(NamedTuple):
    """The state of one vector field in a document.

    Attributes:
        exists: Whether there is a vector. The metadata does not prove it: on Elasticsearch 9.2 and later `_source`
            hides vectors, so an application that writes a document back drops them and keeps the metadata.
        meta: The metadata object next to the vector, or a part of it; None if there is none. A vector without it comes
            from another writer. In `_source` that an engine rebuilds from fields, members that are null are missing.
        text_changed: Whether the text in the index is known to differ from the source's.
    """

    exists: bool = False
    meta: DocumentMeta | None = None
    text_changed: bool = False

    @classmethod
    def from_fields(cls, fields: Json, target: EmbeddingTarget) -> StoredVector:
        """Read the state from the fields of a document that was read or sent with its vectors."""
        exists = any(fields[name] is not None for name in member_names(fields, target.field))
        return cls(exists, read_document_meta(fields, target.meta_field))


def stored_vectors(hit: Json, targets: EmbeddingTargets) -> list[StoredVector]:
    """Read the state of a document's vectors from a hit of `named_vectors_query` with their metadata in `_source`."""
    source, names = hit.get("_source") or {}, hit.get("matched_queries", [])
    return [
        StoredVector(str(number) in names, read_document_meta(source, target.meta_field))
        for number, target in enumerate(targets)
    ]


class VectorChange(Enum):
    """The change of a document's vector when the document is written."""

    EMBED = auto()  # a vector is made from the document's text
    KEEP = auto()  # the text would get the same vector now
    REMOVE = auto()  # the vector, or its metadata, is outdated, and no new vector is made
    NONE = auto()  # there is no vector, and none is made


def vector_change(target: EmbeddingTarget, text: str | None, stored: StoredVector) -> VectorChange:
    """Decide how the vector changes when a document gets this text.

    Args:
        text: Text of the document after the write; empty or None if there is nothing to embed.
    """
    if stored.exists and text and is_vector_current(stored.meta, text, target.meta.fingerprint):
        return VectorChange.KEEP
    if text and target.filled:
        return VectorChange.EMBED
    return VectorChange.REMOVE if stored.exists or stored.meta is not None else VectorChange.NONE


def is_outdated(target: EmbeddingTarget, text: str, stored: StoredVector) -> bool:
    """Whether the index lacks the vector of a document's text, or holds a vector of an earlier text.

    Metadata without a vector is harmless.
    """
    change = vector_change(target, text, stored)
    return change is VectorChange.EMBED or (change is VectorChange.REMOVE and stored.exists)
