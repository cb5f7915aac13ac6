"""Semantic, exact and hybrid search over an Elasticsearch or OpenSearch index, with typed results. No torch needed.

Names are imported when they are first used, as in `es_sbert`, because a search needs only some of these modules.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from es_sbert.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from es_sbert.search.async_semantic_index import AsyncSemanticIndex as AsyncSemanticIndex
    from es_sbert.search.search_result import Hit as Hit
    from es_sbert.search.search_result import HybridHit as HybridHit
    from es_sbert.search.search_result import HybridResult as HybridResult
    from es_sbert.search.search_result import Passage as Passage
    from es_sbert.search.search_result import RankedHits as RankedHits
    from es_sbert.search.search_result import Reranking as Reranking
    from es_sbert.search.search_result import SearchResult as SearchResult
    from es_sbert.search.semantic_index import SemanticIndex as SemanticIndex

_NAMES = {
    "es_sbert.search.async_semantic_index": ("AsyncSemanticIndex",),
    "es_sbert.search.search_result": (
        "Hit",
        "HybridHit",
        "HybridResult",
        "Passage",
        "RankedHits",
        "Reranking",
        "SearchResult",
    ),
    "es_sbert.search.semantic_index": ("SemanticIndex",),
}
__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__, __dir__ = _lazy_names(__name__, _NAMES)
