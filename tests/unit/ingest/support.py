"""Vector fields of a load, for tests without an engine."""

from __future__ import annotations

from es_sbert.index.meta import PassageRules, VectorFieldMeta
from es_sbert.index.targets import Target
from es_sbert.index.text import TextTemplate


def target(field: str = "embedding", template: str = "{text}", *, filled: bool = True, model: str = "model",
           passages: PassageRules | None = None) -> Target:  # fmt: skip
    """A vector field of four dimensions, whose model has its name for a fingerprint."""
    meta = VectorFieldMeta(
        fingerprint=model, model=model, dimensions=4, index_type="hnsw", text=template, passages=passages
    )
    return Target(field, TextTemplate.parse(template), meta, filled)
