"""Evaluate models with the protocols of the Sentence-BERT paper (Reimers and Gurevych 2019, sections 4 to 6).

`evaluate` is the entry point. evaluated_models.py opens a model, task_data.py and task_files.py read the data,
task_runner.py computes the figures of a task, and evaluation_report.py holds and prints them. `evaluate_judgements`
(index_retrieval.py) evaluates an index by a judgement list, and `compare_reports` (significance.py) compares two
reports of retrieval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.errors import require_extra

if TYPE_CHECKING:
    from es_sbert.config import EngineSettings
    from es_sbert.evaluation.evaluated_models import Backend, PairScorer, SentenceEmbedder
    from es_sbert.evaluation.evaluation_report import EvaluationReport
    from es_sbert.evaluation.task_data import TaskData


def evaluate(
    model: str | Path | SentenceEmbedder | PairScorer,
    task: str,
    data: str | Path | Sequence[TaskData] | None = None,
    *,
    files: Sequence[Path] = (),
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    index: str | None = None,
    engine: EngineSettings | None = None,
    vector_field: str = DEFAULT_VECTOR_FIELD,
    backend: Backend = "auto",
    device: str = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    threads: int | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> EvaluationReport:
    """Evaluate a model on a task. Needs the extra `train`.

    All data is read and checked before the model is opened.

    Args:
        model: A folder, bundle, hub id or installed name, which is opened and closed again; or an opened model.
        task: `sts`, `triplet`, `argument`, `transfer`, `duplicates` or `retrieval`.
        data: Folder of the data (see `task_files.py` for the layout), or data sets that `read_task_data` returned.
        files: Data files instead of a folder.
        columns: Role, such as `score` → name of the column in the data.
        limit: Maximum number of examples (for retrieval: queries) of each file, drawn with a fixed seed.
        index: For `retrieval`: search this index instead of memory. A missing index is created and loaded.
        engine: Address and credentials of the engine that holds `index`.
        vector_field: Field of the index that holds the vectors.
        backend, device, precision, runtime, threads: Options for running the model, see `open_model`. If the model is
            already open, they are only recorded in the report's settings.
        report: Called with progress messages and warnings.

    Returns:
        The figures of each data set.

    Raises:
        UsageError: an argument is invalid, the task does not suit the model, or the extra `train` is missing.
        SourceError: the data is missing or invalid; the message names file and line.
        ModelError: the model cannot be opened, or returned NaN or infinite values.
        DeviceError: the device is not available.
        EngineError, IndexMismatch: `index` cannot be used.
    """
    require_extra("train", "scipy", "sklearn", "yaml")
    from es_sbert.evaluation.evaluated_models import close_model, open_model
    from es_sbert.evaluation.task_data import EvaluationTask
    from es_sbert.evaluation.task_files import read_task_data
    from es_sbert.evaluation.task_runner import run_task

    task = EvaluationTask(task)
    if data is None or isinstance(data, str | Path):
        data = read_task_data(task, data, files, limit=limit, columns=columns, report=report)
    settings = {"backend": backend, "device": device, "precision": precision, "runtime": runtime, "limit": limit}
    if isinstance(model, str | Path):
        opened = open_model(
            str(model),
            backend=backend,
            device=device,
            precision=precision,
            runtime=runtime,
            threads=threads,
            report=report,
        )
    else:
        opened = model
    try:
        if index is None:
            return run_task(opened, task, data, settings=settings, progress=report)
        from es_sbert.config import EngineSettings
        from es_sbert.evaluation.index_retrieval import evaluate_index, single_collection

        collection, engine = single_collection(data), engine or EngineSettings()
        settings["index"] = index
        return evaluate_index(
            opened, collection, index, engine, vector_field=vector_field, settings=settings, progress=report
        )
    finally:
        if opened is not model:
            close_model(opened)


__all__ = ["evaluate"]
