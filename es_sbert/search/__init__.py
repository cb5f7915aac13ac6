"""Semantic, exact and hybrid search over an Elasticsearch or OpenSearch index, with typed results. No torch.

Names are imported when they are first used, as in `es_sbert`: a search needs only some of these modules.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

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

_RESULTS = ("Hit", "HybridHit", "HybridResult", "Passage", "RankedHits", "Reranking", "SearchResult")
_MODULES = {
    "AsyncSemanticIndex": "es_sbert.search.async_semantic_index",
    "SemanticIndex": "es_sbert.search.semantic_index",
    **dict.fromkeys(_RESULTS, "es_sbert.search.search_result"),
}
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


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
