"""Analysis of a collection by its sentence embeddings: most similar pairs and near-duplicates.

Vectors come from files, from the vectors that an index holds, or from arrays.
"""

from es_sbert.analysis.bitext import AlignedPair, margin_pairs
from es_sbert.analysis.collection import Skipped, TextCollection, read_files, read_index
from es_sbert.analysis.duplicates import DuplicateGroup, duplicate_groups
from es_sbert.analysis.similarity import Pair, most_similar_between, most_similar_pairs, pairs_above

__all__ = [
    "AlignedPair",
    "DuplicateGroup",
    "Pair",
    "Skipped",
    "TextCollection",
    "duplicate_groups",
    "margin_pairs",
    "most_similar_between",
    "most_similar_pairs",
    "pairs_above",
    "read_files",
    "read_index",
]
