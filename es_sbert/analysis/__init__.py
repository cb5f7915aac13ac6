"""Analysis of a text collection by its embeddings: similar pairs, near-duplicates, clusters and translation pairs.

Embeddings come from files, from an index that already stores them, or from arrays.
"""

from es_sbert.analysis.clusters import (
    Clustering,
    ClusterMethod,
    TextCluster,
    cluster_names,
    cluster_texts,
    display_names,
)
from es_sbert.analysis.duplicate_search import search_duplicates
from es_sbert.analysis.duplicates import (
    DuplicateGroup,
    DuplicateRecall,
    DuplicateSearchResult,
    DuplicateSearchSettings,
    duplicate_groups,
)
from es_sbert.analysis.similarity import (
    AlignedPair,
    SimilarPair,
    margin_pairs,
    most_similar_between,
    most_similar_pairs,
    pairs_above,
)
from es_sbert.analysis.text_collection import SkippedDocuments, TextCollection, read_files, read_index

__all__ = [
    "AlignedPair",
    "ClusterMethod",
    "Clustering",
    "DuplicateGroup",
    "DuplicateRecall",
    "DuplicateSearchResult",
    "DuplicateSearchSettings",
    "SimilarPair",
    "SkippedDocuments",
    "TextCluster",
    "TextCollection",
    "cluster_names",
    "cluster_texts",
    "display_names",
    "duplicate_groups",
    "margin_pairs",
    "most_similar_between",
    "most_similar_pairs",
    "pairs_above",
    "read_files",
    "read_index",
    "search_duplicates",
]
