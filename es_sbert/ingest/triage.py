"""Change detection: what of a window needs a new vector, what only new fields, and what nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from es_sbert.engines.protocol import Json
from es_sbert.index.meta import DocumentMeta
from es_sbert.index.text import MISSING, find_field
from es_sbert.ingest.documents import Document

T = TypeVar("T")


@dataclass
class Triage:
    """A window, sorted.

    Attributes:
        embed: New documents, and those whose text or model changed.
        rewrite: Documents whose text is as it was while other fields changed, with the meta they have.
        unchanged: Ids of documents that stand in the index as they are.
        superseded: Documents of which the index holds a later version.
    """

    embed: list[Document] = field(default_factory=list)
    rewrite: list[tuple[Document, DocumentMeta]] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    superseded: int = 0


def stored_meta(source: Json, meta_field: str) -> DocumentMeta | None:
    """The object beside a stored vector; None where there is none, or not one of ours."""
    value = find_field(source, meta_field)
    if value is MISSING or value is None:
        return None
    try:
        return DocumentMeta.model_validate(value)
    except ValidationError:
        # Another program wrote it: the document counts as one without a vector.
        return None


def triage(documents: Sequence[Document], stored: Mapping[str, DocumentMeta | None], fingerprint: str) -> Triage:
    """Compare documents with what the index holds under their ids.

    Args:
        stored: id → meta; ids that the index lacks are absent.
        fingerprint: The model's.
    """
    result = Triage()
    for document in documents:
        meta = stored.get(document.id)
        current = is_current(meta, document.text_hash, fingerprint)
        if meta is not None and current and meta.document_hash == document.document_hash:
            result.unchanged.append(document.id)
        elif is_superseded(document, meta):
            result.superseded += 1
        elif meta is None or not current:
            result.embed.append(document)
        else:
            result.rewrite.append((document, meta))
    return result


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Slices of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def is_current(meta: DocumentMeta | None, text_hash: str, fingerprint: str) -> bool:
    """Whether a vector with this meta is the one that the text would get now."""
    return meta is not None and meta.fingerprint == fingerprint and meta.text_hash == text_hash


def is_superseded(document: Document, meta: DocumentMeta | None) -> bool:
    """Whether the index holds a later version than this one, which is not the source's word of now (a dead letter)."""
    return meta is not None and document.written is not None and meta.embedded_at > document.written


def lost_tokens(tokens: int, max_tokens: int) -> int:
    """Tokens that the model does not read."""
    return max(0, tokens - max_tokens)


def is_source_disabled(mappings: Mapping[str, Any]) -> bool:
    """Whether the index keeps no `_source`, so that its documents cannot be read back."""
    return mappings.get("_source", {}).get("enabled", True) is False
