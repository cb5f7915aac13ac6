"""Vector fields of a document as they are written: the vector, and the object beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from es_sbert.encoder.passages import Span
from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import EngineInfo, Json
from es_sbert.index.meta import DocumentMeta, document_meta_field, text_hash
from es_sbert.index.targets import Target
from es_sbert.index.vectors import FieldValue, bulk_value, passage_values


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


@dataclass(frozen=True, slots=True)
class Piece:
    """A text of a document, as it is embedded.

    Attributes:
        target: The vector field that it is for.
        text: The whole text.
        spans: Passages of it; None where it is embedded as a whole.
    """

    target: Target
    text: str
    spans: tuple[Span, ...] | None = None

    @classmethod
    def cut(cls, target: Target, text: str, passages: Sequence[Span]) -> Piece:
        """A text in passages; one of white space, of which nothing is left, is a passage itself."""
        return cls(target, text, tuple(passages) or ((0, len(text)),))

    @property
    def texts(self) -> tuple[str, ...]:
        """What the model reads, one text a vector."""
        return (self.text,) if self.spans is None else tuple(self.text[start:end] for start, end in self.spans)


@dataclass(frozen=True, slots=True)
class Origins:
    """What the objects beside the vectors say besides the text.

    Attributes:
        document_hash: Of the whole document; None where only a part of it is at hand.
        embedded_at: When, in UTC, ISO 8601.
    """

    document_hash: str | None
    embedded_at: str


def filled_field(info: EngineInfo, piece: Piece, vectors: Vectors, tokens: Sequence[int], max_tokens: int,
                 origins: Origins) -> FilledField:  # fmt: skip
    """The vector field of a piece.

    Args:
        info: The engine, for the form of a vector.
        vectors: *Shape:* ``(texts of the piece, dimensions)`` float32.
        tokens: Of each text of the piece, special tokens included, before any cut.
        max_tokens: What the model reads of a text.
    """
    meta = DocumentMeta(
        fingerprint=piece.target.meta.fingerprint, text_hash=text_hash(piece.text),
        document_hash=origins.document_hash, tokens=sum(tokens), truncated=any(count > max_tokens for count in tokens),
        embedded_at=origins.embedded_at, passages=None if piece.spans is None else len(piece.spans),
    )  # fmt: skip
    whole = piece.spans is None
    value = bulk_value(info, vectors[0]) if whole else passage_values(info, piece.spans or (), vectors)
    return FilledField(piece.target.field, value, meta)


def added_members(fields: Sequence[FilledField], cleared: Sequence[str] = ()) -> Json:
    """What a document gets, or a partial document says.

    Args:
        cleared: Vector fields that are taken away, with the objects beside them.
    """
    added: Json = {}
    for filled in fields:
        added[filled.field] = filled.value
        added[document_meta_field(filled.field)] = filled.meta.as_json()
    return added | {name: None for field in cleared for name in (field, document_meta_field(field))}
