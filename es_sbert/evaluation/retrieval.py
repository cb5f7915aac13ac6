"""Evaluate retrieval: nDCG, MRR, MAP and recall of exact search in memory, or of an index with its kNN graph.

ir-measures computes the metrics, with the definitions of trec_eval. `evaluate_index` is the only code of `evaluation`
that connects to an engine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import ir_measures
import orjson
from ir_measures import AP, RR, R, nDCG

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.errors import EngineError, IndexMismatch, SourceError, UsageError
from es_sbert.evaluation.evaluated_models import OnnxEmbedder, PairScorer, SentenceEmbedder
from es_sbert.evaluation.evaluation_report import EvaluationReport, ReportRow
from es_sbert.evaluation.task_data import EvaluationTask, RetrievalCollection, TaskData
from es_sbert.index.mapping import has_vector_query
from es_sbert.index.vector_field import read_vector_field
from es_sbert.ingest.load import LocalRunner, run_load
from es_sbert.ingest.load_plan import IngestSettings, plan_load
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import SilentMeter
from es_sbert.search.semantic_index import SemanticIndex


def retrieval_row(data: RetrievalCollection, run: Run, part: str) -> ReportRow:
    """Metrics of a ranking of a collection."""
    return ReportRow(data.name, part, len(data.queries), "queries", measure_run(run, data.judgements))


DEPTH = 100
_MEASURES = {"ndcg@10": nDCG @ 10, "mrr@10": RR @ 10, "map@100": AP @ DEPTH, "recall@100": R @ DEPTH}

Run = dict[str, dict[str, float]]  # query → document → score


def measure_run(run: Run, judgements: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Metrics of a ranking: means over the judged queries, × 100.

    Args:
        run: For every judged query the documents found, with scores; a query without documents is `{}`. Equal scores
            rank in the order given.
        judgements: Query → document → grade, 0 is not relevant; queries without a relevant document are not judged.

    Returns:
        `ndcg@10` with the grades as gains; `mrr@10`, the reciprocal rank of the first relevant document; `map@100`,
        average precision divided by all relevant documents; `recall@100`, the share of relevant documents found.

    Raises:
        SourceError: no query has a relevant document.
    """
    judged = {query: dict(grades) for query, grades in judgements.items() if any(g > 0 for g in grades.values())}
    if not judged:
        raise SourceError("no query has a relevant document", "Give judgements with grades above 0.")
    values = ir_measures.calc_aggregate(
        list(_MEASURES.values()), judged, {query: _break_ties(run[query]) for query in judged}
    )
    return {name: 100 * float(values[measure]) for name, measure in _MEASURES.items()}


def _break_ties(found: Mapping[str, float]) -> dict[str, float]:
    """Documents with distinct scores: the backends of ir-measures order equal ones differently."""
    ranked = sorted(found, key=lambda document: found[document], reverse=True)  # equal ones stay as they are
    return {document: -float(place) for place, document in enumerate(ranked)}


def single_collection(data: Sequence[TaskData]) -> RetrievalCollection:
    """The only data set, which must be a test collection.

    Raises:
        UsageError: there are several, or none.
    """
    if len(data) != 1 or not isinstance(data[0], RetrievalCollection):
        raise UsageError(
            f"one index holds one collection, and there are {len(data)}: {', '.join(each.name for each in data)}",
            "Name the folder of one: --data FOLDER/retrieval/NAME.",
        )
    return data[0]


def evaluate_index(
    model: SentenceEmbedder | PairScorer,
    data: RetrievalCollection,
    index: str,
    engine: EngineSettings,
    *,
    vector_field: str,
    settings: Mapping[str, str | int | float | None] | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> EvaluationReport:
    """Evaluate retrieval from an index. A missing index is created, loaded with the documents, and kept.

    Args:
        model: A sentence encoder on onnxruntime, as ingest and search run it.
        data: The collection; its document ids are the ids in the index.
        index: Index or alias.
        engine: Address and credentials.
        vector_field: Field that holds the vectors.
        settings: Settings to record in the report.
        progress: Called with progress messages.

    Raises:
        UsageError: the model does not run on onnxruntime.
        IndexMismatch: the index holds other documents, or vectors of another model.
        EngineError: the engine failed or rejected a document.
        OutputError: the disk is full.
    """
    if not isinstance(model, OnnxEmbedder):
        raise UsageError(
            f"{model.name} does not run on onnxruntime, as models of an index do",
            "Measure it in memory (leave --index out), or export it: es-sbert export.",
        )
    with closing(connect(engine)) as opened:
        if opened.get_index(index) is None:
            progress(f"{data.name}: loading {len(data.documents):,} documents into {index}, which is kept")
            _load_collection(opened, model.encoder, index, data, vector_field)
        field = read_vector_field(opened, index, vector_field)
        found = opened.count(index, has_vector_query(field.name, field.meta))
        if found != len(data.documents):
            raise IndexMismatch(
                f"{index} has vectors of {found:,} documents, {data.name} has {len(data.documents):,}",
                "Name the index that holds this data, or a new one, which is then loaded.",
            )
        progress(f"{data.name}: {len(data.queries):,} queries to {index}")
        with SemanticIndex(index, opened, encoder=model.encoder, vector_field=vector_field) as semantic:
            ranked = _search_queries(semantic, data)
            kind = semantic.field.meta.index_type
        row = retrieval_row(data, ranked, f"{opened.info.label}, {kind}")
    return EvaluationReport(EvaluationTask.RETRIEVAL, model.name, (row,), dict(settings or {}))


def _load_collection(
    engine: Engine, encoder: Encoder, index: str, data: RetrievalCollection, vector_field: str
) -> None:
    """Load the documents into a new index with the ingest pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        file, dead = Path(folder) / "corpus.jsonl", Path(folder) / "dead-letters.jsonl"
        with file.open("wb") as out:
            for identifier, text in data.documents.items():
                out.write(orjson.dumps({"id": identifier, "text": text}) + b"\n")
        fields: dict[str, Any] = {"id_field": "id", "text_fields": ("text",), "vector_field": vector_field}
        settings = IngestSettings(index=index, files=(str(file),), dead_letters=dead, **fields)
        summary = run_load(engine, LocalRunner(encoder), plan_load(engine, settings), LoadControl(), SilentMeter())
        if summary.indexed != len(data.documents):
            letters = dead.read_bytes().splitlines() if dead.exists() else []
            reason = f": {orjson.loads(letters[0])['reason']}" if letters else ""
            raise EngineError(
                f"{index} took {summary.indexed:,} of {len(data.documents):,} documents{reason}",
                "Correct the documents, delete the index and run again.",
            )
    engine.refresh(index)


def _search_queries(semantic: SemanticIndex, data: RetrievalCollection) -> Run:
    """Search each query with one extra hit, because a query may find itself."""
    ids = list(data.queries)
    vectors = semantic.encoder.encode(list(data.queries.values()), "query")  # (queries, dimensions)
    ranked: Run = {}
    for query, vector in zip(ids, vectors, strict=True):
        own = data.own(query)
        hits = [hit for hit in semantic.search_vector(vector, DEPTH + 1) if hit.id != own]
        ranked[query] = {hit.id: hit.cosine for hit in hits[:DEPTH]}
    return ranked
