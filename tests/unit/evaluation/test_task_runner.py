"""Every task on models with fixed vectors or scores: which figures come out, and what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from es_sbert.errors import SourceError, UsageError
from es_sbert.evaluation.beir_files import RetrievalCollection
from es_sbert.evaluation.evaluation_report import ReportRow
from es_sbert.evaluation.task_data import EvaluationTask, TaskTexts
from es_sbert.evaluation.task_runner import run_task
from tests.raised import raises, raises_as_recorded
from tests.unit.evaluation.support import FixedEmbedder, FixedScorer

# The cosine with a falls from b to d.
PLANE = {"a": [1, 0], "b": [1, 0.2], "c": [1, 1], "d": [0, 1]}
STS = TaskTexts("s", (["a"] * 3, ["b", "c", "d"]), np.array([5.0, 1.0, 3.0]))
TRIPLETS = TaskTexts("t", (["a", "a"], ["b", "d"], ["c", "c"]))
DUPLICATES = TaskTexts("d", (["a"] * 3, ["b", "c", "d"]), np.array([1.0, 1.0, 0.0]))
COLLECTION = RetrievalCollection("r", {"a": "a", "1": "b", "2": "d"}, {"a": "a"}, {"a": {"1": 1}})


def only(rows: tuple[ReportRow, ...]) -> ReportRow:
    assert len(rows) == 1
    return rows[0]


def test_sts_with_an_embedder() -> None:
    embedder = FixedEmbedder(PLANE)
    report = run_task(embedder, EvaluationTask.STS, [STS], settings={"limit": None})
    row = only(report.rows)
    assert (row.data, row.part, row.size, row.unit) == ("s", "all", 3, "pairs")
    assert list(row.figures) == [
        f"{name}_{similarity}"
        for name in ("spearman", "pearson")
        for similarity in ("cosine", "euclidean", "manhattan", "dot")
    ]
    # Ranks 3, 2, 1 against 3, 1, 2.
    assert row.figures["spearman_cosine"] == pytest.approx(50)
    assert (report.task, report.model, report.settings) == (EvaluationTask.STS, "fixed", {"limit": None})
    assert embedder.texts == 4  # each text once, however often it stands in the data


def test_triplets() -> None:
    row = only(run_task(FixedEmbedder(PLANE), EvaluationTask.TRIPLET, [TRIPLETS]).rows)
    assert row.figures == {"accuracy_cosine": 50.0, "accuracy_euclidean": 50.0, "accuracy_manhattan": 50.0}
    assert (row.size, row.unit) == (2, "triplets")


def test_duplicates_with_embedder_and_pair_scorer() -> None:
    by_cosine = only(run_task(FixedEmbedder(PLANE), EvaluationTask.DUPLICATES, [DUPLICATES]).rows)
    assert (by_cosine.figures["average_precision"], by_cosine.figures["f1"]) == (100.0, 100.0)
    assert by_cosine.figures["f1_threshold"] == pytest.approx(np.sqrt(0.5) / 2)
    scorer = FixedScorer({("a", "b"): 1, ("a", "c"): 0, ("a", "d"): 2})
    by_score = only(run_task(scorer, EvaluationTask.DUPLICATES, [DUPLICATES]).rows)
    assert by_score.figures["average_precision"] == pytest.approx(100 * (1 / 2 + 2 / 3) / 2)
    by_gold = only(run_task(scorer, EvaluationTask.STS, [replace(STS, gold=np.array([1.0, 0.0, 2.0]))]).rows)
    assert by_gold.figures == {"spearman": pytest.approx(100), "pearson": pytest.approx(100)}
    with raises(UsageError, "tasks"):
        run_task(scorer, EvaluationTask.TRIPLET, [TRIPLETS])


def test_retrieval_excludes_the_query_and_uses_prompts() -> None:
    embedder = FixedEmbedder(PLANE)
    row = only(run_task(embedder, EvaluationTask.RETRIEVAL, [COLLECTION]).rows)
    assert (row.part, row.size, row.unit) == ("in memory", 1, "queries")
    assert row.figures == {
        **dict.fromkeys(("ndcg@10", "mrr@10", "map@100", "recall@10", "recall@100", "success@1"), 100.0),
        "precision@10": 10.0,
        "unjudged@10": 50.0,
    }
    assert embedder.kinds == ["query", "document"]
    other = replace(COLLECTION, name="other", judgements={"a": {"2": 1}})
    *_, average = run_task(embedder, EvaluationTask.RETRIEVAL, [COLLECTION, other]).rows
    assert (average.data, average.figures["success@1"], average.figures["mrr@10"]) == ("average", 50.0, 75.0)
    with raises_as_recorded(SourceError):
        run_task(embedder, EvaluationTask.RETRIEVAL, [replace(other, judgements={"a": {"2": 0}})])
