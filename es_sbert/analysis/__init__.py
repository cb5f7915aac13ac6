"""Analysis of a text collection by its embeddings: similar pairs, near-duplicates and clusters.

Embeddings come from files, from an index that already stores them, or from arrays. Names are imported on first use,
because each command needs only some of the modules.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from es_sbert.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from es_sbert.analysis.clusters import Clustering, TextCluster, cluster_names, cluster_texts
    from es_sbert.analysis.duplicates import (
        DuplicateGroup,
        DuplicateSearchResult,
        duplicate_groups,
        search_duplicates,
    )
    from es_sbert.analysis.similarity import SimilarPair, most_similar_pairs, pairs_above
    from es_sbert.analysis.text_collection import DocumentVersion, TextCollection, read_index
    from es_sbert.ingest.read_texts import SkippedDocuments

_NAMES = {
    "es_sbert.analysis.clusters": "Clustering TextCluster cluster_names cluster_texts",
    "es_sbert.analysis.duplicates": "DuplicateGroup DuplicateSearchResult duplicate_groups search_duplicates",
    "es_sbert.analysis.similarity": "SimilarPair most_similar_pairs pairs_above",
    "es_sbert.analysis.text_collection": "DocumentVersion TextCollection read_index",
    "es_sbert.ingest.read_texts": "SkippedDocuments",
}
__all__ = [
    "Clustering", "DocumentVersion", "DuplicateGroup", "DuplicateSearchResult", "SimilarPair", "SkippedDocuments",
    "TextCluster", "TextCollection", "cluster_names", "cluster_texts", "duplicate_groups", "most_similar_pairs",
    "pairs_above", "read_index", "search_duplicates",
]  # fmt: skip

__getattr__, __dir__ = _lazy_names(__name__, _NAMES)
