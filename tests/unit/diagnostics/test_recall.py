"""Which settings are measured, and which of them is recommended."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_sbert.confidence_interval import ConfidenceInterval
from es_sbert.diagnostics.recall import (
    RecallMeasurement,
    RecallReport,
    SearchSetting,
    read_queries,
    recall_lines,
    recall_settings,
    recommend_setting,
)
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import SourceError, UsageError
from es_sbert.index.mapping import IndexType


def row(candidates: int, low: float, oversample: float | None = None) -> RecallMeasurement:
    return RecallMeasurement(
        SearchSetting(candidates, oversample), ConfidenceInterval(low + 0.01, low, low + 0.02), 1.25, 3.0
    )


def test_settings_are_ordered_by_effort() -> None:
    assert [s.num_candidates for s in recall_settings(IndexType.HNSW, 30, (), ())] == [30, 50, 100, 200, 500, 1000]
    quantized = recall_settings(IndexType.BBQ_HNSW, 100, (), ())
    assert all(s.oversample is not None and s.num_candidates >= 100 * s.oversample for s in quantized)
    efforts = [s.effort(100) for s in quantized]
    assert efforts == sorted(efforts)
    assert len(set(quantized)) == len(quantized)
    assert recall_settings(IndexType.INT8_HNSW, 10, (40,), (2.0, 1.0)) == [
        SearchSetting(40, 1.0),
        SearchSetting(40, 2.0),
    ]


@pytest.mark.parametrize(
    ("index_type", "candidates", "oversamples", "message"),
    [
        (IndexType.HNSW, (), (2.0,), "nothing to oversample"),
        (IndexType.HNSW, (5,), (), "between k"),
        (IndexType.HNSW, (10_001,), (), "between k"),
        (IndexType.INT8_HNSW, (), (0.5,), "between 1 and 10"),
    ],
)
def test_invalid_values_are_rejected(
    index_type: IndexType, candidates: tuple[int, ...], oversamples: tuple[float, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        recall_settings(index_type, 10, candidates, oversamples)


def test_recommends_the_least_effort_that_is_surely_enough() -> None:
    rows = [row(10, 0.80), row(50, 0.94), row(100, 0.951), row(200, 0.97)]
    assert recommend_setting(rows, 0.95) == SearchSetting(100, None)
    assert recommend_setting(rows, 0.99) is None


def report_for(target: float) -> RecallReport:
    rows = (row(10, 0.80, 1.5), row(50, 0.94, 2.0))
    best = recommend_setting(rows, target)
    return RecallReport("docs", "embedding", "int8_hnsw", 10, 200, 5000, target, rows, best)


@pytest.mark.parametrize(("target", "said"), [(0.9, "num_candidates 50 and oversample 2"), (0.99, "No setting")])
def test_report_states_the_recommendation(target: float, said: str) -> None:
    report = report_for(target)
    text = "\n".join(recall_lines(report, EngineType.ELASTICSEARCH))
    assert said in text
    assert "0.9500     0.9400–0.9600        1.2      3.0" in text
    assert "ef_search" in recall_lines(report, EngineType.OPENSEARCH)[1]


def test_read_queries_rejects_invalid_files(tmp_path: Path) -> None:
    file = tmp_path / "queries.txt"
    file.write_text("one\n\n  two words \n", encoding="utf-8")
    assert read_queries(file) == ["one", "two words"]
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SourceError, match="not UTF-8"):
        read_queries(file)
    file.write_text(" \n")
    with pytest.raises(SourceError, match="holds no queries"):
        read_queries(file)
    with pytest.raises(SourceError, match="cannot be read"):
        read_queries(tmp_path)
