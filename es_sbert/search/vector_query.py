"""`VectorQuery`: what a search for the nearest vectors asks for, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Json
from es_sbert.errors import UsageError
from es_sbert.index.layout import PASSAGE_VECTOR
from es_sbert.index.vectors import QueryVector
from es_sbert.search.filters import check_query

# index.max_result_window, and Elasticsearch's own limit of k and num_candidates.
MAX_K = 10_000
MIN_CANDIDATES = 100
MAX_OVERSAMPLE = 10.0  # Elasticsearch's own
_SHORTEST, _LONGEST = 1e-18, 1e18


def check_k(k: int) -> None:
    """Refuse a number of hits that no engine gives.

    Raises:
        UsageError: not a whole number from 1 to `MAX_K`.
    """
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_K:
        raise UsageError(
            f"k is {k!r}",
            f"Give a whole number (int) of hits from 1 to {MAX_K:,}; to read a whole index, page through it in a point "
            "in time.",
        )


def check_direction(vector: Vectors) -> None:
    """Refuse a vector that has no cosine with others.

    Args:
        vector: *Shape:* ``(dimensions,)``.

    Raises:
        UsageError: it is empty, all zeros, not finite, too short or long for float32, or not one vector.
    """
    # Engines square its numbers in float32.
    length = float(np.linalg.norm(vector.astype(np.float64))) if vector.ndim == 1 else 0.0
    if not _SHORTEST < length < _LONGEST:
        raise UsageError(
            "the query vector has no direction: it is empty, all zeros, not finite, too short or long for float32, or "
            "not one vector",
            "Give one vector of shape (dimensions,) as the model makes it.",
        )


@dataclass(frozen=True)
class VectorQuery:
    """A search for the nearest vectors.

    Attributes:
        field: The vector field.
        vector: *Shape:* ``(dimensions,)`` float32. A list is not checked, and stands in the engine's query as the very
            object that it is: it may be filled once the vector is there.
        k: How many hits.
        filter: Query in the engine's language that every hit must match, or None.
        num_candidates: Vectors that each shard looks at more closely; more is slower and misses less.
            None: twice k, at least 100.
        oversample: Set for a quantised index: the nearest `oversample * k` by quantised numbers are compared
            again by their float32 vectors, which makes the scores exact and the order better.
        passages: Whether the field holds one vector a passage; a document is then as near as its nearest passage.
        min_cosine: Documents below it are no hits. Exact wherever the scores are: on a quantised index, with
            `oversample`.
        boost: What the score is multiplied by.
        inner_hits: With passages: the name under which each hit tells its nearest passage; None for not at all, as
            aggregations want it. Clauses of one request need names of their own.
    """

    field: str
    vector: QueryVector
    k: int = 10
    filter: Json | None = None
    num_candidates: int | None = None
    oversample: float | None = None
    passages: bool = False
    min_cosine: float | None = None
    boost: float = 1.0
    inner_hits: str | None = None

    def __post_init__(self) -> None:
        check_k(self.k)
        if self.filter is not None:
            check_query(self.filter, "the filter")
        if self.num_candidates is not None and not self.k <= self.num_candidates <= MAX_K:
            raise UsageError(
                f"num_candidates is {self.num_candidates}",
                f"Give {self.k:,} to {MAX_K:,}: at least as many as are looked for, which is k; in a hybrid search its "
                "depth, with a reranker its window, where they are larger.",
            )
        if self.oversample is not None and not 1.0 <= self.oversample <= MAX_OVERSAMPLE:
            raise UsageError(f"oversample is {self.oversample:g}", f"Give a factor between 1 and {MAX_OVERSAMPLE:g}.")
        if self.min_cosine is not None and not -1.0 <= self.min_cosine <= 1.0:
            raise UsageError(f"the minimum cosine is {self.min_cosine:g}", "Give a number between -1 and 1.")
        if not 0.0 < self.boost < math.inf:
            raise UsageError(f"the boost is {self.boost:g}", "Give a number above 0; 1 leaves scores as they are.")
        if not isinstance(self.vector, list):
            check_direction(self.vector)

    @property
    def path(self) -> str:
        """Full name of the field that holds the numbers."""
        return f"{self.field}.{PASSAGE_VECTOR}" if self.passages else self.field

    @property
    def candidates(self) -> int:
        return self.num_candidates or min(MAX_K, max(MIN_CANDIDATES, 2 * self.k))

    @property
    def oversampled_k(self) -> int:
        """k times `oversample`, within the engines' limit."""
        return min(MAX_K, math.ceil(self.k * (self.oversample or 1.0)))
