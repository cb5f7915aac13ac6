"""Text into kNN, cosine and hybrid queries, and typed results. No torch."""

from es_sbert.search.async_semantic_index import AsyncSemanticIndex
from es_sbert.search.results import Found, Hit, HybridHit, HybridResult, Passage, Reranking, SearchResult
from es_sbert.search.semantic_index import SemanticIndex

__all__ = [
    "AsyncSemanticIndex",
    "Found",
    "Hit",
    "HybridHit",
    "HybridResult",
    "Passage",
    "Reranking",
    "SearchResult",
    "SemanticIndex",
]
