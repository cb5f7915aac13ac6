"""Rank documents for queries: in memory by exact cosine, or by searches of an index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from es_sbert.batched import batched
from es_sbert.config import EngineSettings
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from es_sbert.evaluation.beir_files import RetrievalCollection
from es_sbert.evaluation.evaluated_models import OnnxEmbedder, SentenceEmbedder, check_finite, embed_columns
from es_sbert.evaluation.evaluation_report import EvaluationReport, retrieval_row
from es_sbert.evaluation.ranking_metrics import DEPTH, Rankings
from es_sbert.evaluation.task_data import EvaluationTask
from es_sbert.messages import pluralize
from es_sbert.search.search_request import SearchOptions, search_request
from es_sbert.search.search_scope import ModelOptions, read_search_scope
from es_sbert.search.semantic_index import SemanticIndex

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


def unit_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale rows to unit length, *shape* ``(rows, dimensions)``; rows of zeros do not change."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)


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


Settings = Mapping[str, str | int | float | None]

_IDS_PER_REQUEST = 1000


def evaluate_index(
    data: RetrievalCollection,
    index: str,
    engine: EngineSettings,
    *,
    vector_field: str,
    settings: Settings | None = None,
    **model: Unpack[ModelOptions],
) -> EvaluationReport:
    """Evaluate searches of an index with judgements of its documents.

    Args:
        data: Queries and judgements, see `read_judgements` and `read_beir_folder`; ids of documents are those of the
            index.
        index: Index, alias, pattern, or several names separated by commas.
        engine: Address and credentials.
        vector_field: Field that holds the vectors.
        settings: Settings to record in the report; the index is added.
        model: Options for loading the model; by default, that of the mapping is loaded. `model.report` is called with
            progress messages and warnings.

    Raises:
        IndexMissing, IndexMismatch, ModelError: see `SemanticIndex`.
        EngineError: the engine failed.
    """
    report: Callable[[str], None] = model.get("report") or (lambda message: None)
    with SemanticIndex(index, engine, vector_field=vector_field, **model) as semantic:
        _report_unknown_documents(semantic.engine, index, data, report)
        report(f"{data.name}: {pluralize(len(data.queries), 'query', 'queries')} to {index}")
        rankings = _search_queries(semantic, index, data, vector_field)
        part = f"{index}: {semantic.engine.info.label}, {semantic.field.meta.index_type}"
        name = OnnxEmbedder(semantic.encoder).name
    row = retrieval_row(data, rankings, part)
    return EvaluationReport(EvaluationTask.RETRIEVAL, name, (row,), {**(settings or {}), "index": index})


def _report_unknown_documents(
    engine: Engine, index: str, data: RetrievalCollection, report: Callable[[str], None]
) -> None:
    """Warn about relevant documents that the index does not hold.

    Raises:
        IndexMismatch: the index holds none of the relevant documents.
    """
    relevant = {document for grades in data.judgements.values() for document, grade in grades.items() if grade > 0}
    # Several indices may hold one id, so a batch counts at most its ids.
    batches = batched(sorted(relevant), _IDS_PER_REQUEST)
    found = sum(min(len(ids), engine.count(index, {"ids": {"values": list(ids)}})) for ids in batches)
    if not found:
        some = ", ".join(sorted(relevant)[:3])
        raise IndexMismatch(
            f"{index} holds none of the {pluralize(len(relevant), 'relevant document')} of {data.name} ({some}, …)",
            "Check the index, and that the judgements name documents by their _id.",
        )
    if found < len(relevant):
        report(
            f"Warning: {len(relevant) - found:,} of {pluralize(len(relevant), 'relevant document')} of "
            f"{data.name} are not in "
            f"{index}; they count as not found"
        )


def _search_queries(semantic: SemanticIndex, index: str, data: RetrievalCollection, vector_field: str) -> Rankings:
    """Search each query with one extra hit, because a query may find itself.

    Not by a method of `SemanticIndex`: the model is measured, without the index's search pipeline.
    """
    engine, vectors = semantic.engine, semantic.encoder.encode(list(data.queries.values()), "query")
    scope = read_search_scope(engine, [index], vector_field)
    options: SearchOptions = {"source": False}
    ranked: dict[str, list[str]] = {}
    for query, vector in zip(data.queries, vectors, strict=True):
        own = data.own(query)
        request = search_request(engine.info.engine_type, scope, vector, DEPTH + 1, options)
        hits = request.read([engine.search(request.indices, request.bodies[0], routing=scope.routing)])
        ranked[query] = list(dict.fromkeys(hit.id for hit in hits if hit.id != own))[:DEPTH]
    return ranked
