"""Text into kNN and cosine queries, and typed results. No torch."""

from es_sbert.search.results import Hit, Passage, SearchResult
from es_sbert.search.semantic_index import SemanticIndex

__all__ = ["Hit", "Passage", "SearchResult", "SemanticIndex"]
