"""The k nearest of all shards together, where an engine's query by itself keeps the k nearest of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.gateway.rewrite.clauses import clause
from es_sbert.gateway.rewrite.depths import Depths
from es_sbert.gateway.rewrite.semantic import Semantic, Way
from es_sbert.gateway.targets import Part
from es_sbert.index.types import IndexType
from es_sbert.index.vectors import QueryVector
from es_sbert.search.choices import oversample_for
from es_sbert.search.scores import Method, cosine_of

# What decides which documents a search sees and what it may ask of them: a point in time, fields made up for it.
_SAME_DOCUMENTS = ("pit", "runtime_mappings", "derived")
# Scores are float32: the k-th document itself must not fall below its own cosine.
_SLACK = 1e-6


def needs_cut(flavour: Flavour, semantic: Semantic) -> bool:
    """Whether more documents would match than were asked for.

    A query over a `flat` field matches all documents on Elasticsearch 9 and on OpenSearch, and one over a quantised
    field as many on OpenSearch as are compared again. Beyond that engines' own queries (`knn`, `neural`) mean k of each
    shard by themselves, and callers who write them know.
    """
    if any(_exceeds(flavour, part) for part in semantic.target.parts):
        return True
    return semantic.target.shards > 1 and semantic.way not in (Way.TEXT_EMBEDDING, Way.NEURAL)


def _exceeds(flavour: Flavour, part: Part) -> bool:
    oversampled = flavour is Flavour.OPENSEARCH and oversample_for(part.meta) is not None
    return oversampled or part.meta.index_type == IndexType.FLAT


def kth_body(flavour: Flavour, semantic: Semantic, vector: QueryVector, filters: Sequence[Json], asked: Json) -> Json:
    """A search for the k-th nearest document alone.

    Args:
        vector: *Shape:* ``(dimensions,)``.
        filters: What every hit must match.
        asked: The search that the query stands in.
    """
    body = {"query": clause(flavour, replace(semantic, boost=1.0), vector, filters, None, Depths())}
    same = {name: asked[name] for name in _SAME_DOCUMENTS if name in asked}
    return body | same | {"from": semantic.k - 1, "size": 1, "_source": False, "track_total_hits": False}


def least_cosine(flavour: Flavour, answer: Json) -> float | None:
    """The cosine of the k-th nearest document; None where there are fewer."""
    hits = answer["hits"]["hits"]
    if not hits:
        return None
    # The clauses' scores are alike for all index types.
    return max(-1.0, cosine_of(hits[0]["_score"], flavour, Method.KNN) - _SLACK)
