"""Layouts measured on real engines against numpy; temporary indices are deleted whatever happens."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from es_sbert.diagnostics.index_advice import VectorLayout, advise
from es_sbert.diagnostics.recall import fill_index, leftover_indices, temporary_index
from es_sbert.engines.engine import Engine
from es_sbert.errors import RequestFailed
from es_sbert.index.document_vectors import bulk_vector_value
from es_sbert.index.mapping import ChunkRules, IndexType
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.settings import AdviceRequest
from tests.engine.vectors import fill, random_vectors
from tests.raised import raises_as_recorded

pytestmark = pytest.mark.one_engine

DIMENSIONS, COUNT, QUERIES = 64, 500, 40


def measure_only(monkeypatch: pytest.MonkeyPatch, *index_types: IndexType) -> None:
    monkeypatch.setattr("es_sbert.diagnostics.index_advice.supported_index_types", lambda info: index_types)


def test_layouts_are_measured_on_temporary_indices(
    engine: Engine, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_only(monkeypatch, IndexType.INT8_HNSW, IndexType.FLAT)
    field = fill(engine, index_name, COUNT, DIMENSIONS)
    before = engine.get_index(index_name)
    queries = random_vectors(QUERIES, DIMENSIONS, seed=7)
    request = AdviceRequest(dimensions=(DIMENSIONS, 32), min_recall=0.9)
    said: list[str] = []
    with temporary_index(engine, {}, pytest.fail) as other:
        found = advise(engine, index_name, field, request, queries, report=said.append)
    assert any(f"`DELETE /{other}`" in line for line in said)

    assert (found.vectors, found.sampled, found.queries) == (COUNT, COUNT, QUERIES)
    layouts = {row.layout: row for row in found.layouts}
    assert len(layouts) == 2 * 2
    exact = layouts[VectorLayout(DIMENSIONS, IndexType.FLAT)]
    assert exact.recall.mean == 1.0
    # Half of the numbers of random vectors: what numpy finds with them.
    vectors = random_vectors(COUNT, DIMENSIONS)
    half = layouts[VectorLayout(32, IndexType.FLAT)]
    assert half.recall.mean == pytest.approx(expected_recall(queries, vectors, 32), abs=1e-9)
    assert half.recall.mean < 0.9 < layouts[VectorLayout(DIMENSIONS, IndexType.INT8_HNSW)].recall.mean
    assert found.recommended is not None
    assert found.recommended.dimensions == DIMENSIONS
    least = min(row.memory_estimate for row in found.layouts if row.recall.low >= 0.9)
    assert found.recommended.memory_estimate == least

    assert said[-1].startswith(f"{len(layouts)}/{len(layouts)} ")
    after = engine.get_index(index_name)
    assert (before, engine.count(index_name)) == (after, COUNT)
    assert not [name for name in leftover_indices(engine) if engine.count(name) == COUNT]


def expected_recall(queries: np.ndarray, vectors: np.ndarray, length: int) -> float:
    def nearest(a: np.ndarray, b: np.ndarray) -> list[set[int]]:
        a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
        return [set(row[:10].tolist()) for row in np.argsort(-(a @ b.T), axis=1)]

    pairs = zip(nearest(queries, vectors), nearest(queries[:, :length], vectors[:, :length]), strict=True)
    return float(np.mean([len(one & other) / 10 for one, other in pairs]))


def test_temporary_index_is_deleted_after_an_error(engine: Engine) -> None:
    strict = {"mappings": {"dynamic": "strict"}}
    with raises_as_recorded(RequestFailed), temporary_index(engine, strict, pytest.fail) as name:
        fill_index(engine, name, [{}, {"a": 1}])
    assert engine.get_index(name) is None


def test_passages_are_measured_by_their_best_passage(
    engine: Engine, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_only(monkeypatch, IndexType.HNSW)
    rules = ChunkRules.from_tokens(16)
    request = FieldRequest("embedding", "a" * 32, "model-a", DIMENSIONS, passages=rules)
    field = ensure_vector_field(engine, index_name, request, shards=1, replicas=0)
    vectors = random_vectors(2 * COUNT, DIMENSIONS)
    lines = []
    for row in range(COUNT):
        chunks = [
            {"start": 0, "end": 5, "vector": bulk_vector_value(engine.info, vector)}
            for vector in vectors[2 * row : 2 * row + 2]
        ]
        document = orjson.dumps({"embedding": chunks}, option=orjson.OPT_SERIALIZE_NUMPY)
        lines += [b'{"index":{"_id":"%d"}}' % row, document]
    assert all(result.ok for result in engine.bulk(index_name, b"\n".join(lines) + b"\n"))
    wanted = AdviceRequest(dimensions=(DIMENSIONS,))
    found = advise(engine, index_name, field, wanted, random_vectors(QUERIES, DIMENSIONS, seed=7))
    assert (found.vectors, found.sampled) == (2 * COUNT, COUNT)
    [row] = found.layouts
    assert row.recall.mean > 0.9
