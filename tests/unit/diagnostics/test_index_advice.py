"""Which layouts are measured, what is recommended, and which command leads there."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from es_sbert.diagnostics.index_advice import (
    FLAT_MOST_VECTORS,
    AdviceRequest,
    IndexAdvice,
    LayoutMeasurement,
    VectorLayout,
    VectorSample,
    advice_lines,
    change_command,
    estimate_size,
    layouts_to_measure,
    recommend_layout,
)
from es_sbert.diagnostics.recall import ConfidenceInterval, RecallQueries, SearchMeasurement
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.errors import UsageError
from es_sbert.index.mapping import IndexType, VectorFieldMeta
from es_sbert.index.vector_field import VectorField
from tests.engine.vectors import cosines, random_vectors

ES9 = EngineInfo(EngineType.ELASTICSEARCH, (9, 4, 3), "http://localhost:9200")
ES8 = EngineInfo(EngineType.ELASTICSEARCH, (8, 19, 8), "http://localhost:9200")
OPENSEARCH = EngineInfo(EngineType.OPENSEARCH, (3, 6, 0), "http://localhost:9200")


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


def advice(rows: list[LayoutMeasurement], **values: Any) -> IndexAdvice:
    current = VectorLayout(384, IndexType.HNSW)
    searches = [SearchMeasurement(each, ConfidenceInterval(low + 0.01, low, low + 0.02), 1.25, 3.0)
                for each, low in ((10, 0.80), (50, 0.96))]  # fmt: skip
    made = IndexAdvice(
        "docs-1", "embedding", "Elasticsearch 9.4.3", 10, current, 80_000, 5_000, 300, False, 0.95, searches, 50, rows,
        recommend_layout(rows, current, 0.95),
    )  # fmt: skip
    return replace(made, **values)


def test_all_combinations_of_an_engine_are_measured() -> None:
    found = layouts_to_measure(ES9, 384, 1_000, AdviceRequest())
    assert len(found) == len(set(found)) == 4 * 8
    assert {layout.dimensions for layout in found} == {384, 256, 128, 64}
    assert {layout.index_type for layout in layouts_to_measure(OPENSEARCH, 384, 1_000, AdviceRequest())} == {
        IndexType.HNSW,
        IndexType.INT8_HNSW,
        IndexType.FLAT,
    }


def test_types_without_a_graph_are_for_small_indices() -> None:
    large = layouts_to_measure(ES9, 384, FLAT_MOST_VECTORS + 1, AdviceRequest())
    assert all(layout.index_type.endswith("hnsw") for layout in large)


def test_types_that_cannot_hold_so_few_dimensions_are_left_out() -> None:
    found = layouts_to_measure(ES9, 63, 1_000, AdviceRequest())
    assert not {layout.index_type.partition("_")[0] for layout in found} & {"bbq", "int4"}


def test_more_dimensions_than_those_of_the_index_are_refused() -> None:
    with pytest.raises(UsageError, match="the vectors have 384 dimensions, not 385"):
        layouts_to_measure(ES9, 384, 1_000, AdviceRequest(dimensions=(385,)))


@pytest.mark.parametrize(
    ("stored", "layout", "expected"),
    [
        (field(), VectorLayout(384, IndexType.HNSW), None),
        (field(), VectorLayout(384, IndexType.BBQ_HNSW),
         "es-sbert index migrate docs --index-type bbq_hnsw"),
        (field("bbq_hnsw"), VectorLayout(384, IndexType.HNSW),
         "es-sbert index migrate docs --index-type hnsw"),
        (field(), VectorLayout(384, IndexType.INT8_HNSW),
         "es-sbert index migrate docs --index-type int8_hnsw"),
        (field(), VectorLayout(128, IndexType.HNSW), "es-sbert index migrate docs --model mine@128"),
        (field(model="mine@256", dimensions=256), VectorLayout(128, IndexType.INT8_HNSW),
         "es-sbert index migrate docs --model mine@128 --index-type int8_hnsw"),
        (replace(field(model="a b"), name="v"), VectorLayout(128, IndexType.HNSW),
         "es-sbert index migrate docs --model 'a b@128' --vector-field v"),
    ],
)  # fmt: skip
def test_command_changes_what_differs(stored: VectorField, layout: VectorLayout, expected: str | None) -> None:
    assert change_command("docs", stored, layout) == expected


def test_index_without_an_alias_is_replaced() -> None:
    command = change_command("docs-1", field(), VectorLayout(128, IndexType.HNSW))
    assert command == "es-sbert index migrate docs-1 --model mine@128 --replace-index"


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


@pytest.mark.parametrize(
    ("count", "smaller", "low", "changes"),
    [
        (3_000, VectorLayout(384, IndexType.INT8_HNSW), 0.99, False),  # 3.5 MB
        (1_000_000, VectorLayout(384, IndexType.INT8_HNSW), 0.99, True),
        (1_000_000, VectorLayout(370, IndexType.HNSW), 0.99, False),  # 4 %
        (3_000, VectorLayout(384, IndexType.INT8_HNSW), 0.90, True),  # the index misses the recall
    ],
)
def test_change_that_saves_little_is_not_recommended(
    count: int, smaller: VectorLayout, low: float, changes: bool
) -> None:
    now = row(VectorLayout(384, IndexType.HNSW), low, count, command=None)
    found = advice([row(smaller, 0.96, count), now], vectors=count)
    said = "\n".join(advice_lines(found))
    assert found.recommended is found.layouts[0 if changes else 1]
    assert ("There is nothing to gain." in said) is not changes
    assert ("  es-sbert …" in said) is changes


def test_report_has_searches_of_the_whole_index_and_missing_graphs() -> None:
    found = advice([row(VectorLayout(384, IndexType.BBQ_HNSW), 0.96, lacks_graph=True)])
    said = "\n".join(advice_lines(found))
    assert "            50     0.9700  0.9600–0.9800        1.2      3.0 ← recommended" in said
    assert "did not build a graph for so few vectors of bbq_hnsw" in said
    none = advice([], recommended_num_candidates=None)
    assert "None of these reaches a recall of 0.95 with 95 % confidence" in "\n".join(advice_lines(none))
    assert "No layout keeps a recall of 0.95" in advice_lines(none)[-1]
    assert asdict(found)["layouts"][0].keys() == {
        "dimensions", "index_type", "recall", "median_ms", "p95_ms", "lacks_graph", "memory_estimate",
        "disk_estimate", "command",
    }  # fmt: skip
