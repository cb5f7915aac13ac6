"""Semantic, exact and hybrid search over an Elasticsearch or OpenSearch index, with typed results. No torch."""

from es_sbert.search.async_semantic_index import AsyncSemanticIndex
from es_sbert.search.search_result import Hit, HybridHit, HybridResult, Passage, RankedHits, Reranking, SearchResult
from es_sbert.search.semantic_index import SemanticIndex

__all__ = [
    "AsyncSemanticIndex",
    "Hit",
    "HybridHit",
    "HybridResult",
    "Passage",
    "RankedHits",
    "Reranking",
    "SearchResult",
    "SemanticIndex",
]
