"""Evaluate models (similarity of pairs and triplets, duplicates, retrieval) and the searches of an index.

`evaluate_model` is the entry point. evaluated_models.py opens a model, task_data.py reads the data, task_runner.py
computes the figures of a task, and evaluation_report.py holds and prints them. `evaluate_index` (index_retrieval.py)
evaluates an index by a judgement list, and `compare_reports` (significance.py) compares two reports of retrieval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from es_sbert.arguments import check_arguments, spell_out
from es_sbert.errors import require_extra
from es_sbert.settings import Count, RunOptions, no_report

if TYPE_CHECKING:
    from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder
    from es_sbert.evaluation.evaluation_report import EvaluationReport
    from es_sbert.evaluation.task_data import TaskData


@check_arguments
@spell_out(RunOptions)
def evaluate_model(
    model: str | Path | SentenceEmbedder | PairScorer,
    task: Literal["sts", "triplet", "duplicates", "retrieval"],
    data: str | Path | Sequence[TaskData] | None = None,
    *,
    files: Sequence[str | Path] = (),
    limit: Count | None = None,
    report: Callable[[str], None] = no_report,
    **running: Unpack[RunOptions],
) -> EvaluationReport:
    """Evaluate a model on a task, as `es-sbert evaluate` does. Needs the extra `train`.

    All data is read and checked before the model is opened; `data` may also be what `read_task_data` returned.

    Usage:
        ```python
        report = evaluate_model("all-MiniLM-L6-v2", "sts", "data", report=print)
        print(report.rows)
        ```

    Args:
        model: A folder, bundle, hub id or installed name, which is opened and closed again; or an opened model.
        task: `sts`, `triplet`, `duplicates` or `retrieval`.
        data: Folder of all tasks (sts/, triplets/, …), or of the one task.
        files: Evaluate on this file instead of a folder; may be repeated.
        limit: Use N examples of each file (N queries), the same in every run.
        report: Called with progress messages and warnings.
        running: `device`, `precision`, `runtime` and `threads`. If the model is already open, they are only recorded
            in the report's settings.

    Returns:
        The figures of each data set.

    Raises:
        UsageError: an argument is invalid, the task does not suit the model, or the extra `train` is missing.
        SourceError: the data is missing or invalid; the message names file and line.
        ModelError: the model cannot be opened, or returned NaN or infinite values.
        DeviceError: the device is not available.
    """
    require_extra("train", "scipy", "sklearn")
    from es_sbert.evaluation.evaluated_models import close_model, open_model
    from es_sbert.evaluation.task_data import EvaluationTask, read_task_data
    from es_sbert.evaluation.task_runner import run_task

    kind = EvaluationTask(task)
    if data is None or isinstance(data, str | Path):
        data = read_task_data(kind, data, list(map(Path, files)), limit=limit, report=report)
    opened = open_model(str(model), report=report, **running) if isinstance(model, str | Path) else model
    try:
        settings = {name: str(running.get(name, "auto")) for name in ("device", "precision", "runtime")}
        return run_task(opened, kind, data, settings={**settings, "limit": limit}, progress=report)
    finally:
        if opened is not model:
            close_model(opened)


__all__ = ["evaluate_model"]
