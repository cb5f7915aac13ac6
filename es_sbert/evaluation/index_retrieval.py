"""Evaluate searches of an index by judgements of its documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Unpack

from es_sbert.batched import batched
from es_sbert.config import EngineSettings
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch
from es_sbert.evaluation.beir_files import RetrievalCollection
from es_sbert.evaluation.evaluated_models import OnnxEmbedder
from es_sbert.evaluation.evaluation_report import EvaluationReport, retrieval_row
from es_sbert.evaluation.ranking_metrics import DEPTH, Rankings
from es_sbert.evaluation.task_data import EvaluationTask
from es_sbert.messages import pluralize
from es_sbert.search.search_request import search_request
from es_sbert.search.search_scope import ModelOptions, read_search_scope
from es_sbert.search.semantic_index import SemanticIndex
from es_sbert.settings import SearchOptions

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
