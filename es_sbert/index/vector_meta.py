"""The metadata that es-sbert stores in an index: `_meta.es_sbert` in the mapping, and one object per vector."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from es_sbert.io.json_lines import dump_object

META_KEY = "es_sbert"
# Fingerprint in the metadata of a vector that is not the one which the field's model gives for the text.
UNKNOWN_FINGERPRINT = "unknown"


class ChunkRules(BaseModel):
    """How long texts are cut into passages, each with a vector of its own.

    Attributes:
        tokens: Most tokens of a passage as the model reads it, prompt and special tokens included.
        overlap: Tokens of a passage's end that may stand again at the beginning of the next one, at most.
    """

    model_config = ConfigDict(frozen=True)

    tokens: int = Field(ge=1)
    overlap: int = Field(ge=0)

    @classmethod
    def of(cls, tokens: int, overlap: int | None = None) -> ChunkRules:
        """Rules; an overlap that is not given is an eighth: enough for a sentence that both neighbours need."""
        return cls(tokens=tokens, overlap=tokens // 8 if overlap is None else overlap)

    def __str__(self) -> str:
        return f"passages of {self.tokens} tokens, {self.overlap} of them shared"


class VectorFieldMeta(BaseModel):
    """`_meta.es_sbert.fields.<vector field>`: which model fills the field, and from what text.

    Attributes:
        fingerprint: Fingerprint of the model; ingest and search refuse any other.
        model: The model's name, to load it by default.
        dimensions: Length of a vector.
        similarity: Always `cosine`.
        index_type: `hnsw`, `int8_hnsw`, `flat`, ….
        text: Template of the text that is embedded, e.g. `{title}. {body}`, or None before the first load.
        passages: How texts are cut; None where a document has one vector, of what the model reads of its text.
    """

    model_config = ConfigDict(frozen=True)

    fingerprint: str
    model: str
    dimensions: int
    similarity: str = "cosine"
    index_type: str
    text: str | None = None
    passages: ChunkRules | None = None


def with_meta_entry(meta: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    """A mapping's `_meta` with `_meta.es_sbert.<name>` set, or without it where the value is None.

    An update of a mapping replaces `_meta` whole, so all else is kept.
    """
    ours = {key: kept for key, kept in meta.get(META_KEY, {}).items() if key != name}
    return meta | {META_KEY: ours if value is None else ours | {name: value}}


def document_meta_field(vector_field: str) -> str:
    """Name of the object that stands beside a vector (`embedding` → `embedding_meta`)."""
    return f"{vector_field}_meta"


class DocumentMeta(BaseModel):
    """The object beside each vector.

    Attributes:
        fingerprint: Fingerprint of the model that made the vector.
        text_hash: Hash of the text that was embedded, prompt left out.
        document_hash: Hash of the whole document as read from the source; None for documents that were
            embedded where they stood.
        tokens: Tokens of the text, special tokens included, before any cut; of all passages together. Of a text of more
            than 100,000 characters, an estimate from its beginning.
        truncated: Whether the text, or one of its passages, was longer than the model reads.
        embedded_at: When, in UTC, ISO 8601.
        passages: How many passages the text was cut into; None where it has one vector.
    """

    model_config = ConfigDict(frozen=True)

    fingerprint: str
    text_hash: str
    document_hash: str | None
    tokens: int
    truncated: bool
    embedded_at: str
    passages: int | None = None

    def as_json(self) -> dict[str, Any]:
        """As it stands beside the vector."""
        return self.model_dump(exclude={"passages"} if self.passages is None else None)


def text_hash(text: str) -> str:
    """SHA-256 of the text in UTF-8, the first 32 hex digits (128 bits).

    Raises:
        UnicodeEncodeError: the text holds lone surrogates.
    """
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def document_hash(document: dict[str, Any]) -> str:
    """SHA-256 of the document as JSON with sorted keys, the first 32 hex digits."""
    return hashlib.sha256(dump_object(document, sort_keys=True)).hexdigest()[:32]


def is_vector_current(meta: Mapping[str, Any] | None, text: str, fingerprint: str) -> bool:
    """Whether the stored vector is the one the text would get now; an empty text has none."""
    if not text or meta is None or meta.get("fingerprint") != fingerprint:
        return False
    return bool(meta.get("text_hash") == text_hash(text))
