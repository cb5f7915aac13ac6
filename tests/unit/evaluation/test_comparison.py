"""Two retrieval reports compared: by data set, on average, and refused where the queries differ."""

from __future__ import annotations

import pytest

from es_sbert.errors import UsageError
from es_sbert.evaluation.beir_files import RetrievalCollection
from es_sbert.evaluation.evaluation_report import EvaluationReport, average_row, retrieval_row
from es_sbert.evaluation.ranking import METRICS, Rankings
from es_sbert.evaluation.significance import Verdict, compare_reports, comparison_json, comparison_lines
from es_sbert.evaluation.task_data import EvaluationTask
from tests.raised import raises_as_recorded


def _collection(name: str, queries: int) -> RetrievalCollection:
    ids = [f"{name}{number}" for number in range(queries)]
    return RetrievalCollection(name, {}, {id: id for id in ids}, {id: {"right": 1} for id in ids})


def _report(*parts: tuple[RetrievalCollection, Rankings]) -> EvaluationReport:
    rows = [retrieval_row(data, run, "test") for data, run in parts]
    return EvaluationReport(EvaluationTask.RETRIEVAL, "m", (*rows, *([average_row(rows)] if len(rows) > 1 else [])))


def _run(data: RetrievalCollection, rank: int) -> Rankings:
    """The relevant document at a rank."""
    others = [f"other{number}" for number in range(5)]
    return {query: [*others[: rank - 1], "right", *others[rank - 1 :]] for query in data.queries}


def test_average_counts_every_set_the_same() -> None:
    small, large = _collection("small", 8), _collection("large", 40)
    first = _report((small, _run(small, 1)), (large, _run(large, 2)))
    second = _report((small, _run(small, 2)), (large, _run(large, 2)))
    found = compare_reports(first, second)
    assert list(found) == ["small", "large", "average"]
    assert found["small"]["mrr@10"].difference == pytest.approx(50)
    assert found["average"]["mrr@10"].difference == pytest.approx(25)
    assert found["average"]["mrr@10"].first == pytest.approx(first.rows[-1].figures["mrr@10"])
    assert found["small"]["mrr@10"].verdict is Verdict.BETTER
    assert found["large"]["mrr@10"].verdict is Verdict.NOT_DISTINGUISHABLE
    lines = list(comparison_lines(found, ("new", "old")))
    assert lines[0].startswith("small: new is better than old: ndcg@10 +36.91 (95 % interval +36.91 to +36.91, ")
    assert lines[1].startswith("large: new and old are not distinguishable: ")
    assert lines[2].startswith("average: ")
    assert lines[3].startswith("Fewer than 50 queries: ")
    assert lines[4] == "average:"
    assert [line.split()[0] for line in lines[6:]] == list(METRICS)
    plain = comparison_json(found, ("new", "old"))
    assert (plain["first"], plain["differences"]["average"]["mrr@10"]["verdict"]) == ("new", "better")


def test_reports_of_other_queries_are_refused() -> None:
    four, five = _collection("a", 4), _collection("a", 5)
    with raises_as_recorded(UsageError):
        compare_reports(_report((four, _run(four, 1))), _report((five, _run(five, 1))))
    nothing = EvaluationReport(EvaluationTask.STS, "m", ())
    with raises_as_recorded(UsageError):
        compare_reports(nothing, nothing)
