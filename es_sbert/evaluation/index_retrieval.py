"""Evaluate searches of an index by judgements of its documents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from es_sbert.arguments import check_arguments, spell_out
from es_sbert.batched import batched
from es_sbert.engines.connect import EngineOrClient
from es_sbert.engines.engine import Engine
from es_sbert.errors import IndexMismatch, SourceError, about_setting
from es_sbert.evaluation.beir_files import RetrievalCollection, read_beir_folder
from es_sbert.evaluation.evaluated_models import OnnxEmbedder
from es_sbert.evaluation.evaluation_report import EvaluationReport, retrieval_row
from es_sbert.evaluation.judgement_files import read_judgements
from es_sbert.evaluation.ranking import DEPTH, Rankings
from es_sbert.evaluation.task_data import EvaluationTask
from es_sbert.messages import pluralize
from es_sbert.search.search_request import search_request
from es_sbert.search.search_scope import OpenOptions, read_search_scope
from es_sbert.search.semantic_index import SemanticIndex
from es_sbert.settings import Count, SearchOptions, no_report

_IDS_PER_REQUEST = 1000


class EvaluateIndexOptions(OpenOptions, total=False):
    """Keyword arguments of `evaluate_index`: those of `SemanticIndex`, and these.

    Attributes:
        limit: Maximum number of queries.
    """

    limit: Count | None


def read_collection(judgements: str | Path, limit: int | None) -> RetrievalCollection:
    """Read the judgements of `evaluate_index` from a file or a folder."""
    read = read_beir_folder if Path(judgements).is_dir() else read_judgements
    with about_setting("judgements", judgements, SourceError):
        return read(Path(judgements), limit=limit)


@check_arguments
@spell_out(EvaluateIndexOptions)
def evaluate_index(
    index: str,
    judgements: str | Path | RetrievalCollection,
    engine: EngineOrClient = None,
    **options: Unpack[EvaluateIndexOptions],
) -> EvaluationReport:
    """Evaluate searches of an index with judgements of its documents, as `es-sbert evaluate --index` does.

    Usage:
        ```python
        print(evaluate_index("docs", "judgements.csv", "http://localhost:9200").rows)
        ```

    Args:
        index: Index, alias, pattern, or several names separated by commas.
        judgements: A judgement list (query, document, grade), the folder of a test collection, or either as
            `read_judgements` or `read_beir_folder` returned it. Ids of documents are those of the index.
        engine: As for `SemanticIndex`.
        options: See `EvaluateIndexOptions`. By default, the model of the mapping is loaded. `report` is called with
            progress messages and warnings.

    Raises:
        SourceError: the judgements are missing or invalid.
        IndexMissing, IndexMismatch, ModelError: see `SemanticIndex`.
        EngineError: the engine failed.
    """
    limit, opening = options.get("limit"), {name: value for name, value in options.items() if name != "limit"}
    data = judgements if isinstance(judgements, RetrievalCollection) else read_collection(judgements, limit)
    settings: Any = {name: options.get(name, "auto") for name in ("device", "precision", "runtime")} | {"limit": limit}
    report: Callable[[str], None] = options.get("report", no_report)
    with SemanticIndex(index, engine, **opening) as semantic:  # type: ignore[arg-type]
        _report_unknown_documents(semantic.engine, index, data, report)
        report(f"{data.name}: {pluralize(len(data.queries), 'query', 'queries')} to {index}")
        rankings = _search_queries(semantic, index, data)
        part = f"{index}: {semantic.engine.info.label}, {semantic.field.meta.index_type}"
        name = OnnxEmbedder(semantic.encoder).name
    row = retrieval_row(data, rankings, part)
    return EvaluationReport(EvaluationTask.RETRIEVAL, name, (row,), settings | {"index": index})


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


def _search_queries(semantic: SemanticIndex, index: str, data: RetrievalCollection) -> Rankings:
    """Search each query with one extra hit, because a query may find itself.

    Not by a method of `SemanticIndex`: the model is measured, without the index's search pipeline.
    """
    engine, vectors = semantic.engine, semantic.encoder.encode(list(data.queries.values()), "query")
    scope = read_search_scope(engine, [index], semantic.field.name)
    options: SearchOptions = {"source": False}
    ranked: dict[str, list[str]] = {}
    for query, vector in zip(data.queries, vectors, strict=True):
        own = data.own(query)
        request = search_request(engine.info.engine_type, scope, vector, DEPTH + 1, options)
        hits = request.read([engine.search(request.indices, request.bodies[0], routing=scope.routing)])
        ranked[query] = list(dict.fromkeys(hit.id for hit in hits if hit.id != own))[:DEPTH]
    return ranked
