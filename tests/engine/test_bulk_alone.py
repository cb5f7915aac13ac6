"""The loads of the comparisons that send ready vectors, without a model."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.ingest_peers.bulk_alone import load_ready_vectors
from benchmarks.ready_vectors import ReadyEncoder
from benchmarks.search_peers.corpus import Corpus
from benchmarks.search_peers.loading import load
from es_sbert.engines.engine import Engine
from es_sbert.index.mapping import IndexType


def test_ready_vectors_are_loaded(es9_url: str, fresh_index: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "documents.jsonl"
    file.write_text("".join(json.dumps({"id": str(n), "text": f"text {n}"}) + "\n" for n in range(3)), encoding="utf-8")
    report = load_ready_vectors(es9_url, fresh_index(es9_url), file, np.eye(3, 4, dtype=np.float32), "flat")
    assert report.exit_code == 0
    assert report.indexed == 3


def test_a_corpus_is_loaded_for_the_comparison_of_searches(engine: Engine, index_name: str) -> None:
    corpus = Corpus(["a", "b"], ["one", "two"], np.eye(2, 4, dtype=np.float32))
    info = ReadyEncoder(corpus.texts, corpus.vectors).info
    assert load(engine, index_name, IndexType.HNSW, corpus, info) > 0
