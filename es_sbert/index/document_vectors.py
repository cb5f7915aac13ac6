"""The vector fields of one document: which text each is made from, and the value and metadata written for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from es_sbert.encoder.chunker import Span
from es_sbert.encoder.embeddings import Vectors
from es_sbert.engines.protocol import EngineInfo, Json
from es_sbert.index.serialization import FieldValue, bulk_vector_value, chunk_values
from es_sbert.index.text_template import MISSING, TextFieldError, TextTemplate, find_field
from es_sbert.index.vector_meta import DocumentMeta, VectorFieldMeta, document_meta_field, text_hash


def raw_document_meta(source: dict[str, Any], meta_field: str) -> dict[str, Any] | None:
    """The object next to a stored vector, whoever wrote it; None where there is none."""
    value = find_field(source, meta_field)
    return value if isinstance(value, dict) else None


def read_document_meta(source: dict[str, Any], meta_field: str) -> DocumentMeta | None:
    """The object next to a stored vector; None where there is none, or not one of ours."""
    value = raw_document_meta(source, meta_field)
    if value is None:
        return None
    try:
        return DocumentMeta.model_validate(value)
    except ValidationError:
        # Another program wrote it: the document counts as one without a vector.
        return None


@dataclass(frozen=True)
class EmbeddingTarget:
    """A vector field and the text that its vectors stand for.

    Attributes:
        field: Its name.
        template: The text.
        meta: What the mapping says about it.
        filled: Whether this load makes its vectors. The others are of another model, or not asked for: a document
            that is written anew keeps such a vector as long as it stands for the document's text.
    """

    field: str
    template: TextTemplate
    meta: VectorFieldMeta
    filled: bool = True

    @property
    def meta_field(self) -> str:
        """Name of the object beside the vector."""
        return document_meta_field(self.field)


EmbeddingTargets = tuple[EmbeddingTarget, ...]


def targets_to_fill(targets: EmbeddingTargets) -> EmbeddingTargets:
    """Those that this load fills."""
    return tuple(target for target in targets if target.filled)


def kept_targets(fields: Mapping[str, VectorFieldMeta], filled_fields: Sequence[str]) -> EmbeddingTargets:
    """The other vector fields of an index whose text is known.

    Args:
        fields: All vector fields of the index.
        filled_fields: Names of those that the load fills.
    """
    return tuple(
        EmbeddingTarget(name, TextTemplate.parse(meta.text), meta, filled=False)
        for name, meta in fields.items()
        if name not in filled_fields and meta.text is not None
    )


def target_texts(fields: Mapping[str, Any], targets: EmbeddingTargets) -> tuple[str, ...]:
    """A document's text for each target, in their order; empty where its fields are all missing, null or blank.

    Raises:
        NoText: a field of a text that the load fills is neither a string nor null.
    """
    return tuple(_target_text(fields, target) for target in targets)


def stored_text(source: Mapping[str, Any], target: EmbeddingTarget) -> str | None:
    """The text that a document of the index has for a target; empty where there is nothing to embed.

    None where a field of the text is not a string, which no document of a source has.
    """
    try:
        return _target_text(source, target)
    except TextFieldError:
        return None if target.filled else ""


def target_text_fields(targets: EmbeddingTargets) -> tuple[str, ...]:
    """Fields of the texts that the load fills, each once."""
    return tuple(dict.fromkeys(name for target in targets_to_fill(targets) for name in target.template.fields))


def absent_fields(fields: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Those of the names that a document lacks, or in which it has null."""
    return [name for name in names if find_field(fields, name) in (MISSING, None)]


def _target_text(fields: Mapping[str, Any], target: EmbeddingTarget) -> str:
    try:
        text = target.template.text_of(fields)
    except TextFieldError:
        if target.filled:
            raise
        return ""  # its vector, if it has one, was made from something else
    return "" if not text or text.isspace() else text


@dataclass(frozen=True, slots=True)
class VectorFieldValue:
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
class ChunkedText:
    """A text of a document, as it is embedded.

    Attributes:
        target: The vector field that it is for.
        text: The whole text.
        spans: Passages of it; None where it is embedded as a whole.
    """

    target: EmbeddingTarget
    text: str
    spans: tuple[Span, ...] | None = None

    @classmethod
    def cut(cls, target: EmbeddingTarget, text: str, passages: Sequence[Span]) -> ChunkedText:
        """A text in passages; one of white space, of which nothing is left, is a passage itself."""
        return cls(target, text, tuple(passages) or ((0, len(text)),))

    @property
    def texts(self) -> tuple[str, ...]:
        """What the model reads, one text a vector."""
        return (self.text,) if self.spans is None else tuple(self.text[start:end] for start, end in self.spans)


@dataclass(frozen=True, slots=True)
class EmbeddingProvenance:
    """What the objects beside the vectors say besides the text.

    Attributes:
        document_hash: Of the whole document; None where only a part of it is at hand.
        embedded_at: When, in UTC, ISO 8601.
    """

    document_hash: str | None
    embedded_at: str


def build_field_value(
    info: EngineInfo,
    piece: ChunkedText,
    vectors: Vectors,
    tokens: Sequence[int],
    max_tokens: int,
    origins: EmbeddingProvenance,
) -> VectorFieldValue:
    """The vector field of a piece.

    Args:
        info: The engine, for the form of a vector.
        vectors: *Shape:* ``(texts of the piece, dimensions)`` float32.
        tokens: Of each text of the piece, special tokens included, before any cut.
        max_tokens: What the model reads of a text.
    """
    meta = DocumentMeta(
        fingerprint=piece.target.meta.fingerprint,
        text_hash=text_hash(piece.text),
        document_hash=origins.document_hash,
        tokens=sum(tokens),
        truncated=any(count > max_tokens for count in tokens),
        embedded_at=origins.embedded_at,
        passages=None if piece.spans is None else len(piece.spans),
    )
    whole = piece.spans is None
    value = bulk_vector_value(info, vectors[0]) if whole else chunk_values(info, piece.spans or (), vectors)
    return VectorFieldValue(piece.target.field, value, meta)


def vector_members(fields: Sequence[VectorFieldValue], cleared: Sequence[str] = ()) -> Json:
    """What a document gets, or a partial document says.

    Args:
        cleared: Vector fields that are taken away, with the objects beside them.
    """
    added: Json = {}
    for filled in fields:
        added[filled.field] = filled.value
        added[document_meta_field(filled.field)] = filled.meta.as_json()
    return added | {name: None for field in cleared for name in (field, document_meta_field(field))}
