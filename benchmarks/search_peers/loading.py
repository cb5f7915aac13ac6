"""Load documents whose vectors are ready, with everything else that a load does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import cast

import orjson

from benchmarks.common import seconds
from benchmarks.ready_vectors import ReadyEncoder
from benchmarks.search_peers.corpus import Corpus
from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.diagnostics.recall import force_merge
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.engines.engine import Engine
from es_sbert.index.mapping import IndexType
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load, resolve_sources
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter


def load(engine: Engine, index: str, index_type: IndexType, corpus: Corpus, info: EncoderInfo) -> float:
    """Load all documents into a new index of one shard without replicas, merge it into one segment and refresh it.

    Returns:
        Seconds until then.

    Raises:
        RuntimeError: documents are missing.
    """
    field = FieldRequest(
        DEFAULT_VECTOR_FIELD, info.fingerprint, info.model, info.dimensions, index_type=index_type, text="{text}"
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "documents.jsonl"
        with file.open("wb") as lines:
            for id, text in zip(corpus.ids, corpus.texts, strict=True):
                lines.write(orjson.dumps({"id": id, "text": text}) + b"\n")

        def fill() -> None:
            ensure_vector_field(engine, index, field, shards=1, replicas=0)
            settings = IngestSettings(index=index, files=(str(file),), id_field="id")
            encoder = cast(Encoder, ReadyEncoder(corpus.texts, corpus.vectors, info))
            plan = plan_load(engine, settings, resolve_sources(settings))
            run_load(engine, encoder, plan, LoadControl(), ProgressMeter(), show_summary=False)
            force_merge(engine, index)
            engine.refresh(index)

        took, _ = seconds(fill)
    if engine.count(index) != len(corpus.ids):
        raise RuntimeError(f"{index} has {engine.count(index):,} of {len(corpus.ids):,} documents")
    return took
