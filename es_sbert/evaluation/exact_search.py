"""Rank documents for queries in memory, by exact cosine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from es_sbert.evaluation.beir_files import RetrievalCollection
from es_sbert.evaluation.evaluated_models import SentenceEmbedder, check_finite, embed_columns
from es_sbert.evaluation.ranking_metrics import DEPTH, Rankings
from es_sbert.vectors import unit_vectors

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
