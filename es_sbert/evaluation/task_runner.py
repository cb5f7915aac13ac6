"""Evaluate a model on the data of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import SourceError, UsageError
from es_sbert.evaluation.beir_files import RetrievalCollection
from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder, embed_columns
from es_sbert.evaluation.evaluation_report import EvaluationReport, ReportRow, average_row, retrieval_row
from es_sbert.evaluation.pair_metrics import (
    Similarity,
    correlate,
    duplicates,
    paired_similarity,
    sts_correlations,
    triplet_accuracy,
)
from es_sbert.evaluation.ranking import rank_in_memory
from es_sbert.evaluation.task_data import EvaluationTask, TaskData, TaskTexts

Vectors = NDArray[np.float32]
Model = SentenceEmbedder | PairScorer


def run_task(
    model: Model,
    task: EvaluationTask,
    data: Sequence[TaskData],
    *,
    settings: Mapping[str, str | int | float | None] | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> EvaluationReport:
    """Evaluate a model on a task.

    Args:
        model: The model.
        task: The task.
        data: Data of the task, as `read_task_data` returns it.
        settings: Settings to record in the report.
        progress: Called with progress messages.

    Returns:
        The figures of each data set, and for several collections of retrieval their average.

    Raises:
        UsageError: the task needs sentence vectors, but the model only scores pairs.
        SourceError: no metric is defined for the data (all of one class, …).
        ModelError: the model returned NaN or infinite values.
    """
    if task in (EvaluationTask.TRIPLET, EvaluationTask.RETRIEVAL) and not isinstance(model, SentenceEmbedder):
        raise UsageError(
            f"the task {task} needs sentence vectors, but {model.name} only scores pairs",
            "Evaluate it on sts or duplicates, or use a sentence encoder.",
        ).about("tasks", task)
    rows: list[ReportRow] = []
    for each in data:
        progress(f"{task}: {each.name}")
        try:
            rows += _evaluate(model, task, each)
        except SourceError as error:
            raise SourceError(f"{each.name}: {error.message}", error.remedy) from error
    if task is EvaluationTask.RETRIEVAL and len(rows) > 1:
        rows.append(average_row(rows))
    return EvaluationReport(task, model.name, tuple(rows), dict(settings or {}))


def _evaluate(model: Model, task: EvaluationTask, data: TaskData) -> list[ReportRow]:
    if isinstance(data, RetrievalCollection):
        assert isinstance(model, SentenceEmbedder), "run_task has checked it"
        return [retrieval_row(data, rank_in_memory(model, data), "in memory")]
    if isinstance(model, SentenceEmbedder):
        vectors = embed_columns(model, *data.columns)
        if task is EvaluationTask.TRIPLET:
            figures = {f"accuracy_{distance}": value for distance, value in triplet_accuracy(*vectors).items()}
            return [_row(data, figures, "triplets")]
        if task is EvaluationTask.STS:
            return [_row(data, _sts_figures(vectors[0], vectors[1], _gold(data)))]
        scores: NDArray[np.floating] = paired_similarity(Similarity.COSINE, *vectors)  # (pairs,)
    else:
        scores = model.score(*data.columns)  # (pairs,)
        if task is EvaluationTask.STS:
            return [_row(data, asdict(correlate(scores, _gold(data))))]
    return [_row(data, asdict(duplicates(scores, _gold(data).astype(np.int64))))]


def _row(data: TaskTexts, figures: dict[str, float], unit: str = "pairs") -> ReportRow:
    return ReportRow(data.name, "all", len(data.columns[0]), unit, figures)


def _gold(data: TaskTexts) -> NDArray[np.float64]:
    assert data.gold is not None, "pairs have scores or labels"
    return data.gold


def _sts_figures(first: Vectors, second: Vectors, gold: NDArray[np.float64]) -> dict[str, float]:
    found = sts_correlations(first, second, gold)
    return {
        f"{name}_{similarity}": getattr(each, name)
        for name in ("spearman", "pearson")
        for similarity, each in found.items()
    }
