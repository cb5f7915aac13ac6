"""Vectors that `_source` leaves out: whatever reads vectors reads the same ones as in an ordinary index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_sbert import SemanticIndex
from es_sbert.analysis import read_index, search_duplicates
from es_sbert.analysis.field_writer import FieldWriter
from es_sbert.diagnostics.index_advice import read_sample
from es_sbert.diagnostics.index_calibration import IndexCalibrator
from es_sbert.diagnostics.recall import RecallQueries, measure_index
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import IndexMismatch
from es_sbert.index.vector_field import read_vector_field
from es_sbert.migration.migrate import migrate_index
from tests.conftest import on_every_version
from tests.engine.ingest_support import load, put, sentences, write_jsonl
from tests.engine.vectors import state_of
from tests.raised import raises_as_recorded


def create(engine: Engine, index: str) -> None:
    knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
    engine.create_index(index, {"settings": knn, "mappings": {"_source": {"excludes": ["embedding"]}}})


@on_every_version
def test_all_readers_read_the_same_vectors_as_in_an_ordinary_index(
    engine: Engine,
    engine_url: str,
    fresh_index: Callable[[str], str],
    tiny: Encoder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("es_sbert.diagnostics.index_advice._MIN_DOCUMENTS", 60)
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(60))
    indices = [fresh_index(engine_url) for _ in range(2)]
    create(engine, indices[1])
    for index in indices:
        load(engine_url, tiny, index, path, dead=tmp_path / "dead", id_field="id")
        engine.refresh(index)

    def duplicates(index: str) -> list[list[str]]:
        found = search_duplicates(index, engine, "embedding", 0.9, num_candidates=100)
        return [[found.texts.ids[member] for member in group.members] for group in found.groups]

    def measurements(index: str) -> list[Any]:
        field = read_vector_field(engine, index, "embedding")
        queries = tiny.encode(["a river", "a town"], "query")
        recall = measure_index(engine, field, RecallQueries(queries, [None] * 2))[-1].recall.mean
        sample = read_sample(engine, field, 60, queries)
        cosines = IndexCalibrator(engine, index, "embedding").calibrate(tiny, sample=60).cosines
        similar = SemanticIndex(index, engine, encoder=tiny).similar_to("d1", k=5)
        return [
            read_index(index, engine, "embedding").vectors,
            recall,
            np.sort(sample.vectors.sum(axis=1)),
            np.sort(np.concatenate(cosines.relevant)),
            [hit.cosine for hit in similar.hits],
        ]

    assert duplicates(indices[1]) == duplicates(indices[0]) != []
    plain, without = map(measurements, indices)
    assert len(plain[0]) == 60
    for one, other in zip(without, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_documents_are_embedded_in_place_and_migrated(
    engine: Engine, engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    create(engine, index_name)
    put(engine, index_name, sentences(20))
    dead = tmp_path / "dead"
    for _ in range(2):
        load(engine_url, tiny, index_name, dead=dead)
    before = read_index(index_name, engine, "embedding")
    assert len(before) == 20
    with raises_as_recorded(IndexMismatch):
        FieldWriter(engine, index_name, "embedding", "group", policy=RetryPolicy(30))

    wanted = {"name": f"{index_name}-new", "index_type": "int8_hnsw", "replace_index": True, "dead_letters": dead}
    try:
        moved = migrate_index(index_name, engine, encoder=tiny, retry_seconds=30, **wanted)
        assert (moved.finished, moved.copied, moved.embedded, moved.compared) == (True, 20, 20, 20)
        after = read_index(index_name, engine, "embedding")
        np.testing.assert_allclose(after.vectors, before.vectors, atol=1e-6)
    finally:
        engine.delete_index(f"{index_name}-new")


def test_passages_are_refused_before_anything_is_written(
    engine: Engine, engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    path, dead = write_jsonl(tmp_path / "docs.jsonl", sentences(3)), tmp_path / "dead"
    create(engine, index_name)
    for files in ((path,), ()):
        with raises_as_recorded(IndexMismatch):
            load(engine_url, tiny, index_name, *files, dead=dead, id_field="id" if files else None, passages=8)
        if files:
            engine.bulk(index_name, b'{"index":{"_id":"1"}}\n{"text":"a river"}\n')
            engine.refresh(index_name)
    assert "_meta" not in state_of(engine, index_name).mappings
    assert engine.count(index_name) == 1
