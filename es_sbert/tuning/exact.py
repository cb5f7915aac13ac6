"""Exact neighbours of many queries by one pass over the vectors of an index, in bounded memory.

The pass needs no scripting, costs the same on every engine, and reads each vector once for all queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.encoder.types import Vectors

Doubles = NDArray[np.float64]

# Cosines that differ by less are ties: engines keep vectors normalised in float32.
TIES = 1e-6


@dataclass(frozen=True)
class Truth:
    """Exact search for some queries.

    Attributes:
        kth: Cosine of each query's k-th neighbour (or of its last, where there are fewer), float64. *Shape:*
            ``(queries,)``.
        found: Neighbours there are for each query, at most k.
        cosines: For each query, the exact cosine of every document asked for.
        documents: Documents compared.
    """

    kth: Doubles
    found: Sequence[int]
    cosines: Sequence[dict[str, float]]
    documents: int

    def hits(self, query: int, ids: Iterable[str]) -> int:
        """How many of these documents are among a query's k nearest; of tied ones, any."""
        nearest = float(self.kth[query]) - TIES
        cosines = self.cosines[query]
        right = sum(cosines.get(document_id, -2.0) >= nearest for document_id in ids)
        return min(right, self.found[query])


def exact_neighbours(queries: Vectors, own: Sequence[str | None], wanted: Sequence[set[str]], k: int,
                     pages: Iterable[tuple[Sequence[str], Sequence[int], Vectors]]) -> Truth:  # fmt: skip
    """Compare every vector of the pages with every query.

    Args:
        queries: *Shape:* ``(queries, dimensions)``.
        own: Id of the document that a query is, which does not count as its neighbour; None for texts.
        wanted: For each query, documents whose exact cosine is to be kept.
        k: Neighbours.
        pages: Ids of documents, the first row of each, and their vectors, ``(vectors, dimensions)``. A document with
            several is as near as the nearest of them.
    """
    unit = _unit(queries)  # (queries, dimensions)
    best = np.full((len(unit), k), -np.inf)  # (queries, k) cosines, in no order
    cosines: list[dict[str, float]] = [{} for _ in wanted]
    documents = 0
    for ids, rows, vectors in pages:
        documents += len(ids)
        page = np.maximum.reduceat(_unit(vectors) @ unit.T, rows, axis=0)  # (documents, queries)
        place = {document_id: row for row, document_id in enumerate(ids)}
        for number, document_id in enumerate(own):
            if document_id in place:
                page[place[document_id], number] = -np.inf
        for number, some in enumerate(wanted):
            for document_id in some & place.keys():
                cosines[number][document_id] = float(page[place[document_id], number])
        both = np.concatenate([best, page.T], axis=1)  # (queries, k + documents)
        best = np.partition(both, both.shape[1] - k, axis=1)[:, -k:]
    counted = np.isfinite(best)
    kth = np.where(counted, best, np.inf).min(axis=1)
    return Truth(kth, [int(count) for count in counted.sum(axis=1)], cosines, documents)


def _unit(vectors: Vectors) -> Doubles:
    """Vectors of length 1 in float64. *Shape:* as given."""
    wide = np.asarray(vectors, dtype=np.float64)
    unit: Doubles = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return unit
