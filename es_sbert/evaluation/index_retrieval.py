"""Evaluate the retrieval of an index, with a collection that is loaded into it or with judgements of its documents."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Unpack

import orjson

from es_sbert.batched import batched
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.errors import EngineError, IndexMismatch, UsageError
from es_sbert.evaluation.evaluated_models import OnnxEmbedder, PairScorer, SentenceEmbedder
from es_sbert.evaluation.evaluation_report import EvaluationReport, retrieval_row
from es_sbert.evaluation.ranking_metrics import DEPTH, Run, ranked_run
from es_sbert.evaluation.task_data import EvaluationTask, RetrievalCollection, TaskData
from es_sbert.index.mapping import has_vector_query
from es_sbert.index.vector_field import read_vector_field
from es_sbert.ingest.ingest_settings import IngestSettings, resolve_sources
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import SilentMeter
from es_sbert.messages import pluralize
from es_sbert.search.search_request import SearchParams, search_request
from es_sbert.search.search_scope import ModelOptions, read_search_scope
from es_sbert.search.semantic_index import SemanticIndex

Settings = Mapping[str, str | int | float | None]

_IDS_PER_REQUEST = 1000


def single_collection(data: Sequence[TaskData]) -> RetrievalCollection:
    """Return the only data set, which must be a test collection.

    Raises:
        UsageError: there are several data sets, or none.
    """
    if len(data) != 1 or not isinstance(data[0], RetrievalCollection):
        raise UsageError(
            f"an index requires exactly one collection, not {len(data)}: {', '.join(each.name for each in data)}",
            "Set the folder of a single collection: `data=FOLDER/retrieval/NAME`.",
        )
    return data[0]


def evaluate_index(
    model: SentenceEmbedder | PairScorer,
    data: RetrievalCollection,
    index: str,
    engine: EngineSettings,
    *,
    vector_field: str,
    settings: Settings | None = None,
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
        IndexMismatch: the index holds a different number of documents, or vectors of another model.
        EngineError: the engine failed or rejected a document.
        OutputError: the disk is full.
    """
    if not isinstance(model, OnnxEmbedder):
        raise UsageError(
            f"searches of an index require a model on onnxruntime, which {model.name} does not run on",
            "Measure it in memory (omit `index`), or export it: `es-sbert export`.",
        )
    with closing(connect(engine)) as opened:
        if opened.get_index(index) is None:
            progress(f"{data.name}: loading {pluralize(len(data.documents), 'document')} into {index}, which is kept")
            _load_collection(opened, model.encoder, index, data, vector_field)
        field = read_vector_field(opened, index, vector_field)
        found = opened.count(index, has_vector_query(field.name, field.meta))
        if found != len(data.documents):
            raise IndexMismatch(
                f"{index} has vectors of {pluralize(found, 'document')}, but {data.name} has {len(data.documents):,}",
                "Use the index that holds this data, or a new one, which is then loaded.",
            )
        progress(f"{data.name}: {pluralize(len(data.queries), 'query', 'queries')} to {index}")
        with SemanticIndex(index, opened, encoder=model.encoder, vector_field=vector_field) as semantic:
            ranked = _search_queries(semantic, index, data, vector_field)
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
        summary = run_load(
            engine, encoder, plan_load(engine, settings, resolve_sources(settings)), LoadControl(), SilentMeter()
        )
        if summary.indexed != len(data.documents):
            letters = dead.read_bytes().splitlines() if dead.exists() else []
            reason = f": {orjson.loads(letters[0])['reason']}" if letters else ""
            raise EngineError(
                f"{index} accepted {summary.indexed:,} of {pluralize(len(data.documents), 'document')}{reason}",
                "Correct the documents, delete the index and run the command again.",
            )
    engine.refresh(index)


def evaluate_judgements(
    data: RetrievalCollection,
    index: str,
    engine: EngineSettings,
    *,
    vector_field: str,
    settings: Settings | None = None,
    **model: Unpack[ModelOptions],
) -> EvaluationReport:
    """Evaluate searches of an existing index with judgements of its documents.

    Args:
        data: Queries and judgements, see `read_judgements`.
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
    report: Callable[[str], None] = model.get("report") or _ignore
    with SemanticIndex(index, engine, vector_field=vector_field, **model) as semantic:
        _report_unknown_documents(semantic.engine, index, data, report)
        report(f"{data.name}: {pluralize(len(data.queries), 'query', 'queries')} to {index}")
        run = _search_queries(semantic, index, data, vector_field)
        part = f"{index}: {semantic.engine.info.label}, {semantic.field.meta.index_type}"
        name = OnnxEmbedder(semantic.encoder).name
    row = retrieval_row(data, run, part)
    return EvaluationReport(EvaluationTask.RETRIEVAL, name, (row,), {**(settings or {}), "index": index})


def _ignore(message: str) -> None:
    """Ignore a message."""


def _report_unknown_documents(
    engine: Engine, index: str, data: RetrievalCollection, report: Callable[[str], None]
) -> None:
    """Warn about relevant documents that the index does not hold.

    Raises:
        IndexMismatch: the index holds none of the relevant documents.
    """
    relevant = {document for grades in data.judgements.values() for document, grade in grades.items() if grade > 0}
    found = _count_documents(engine, index, relevant)
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


def _count_documents(engine: Engine, index: str, ids: Iterable[str]) -> int:
    """Count the ids that exist; the count never exceeds the number of ids, although several indices may hold one."""
    batches = batched(sorted(ids), _IDS_PER_REQUEST)
    return sum(min(len(some), engine.count(index, {"ids": {"values": list(some)}})) for some in batches)


def _search_queries(semantic: SemanticIndex, index: str, data: RetrievalCollection, vector_field: str) -> Run:
    """Search each query with one extra hit, because a query may find itself.

    Not by a method of `SemanticIndex`: the model is measured, without the index's search pipeline.
    """
    engine, vectors = semantic.engine, semantic.encoder.encode(list(data.queries.values()), "query")
    scope = read_search_scope(engine, [index], [vector_field])
    params = SearchParams(k=DEPTH + 1, source=False)
    ranked: dict[str, list[str]] = {}
    for query, vector in zip(data.queries, vectors, strict=True):
        own = data.own(query)
        request = search_request(engine.info.engine_type, scope, {vector_field: vector}, params)
        hits = request.read([engine.search(request.indices, request.bodies[0], routing=request.routing)])
        ranked[query] = list(dict.fromkeys(hit.id for hit in hits if hit.id != own))[:DEPTH]
    return ranked_run(ranked)
