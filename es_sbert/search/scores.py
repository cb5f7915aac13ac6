"""The engines' scores and the cosine behind them.

Engines want scores that are never negative, so each shifts the cosine in a way of its own:

| query | `_score` |
|---|---|
| kNN on either engine, rescored by float32 vectors or not | (1 + cos) / 2 |
| exact on Elasticsearch: `cosineSimilarity(…) + 1.0` | 1 + cos |
| exact on OpenSearch: `knn_score` with `cosinesimil` | (1 + cos) / 2 |
"""

from __future__ import annotations

from enum import StrEnum

from es_sbert.engines.protocol import Flavour


class Method(StrEnum):
    """How a query finds its hits: by the index's own kNN search, or by a script over all vectors."""

    KNN = "knn"
    EXACT = "exact"


def cosine_of(score: float, flavour: Flavour, method: Method) -> float:
    """The cosine, within [-1, 1], that an engine turned into this score."""
    cosine = score - 1.0 if _is_plain_sum(flavour, method) else 2.0 * score - 1.0
    # Scores are float32: the cosine of a vector with itself may come back as 1.0000001.
    return min(1.0, max(-1.0, cosine))


def score_of(cosine: float, flavour: Flavour, method: Method) -> float:
    """The inverse of `cosine_of`, for `min_score` and the like."""
    return cosine + 1.0 if _is_plain_sum(flavour, method) else (1.0 + cosine) / 2.0


def _is_plain_sum(flavour: Flavour, method: Method) -> bool:
    return flavour is Flavour.ELASTICSEARCH and method is Method.EXACT
