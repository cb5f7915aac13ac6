"""Analysis of a collection by its sentence embeddings: the most similar pairs.

Vectors come from files, from the vectors that an index holds, or from arrays.
"""

from es_sbert.analysis.bitext import AlignedPair, margin_pairs
from es_sbert.analysis.collection import Skipped, TextCollection, read_files, read_index
from es_sbert.analysis.similarity import Pair, most_similar_between, most_similar_pairs

__all__ = [
    "AlignedPair",
    "Pair",
    "Skipped",
    "TextCollection",
    "margin_pairs",
    "most_similar_between",
    "most_similar_pairs",
    "read_files",
    "read_index",
]
