"""Searches of one request kept apart where OpenSearch would take them for one."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from es_sbert.search.vector_query import MAX_K, VectorQuery


class Depths:
    """How many vectors each search of a request looks at; searches for different k never as many.

    To OpenSearch two kNN queries of a bool are one where field, vector, filter and `ef_search` are the same, whatever
    their k (seen on 3.6.0, engine lucene): of two in `should` both give the k of the first, and a `must` loses a
    `filter` that is narrower. Elasticsearch tells them apart.
    """

    def __init__(self) -> None:
        self._k: dict[int, int] = {}  # of the searches that look at so many

    def apart(self, query: VectorQuery) -> VectorQuery:
        """The same search, which looks at a few vectors more where those for another k look at as many."""
        depth = max(query.candidates, query.oversampled_k)
        depths = chain(range(depth, MAX_K + 1), range(depth - 1, query.oversampled_k - 1, -1))
        free = next((one for one in depths if self._k.setdefault(one, query.k) == query.k), depth)
        return replace(query, num_candidates=free)
