"""Analysis of a text collection by its embeddings: similar pairs, near-duplicates and clusters.

Embeddings come from files, from an index that already stores them, or from arrays. Names are imported on first use,
because each command needs only some of the modules.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from es_sbert.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from es_sbert.analysis.clusters import cluster_names as cluster_names
    from es_sbert.analysis.clusters import cluster_texts as cluster_texts
    from es_sbert.analysis.duplicates import duplicate_groups as duplicate_groups
    from es_sbert.analysis.duplicates import search_duplicates as search_duplicates
    from es_sbert.analysis.similarity import most_similar_pairs as most_similar_pairs
    from es_sbert.analysis.similarity import pairs_above as pairs_above
    from es_sbert.analysis.text_collection import read_files as read_files
    from es_sbert.analysis.text_collection import read_index as read_index

_NAMES = {
    "es_sbert.analysis.clusters": ("cluster_names", "cluster_texts"),
    "es_sbert.analysis.duplicates": ("duplicate_groups", "search_duplicates"),
    "es_sbert.analysis.similarity": ("most_similar_pairs", "pairs_above"),
    "es_sbert.analysis.text_collection": ("read_files", "read_index"),
}
__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__, __dir__ = _lazy_names(__name__, _NAMES)
