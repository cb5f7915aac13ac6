"""Compare two models on the same queries: nDCG@10, recall@10, and intervals of their differences by bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from es_sbert.evaluation.exact_search import search_exact

DEPTH = 10
_RESAMPLES = 10_000
# Resamples that are drawn at once: with 10,000 queries, 40 MB.
_BLOCK = 500
_CONFIDENCE = 0.95


class Verdict(StrEnum):
    """What the held-out queries say about the tuned model."""

    BETTER = "better"
    WORSE = "worse"
    NOT_DISTINGUISHABLE = "not distinguishable"


@dataclass(frozen=True)
class MetricComparison:
    """One metric of two models, means over the queries × 100.

    Attributes:
        name: `nDCG@10` or `recall@10`.
        stock, tuned: The means.
        low, high: Bounds of the difference tuned − stock, 95 % by paired bootstrap over the queries.
    """

    name: str
    stock: float
    tuned: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """Tuned − stock."""
        return self.tuned - self.stock


@dataclass(frozen=True)
class ModelComparison:
    """A tuned model and the model that it started from.

    Attributes:
        queries: Number of queries.
        documents: Number of documents that they were ranked against.
        ndcg, recall: The metrics.
    """

    queries: int
    documents: int
    ndcg: MetricComparison
    recall: MetricComparison

    @property
    def verdict(self) -> Verdict:
        """Better only if the interval of nDCG@10 is above zero, and that of recall@10 not below it."""
        if self.ndcg.high < 0 or self.recall.high < 0:
            return Verdict.WORSE
        return Verdict.BETTER if self.ndcg.low > 0 else Verdict.NOT_DISTINGUISHABLE


def query_metrics(
    queries: NDArray[np.float32], documents: NDArray[np.float32], relevant: Sequence[Sequence[int]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """nDCG@10 and recall@10 of each query, as trec_eval defines them; all documents are ranked by cosine.

    Args:
        queries, documents: Vectors. *Shape:* ``(queries, dimensions)``, ``(documents, dimensions)``.
        relevant: Rows of the documents that are relevant to each query, at least one.

    Returns:
        *Shape:* ``(queries,)`` each, from 0 to 1.
    """
    found, _ = search_exact(queries, documents, DEPTH)  # (queries, ranks)
    hits = np.array([[row in rows for row in best] for best, rows in zip(found, map(set, relevant), strict=True)])
    discounts = 1 / np.log2(np.arange(2, DEPTH + 2))  # (DEPTH,)
    counts = np.array([len(set(rows)) for rows in relevant])
    ideal = np.cumsum(discounts)[np.minimum(counts, DEPTH) - 1]
    gained = (hits * discounts[: hits.shape[1]]).sum(axis=1)
    return gained / ideal, hits.sum(axis=1) / counts


def compare_metrics(
    stock: tuple[NDArray[np.float64], NDArray[np.float64]],
    tuned: tuple[NDArray[np.float64], NDArray[np.float64]],
    documents: int,
    seed: int,
) -> ModelComparison:
    """Compare the metrics of two models, query by query.

    Args:
        stock, tuned: By `query_metrics`, of the same queries.
        documents: Number of documents.
        seed: Of the bootstrap.
    """
    names = ("nDCG@10", "recall@10")
    ndcg, recall = (
        MetricComparison(
            name,
            100 * float(before.mean()),
            100 * float(after.mean()),
            *bootstrap_interval(100 * (after - before), seed),
        )
        for name, before, after in zip(names, stock, tuned, strict=True)
    )
    return ModelComparison(len(stock[0]), documents, ndcg, recall)


def bootstrap_interval(differences: NDArray[np.float64], seed: int) -> tuple[float, float]:
    """The 95 % interval of a mean by the percentiles of its bootstrap distribution (Efron 1979).

    Args:
        differences: One for each query. *Shape:* ``(queries,)``.
        seed: Of the resampling.
    """
    random = np.random.default_rng(seed)
    count = len(differences)
    means = np.concatenate(
        [differences[random.integers(count, size=(_BLOCK, count))].mean(axis=1) for _ in range(_RESAMPLES // _BLOCK)]
    )
    tail = 50 * (1 - _CONFIDENCE)
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)
