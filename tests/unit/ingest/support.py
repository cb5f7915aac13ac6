"""Vector fields of a load, for tests without an engine."""

from __future__ import annotations

from es_sbert.index.document_vectors import EmbeddingTarget
from es_sbert.index.mapping import ChunkRules, VectorFieldMeta
from es_sbert.index.text_template import TextTemplate


def target(
    field: str = "embedding",
    template: str = "{text}",
    *,
    filled: bool = True,
    model: str = "model",
    passages: ChunkRules | None = None,
) -> EmbeddingTarget:
    """A vector field of four dimensions, whose model has its name for a fingerprint."""
    meta = VectorFieldMeta(
        fingerprint=model, model=model, dimensions=4, index_type="hnsw", text=template, passages=passages
    )
    return EmbeddingTarget(field, TextTemplate.parse(template), meta, filled)
