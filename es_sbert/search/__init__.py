"""Semantic, exact and hybrid search over an Elasticsearch or OpenSearch index, with typed results. No torch needed."""

from es_sbert.lazy_names import lazy_names as _lazy_names

_MOVED = (
    "AsyncSemanticIndex", "Hit", "HybridHit", "HybridResult", "Passage", "RankedHits", "Reranking", "SearchResult",
    "SemanticIndex",
)  # fmt: skip

__getattr__, __dir__ = _lazy_names(__name__, {}, {name: f"es_sbert.{name}" for name in _MOVED})
