"""Analysis of a collection by its sentence embeddings: most similar pairs, near-duplicates and clusters.

Vectors come from files, from the vectors that an index holds, or from arrays.
"""

from es_sbert.analysis.bitext import AlignedPair, margin_pairs
from es_sbert.analysis.cluster_names import cluster_names, display_names
from es_sbert.analysis.clusters import Cluster, Clustering, ClusterMethod, cluster_texts
from es_sbert.analysis.collection import SkippedDocuments, TextCollection, read_files, read_index
from es_sbert.analysis.duplicate_search import (
    DuplicateRecall,
    DuplicateSearchResult,
    DuplicateSearchSettings,
    search_duplicates,
)
from es_sbert.analysis.duplicates import DuplicateGroup, duplicate_groups
from es_sbert.analysis.similarity import Pair, most_similar_between, most_similar_pairs, pairs_above

__all__ = [
    "AlignedPair",
    "Cluster",
    "ClusterMethod",
    "Clustering",
    "DuplicateGroup",
    "DuplicateRecall",
    "DuplicateSearchResult",
    "DuplicateSearchSettings",
    "Pair",
    "SkippedDocuments",
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
