"""Which layouts are measured, what is recommended, and which command leads there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from es_sbert.diagnostics.confidence_interval import ConfidenceInterval
from es_sbert.diagnostics.index_advice import (
    LayoutMeasurement,
    VectorLayout,
    VectorSample,
    change_command,
    estimate_size,
    layouts_to_measure,
    recommend_layout,
)
from es_sbert.diagnostics.recall import RecallQueries
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.errors import UsageError
from es_sbert.index.mapping import IndexType, VectorFieldMeta
from es_sbert.index.vector_field import VectorField
from es_sbert.settings import AdviceRequest
from tests.engine.vectors import cosines, random_vectors
from tests.raised import raises

ES9 = EngineInfo(EngineType.ELASTICSEARCH, (9, 4, 3), "http://localhost:9200")


def field(index_type: str = "hnsw", model: str = "mine", dimensions: int = 384, **meta: Any) -> VectorField:
    return VectorField(
        "docs-1",
        "embedding",
        VectorFieldMeta(fingerprint="a" * 32, model=model, dimensions=dimensions, index_type=index_type, **meta),
    )


def row(layout: VectorLayout, low: float, count: int = 100_000, **values: Any) -> LayoutMeasurement:
    size = estimate_size(ES9, layout.index_type, count, layout.dimensions)
    recall = ConfidenceInterval(low + 0.01, low, low + 0.02)
    made = LayoutMeasurement(
        layout.dimensions, layout.index_type, recall, 1.0, 2.0, False, size.memory, size.disk, "es-sbert …"
    )
    return replace(made, **values)


@pytest.mark.parametrize(
    ("stored", "layout", "expected"),
    [
        (field(), VectorLayout(384, IndexType.HNSW), None),
        (field(), VectorLayout(384, IndexType.BBQ_HNSW),
         "es-sbert index migrate docs --index-type bbq_hnsw"),
        (field(), VectorLayout(128, IndexType.HNSW), "es-sbert index migrate docs --model mine@128"),
        (field(model="mine@256", dimensions=256), VectorLayout(128, IndexType.INT8_HNSW),
         "es-sbert index migrate docs --model mine@128 --index-type int8_hnsw"),
        (replace(field(model="a b"), name="v"), VectorLayout(128, IndexType.HNSW),
         "es-sbert index migrate docs --model 'a b@128' --vector-field v"),
    ],
)  # fmt: skip
def test_command_changes_what_differs(stored: VectorField, layout: VectorLayout, expected: str | None) -> None:
    assert change_command("docs", stored, layout) == expected


def test_recall_of_exact_search_by_truncated_vectors() -> None:
    vectors, queries = random_vectors(100, 16), random_vectors(20, 16, seed=1)
    sample = VectorSample(vectors, range(100), [(0, 0)] * 100, RecallQueries(queries, ["7"] * 20))
    assert sample.exact_recalls(16) == [1.0] * 20
    expected = [
        len(set(np.argsort(-cosines(query, vectors))[:10]) & set(np.argsort(-cosines(query[:4], vectors[:, :4]))[:10]))
        / 10
        for query in queries
    ]
    assert sample.exact_recalls(4) == pytest.approx(expected)


def test_least_memory_that_keeps_the_recall_is_recommended() -> None:
    rows = [
        row(VectorLayout(128, IndexType.BBQ_HNSW), 0.90),
        row(VectorLayout(128, IndexType.INT8_HNSW), 0.95),
        row(VectorLayout(384, IndexType.HNSW), 0.99),
    ]
    current = VectorLayout(256, IndexType.HNSW)
    assert recommend_layout(rows, current, 0.95) is rows[1]
    assert recommend_layout(rows, current, 0.951) is rows[2]
    assert recommend_layout(rows, current, 0.995) is None
    with raises(UsageError, "dimensions", 128):
        layouts_to_measure(ES9, 64, 9, AdviceRequest(dimensions=(32, 128)))
