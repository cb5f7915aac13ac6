"""Retrieval through a real index: the figures that users of the index get, graph, quantisation and all.

The only module of evaluation that knows the engines.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import orjson

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.protocol import Engine
from es_sbert.errors import EngineError, IndexMismatch, UsageError
from es_sbert.evaluation.data import Collection, Task
from es_sbert.evaluation.models import Embedder, PairScorer
from es_sbert.evaluation.onnx import OnnxEmbedder
from es_sbert.evaluation.report import Report
from es_sbert.evaluation.retrieval import DEPTH, Run
from es_sbert.evaluation.tasks import retrieval_row
from es_sbert.index.ensure import read_vector_field
from es_sbert.index.layout import has_vector
from es_sbert.ingest.control import Control
from es_sbert.ingest.local import LocalRunner
from es_sbert.ingest.plan import plan
from es_sbert.ingest.progress import Silent
from es_sbert.ingest.run import run
from es_sbert.ingest.settings import IngestSettings
from es_sbert.search.semantic_index import SemanticIndex


def run_live(model: Embedder | PairScorer, data: Collection, index: str, engine: EngineSettings, *,
             vector_field: str, settings: Mapping[str, str | int | float | None] | None = None,
             progress: Callable[[str], None] = lambda message: None) -> Report:  # fmt: skip
    """Measure retrieval from an index; one that does not exist yet is filled with the documents, and kept.

    Args:
        model: A sentence encoder on onnxruntime, as ingest and search run it.
        data: The collection; its document ids are the ids in the index.
        index: Index or alias.
        engine: Where, and how to sign in.
        vector_field: Field of the vectors.
        settings: How it is measured, for the report.
        progress: Told what takes long.

    Raises:
        UsageError: the model does not run on onnxruntime.
        IndexMismatch: the index holds other documents, or vectors of another model.
        EngineError: the engine failed, or did not take a document.
        OutputError: there is no room for temporary files.
    """
    if not isinstance(model, OnnxEmbedder):
        raise UsageError(
            f"{model.name} does not run on onnxruntime, as models of an index do",
            "Measure it in memory (leave --index out), or export it: es-sbert export.",
        )
    with closing(connect(engine)) as opened:
        if opened.get_index(index) is None:
            progress(f"{data.name}: loading {len(data.documents):,} documents into {index}, which is kept")
            _load(opened, model.encoder, index, data, vector_field)
        field = read_vector_field(opened, index, vector_field)
        found = opened.count(index, has_vector(field.name, field.meta))
        if found != len(data.documents):
            raise IndexMismatch(
                f"{index} has vectors of {found:,} documents, {data.name} has {len(data.documents):,}",
                "Name the index that holds this collection, or a new one, which is then loaded.",
            )
        progress(f"{data.name}: {len(data.queries):,} queries to {index}")
        with SemanticIndex(index, opened, encoder=model.encoder, vector_field=vector_field) as semantic:
            ranked = _search(semantic, data)
            kind = semantic.field.meta.index_type
        row = retrieval_row(data, ranked, f"{opened.info.label}, {kind}")
    return Report(Task.RETRIEVAL, model.name, (row,), dict(settings or {}))


def _load(engine: Engine, encoder: Encoder, index: str, data: Collection, vector_field: str) -> None:
    """Fill a new index by the ingest pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        file, dead = Path(folder) / "corpus.jsonl", Path(folder) / "dead-letters.jsonl"
        with file.open("wb") as out:
            for identifier, text in data.documents.items():
                out.write(orjson.dumps({"id": identifier, "text": text}) + b"\n")
        wanted = IngestSettings(index=index, files=(str(file),), id_field="id", text_fields=("text",),
                                vector_field=vector_field, dead_letters=dead)  # fmt: skip
        summary = run(engine, LocalRunner(encoder), plan(engine, wanted), Control(), Silent())
        if summary.indexed != len(data.documents):
            letters = dead.read_bytes().splitlines() if dead.exists() else []
            reason = f": {orjson.loads(letters[0])['reason']}" if letters else ""
            raise EngineError(
                f"{index} took {summary.indexed:,} of {len(data.documents):,} documents{reason}",
                "Mend the documents, remove the index and run again.",
            )
    engine.refresh(index)


def _search(semantic: SemanticIndex, data: Collection) -> Run:
    """One search for each query; one hit more than measured, since a query may find itself."""
    ids = list(data.queries)
    vectors = semantic.encoder.encode(list(data.queries.values()), "query").vectors  # (queries, dimensions)
    ranked: Run = {}
    for query, vector in zip(ids, vectors, strict=True):
        own = data.own(query)
        hits = [hit for hit in semantic.search_vector(vector, DEPTH + 1) if hit.id != own]
        ranked[query] = {hit.id: hit.cosine for hit in hits[:DEPTH]}
    return ranked
