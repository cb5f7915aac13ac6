"""Metrics of rankings with the definitions of trec_eval: nDCG, MRR, MAP, precision, recall, success, unjudged hits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from es_sbert.errors import SourceError

DEPTH = 100  # maximum number of hits that a metric considers
MAIN_METRIC = "ndcg@10"  # for decisions that need a single metric
METRICS = (MAIN_METRIC, "mrr@10", "map@100", "precision@10", "recall@10", "recall@100", "success@1", "unjudged@10")

Rankings = Mapping[str, Sequence[str]]  # query → documents, best first, without duplicates
Grades = Mapping[str, int]  # document → grade
QueryScores = dict[str, dict[str, float]]  # query → metric → value


def measure_queries(rankings: Rankings, judgements: Mapping[str, Grades]) -> QueryScores:
    """Compute the metrics of each judged query, × 100.

    Args:
        rankings: The documents found for every judged query; `[]` for a query without documents.
        judgements: Query → document → grade, 0 or less is not relevant; queries without a relevant document are not
            judged.

    Returns:
        `ndcg@10` with the grades as gains; `mrr@10`, the reciprocal rank of the first relevant document; `map@100`,
        average precision divided by all relevant documents; `precision@10`, relevant documents among the first 10,
        divided by 10; `recall@10` and `recall@100`, the share of relevant documents found; `success@1`, whether the
        first document is relevant; `unjudged@10`, the share of the first 10 hits that have no grade (all other metrics
        count them as not relevant).

    Raises:
        SourceError: no query has a relevant document.
    """
    judged = {query: grades for query, grades in judgements.items() if any(grade > 0 for grade in grades.values())}
    if not judged:
        raise SourceError("no query has a relevant document", "Grade relevant documents above 0.")
    return {query: measure_ranking(rankings[query], grades) for query, grades in judged.items()}


def mean_scores(scores: QueryScores) -> dict[str, float]:
    """Compute the mean of each metric over the queries, at least one."""
    return {name: sum(own[name] for own in scores.values()) / len(scores) for name in METRICS}


def measure_ranking(ranking: Sequence[str], grades: Grades) -> dict[str, float]:
    """Compute the metrics of `measure_queries` for one query.

    Args:
        ranking: Documents, best first, without duplicates.
        grades: Document → grade, at least one above 0.
    """
    gains = [max(0, grades.get(document, 0)) for document in ranking[:DEPTH]]
    relevant = sum(grade > 0 for grade in grades.values())
    ranks = [rank for rank, gain in enumerate(gains, start=1) if gain > 0]
    in_ten = sum(rank <= 10 for rank in ranks)
    first = ranks[0] if ranks else math.inf
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    unjudged = [document not in grades for document in ranking[:10]]
    values = {
        "ndcg@10": _discounted_gain(gains[:10]) / _discounted_gain(ideal[:10]),
        "mrr@10": 1 / first if first <= 10 else 0.0,
        "map@100": sum(place / rank for place, rank in enumerate(ranks, start=1)) / relevant,
        "precision@10": in_ten / 10,
        "recall@10": in_ten / relevant,
        "recall@100": len(ranks) / relevant,
        "success@1": float(first == 1),
        "unjudged@10": sum(unjudged) / len(unjudged) if unjudged else 0.0,
    }
    return {name: 100 * values[name] for name in METRICS}


def _discounted_gain(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(1 + rank) for rank, gain in enumerate(gains, start=1))
