"""Rank documents for queries by exact cosine, and measure rankings with the definitions of trec_eval.

The metrics are nDCG, MRR, MAP, precision, recall, success, and unjudged hits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import SourceError
from es_sbert.evaluation.beir_files import RetrievalCollection
from es_sbert.evaluation.evaluated_models import SentenceEmbedder, check_finite, embed_columns
from es_sbert.vectors import unit_vectors

DEPTH = 100  # maximum number of hits that a metric considers
MAIN_METRIC = "ndcg@10"  # for decisions that need a single metric
METRICS = (MAIN_METRIC, "mrr@10", "map@100", "precision@10", "recall@10", "recall@100", "success@1", "unjudged@10")

Rankings = Mapping[str, Sequence[str]]  # query → documents, best first, without duplicates
Grades = Mapping[str, int]  # document → grade
QueryScores = dict[str, dict[str, float]]  # query → metric → value

# Size of the blocks of scores in memory: 64 queries by 65,536 documents are 16 MB.
_QUERIES, _DOCUMENTS = 64, 1 << 16


def search_exact(
    queries: NDArray[np.float32], documents: NDArray[np.float32], k: int, own: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Find the k documents with the largest cosine for each query, exactly. Blocks bound the memory use.

    Args:
        queries: *Shape:* ``(queries, dimensions)``.
        documents: *Shape:* ``(documents, dimensions)``.
        k: Maximum number of documents per query.
        own: *Shape:* ``(queries,)``: row of the document that is the query itself, which is excluded; −1 for none.

    Returns:
        Rows of documents and their cosines, *shape* ``(queries, at most k)`` each, best first; equal cosines in the
        order of the documents. If fewer are left, the rows end with −1 and −∞.

    Raises:
        ModelError: a value is not a finite number.
    """
    check_finite(queries, documents)
    width = min(k, len(documents))
    rows = np.full((len(queries), width), -1, dtype=np.int64)  # (queries, k)
    cosines = np.full((len(queries), width), -np.inf, dtype=np.float32)  # (queries, k)
    for first in range(0, len(documents), _DOCUMENTS):
        block = unit_vectors(documents[first : first + _DOCUMENTS])  # (block, dimensions)
        for begin in range(0, len(queries), _QUERIES):
            some = slice(begin, begin + _QUERIES)
            scores = unit_vectors(queries[some]) @ block.T  # (some queries, block)
            if own is not None:
                here = np.flatnonzero((own[some] >= first) & (own[some] < first + len(block)))
                scores[here, own[some][here] - first] = -np.inf
            best = _top_k(scores, width)  # (some queries, at most k)
            # Put earlier hits first, so that a stable sort keeps the order of the documents.
            merged = np.hstack([cosines[some], np.take_along_axis(scores, best, axis=1)])
            places = np.hstack([rows[some], first + best])
            order = np.argsort(-merged, axis=1, kind="stable")[:, :width]
            cosines[some] = np.take_along_axis(merged, order, axis=1)
            rows[some] = np.take_along_axis(places, order, axis=1)
    rows[np.isneginf(cosines)] = -1
    return rows, cosines


def _top_k(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Find the columns of each row's k largest values, best first, ties by column. *Shape:* ``(rows, at most k)``."""
    if k < scores.shape[1]:
        # Sort only values that are at least the k-th largest. Of those that equal it, the first columns are kept.
        least = np.partition(scores, -k, axis=1)[:, -k]  # (rows,)
        result = np.empty((len(scores), k), dtype=np.int64)
        for row, bound in enumerate(least):
            columns = np.flatnonzero(scores[row] >= bound)
            result[row] = columns[np.argsort(-scores[row, columns], kind="stable")[:k]]
        return result
    return np.argsort(-scores, axis=1, kind="stable")


def rank_in_memory(model: SentenceEmbedder, data: RetrievalCollection) -> Rankings:
    """Rank the nearest documents to each query by exact cosine, without the document that is the query itself.

    Of equal cosines, the larger document id ranks first, as in trec_eval.
    """
    queries, documents = list(data.queries), list(data.documents)
    (questions,) = embed_columns(model, list(data.queries.values()), kind="query")
    (corpus,) = embed_columns(model, list(data.documents.values()), kind="document")
    place = {document: row for row, document in enumerate(documents)}
    own = [data.own(query) for query in queries]
    rows = np.array([-1 if document is None else place[document] for document in own], dtype=np.int64)  # (queries,)
    found, cosines = search_exact(questions, corpus, DEPTH, rows)  # (queries, depth) each
    rankings = {}
    for query, places, scores in zip(queries, found.tolist(), cosines.tolist(), strict=True):
        hits = [(cosine, documents[place]) for cosine, place in zip(scores, places, strict=True) if place >= 0]
        rankings[query] = [document for _, document in sorted(hits, reverse=True)]
    return rankings


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
