"""The evaluation tasks and their data, read from a folder or from files.

| task | files in the folder | columns |
|---|---|---|
| sts | `sts/NAME-dev`, `sts/NAME-test` | sentence1, sentence2, score |
| triplet | `triplets/NAME-dev`, `triplets/NAME-test` | anchor, positive, negative |
| duplicates | `duplicates/NAME-test` | question1, question2, is_duplicate |
| retrieval | `retrieval/NAME/`, see beir_files.py | _id, title, text; _id, text; query-id, corpus-id, score |

Files may be JSONL, CSV, TSV (each also .gz or .zst) or Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import SourceError, UsageError
from es_sbert.evaluation.beir_files import (
    RetrievalCollection,
    find_collections,
    is_beir_folder,
    read_collection,
    sample_rows,
)
from es_sbert.io.tables import MissingColumns, Table, read_table
from es_sbert.messages import pluralize, setting


class EvaluationTask(StrEnum):
    """The tasks of `evaluate`."""

    STS = "sts"
    TRIPLET = "triplet"
    DUPLICATES = "duplicates"
    RETRIEVAL = "retrieval"


@dataclass(frozen=True)
class TaskInfo:
    """Properties of a task.

    Attributes:
        folder: Its folder in the folder of all tasks.
        texts: Columns of texts.
        gold: Column of scores or labels; empty without one.
        splits: The files that are measured, by the end of their names.
    """

    folder: str
    texts: tuple[str, ...] = ()
    gold: str = ""
    splits: tuple[str, ...] = ()


TASKS = {
    EvaluationTask.STS: TaskInfo("sts", ("sentence1", "sentence2"), "score", ("dev", "test")),
    EvaluationTask.TRIPLET: TaskInfo("triplets", ("anchor", "positive", "negative"), splits=("dev", "test")),
    EvaluationTask.DUPLICATES: TaskInfo("duplicates", ("question1", "question2"), "is_duplicate", ("test",)),
    EvaluationTask.RETRIEVAL: TaskInfo("retrieval"),
}


@dataclass(frozen=True)
class TaskTexts:
    """Pairs of texts (tasks `sts` and `duplicates`), or triplets.

    Attributes:
        name: Name of the data set.
        columns: One list of texts for each column of texts.
        gold: Similarities on any scale (`sts`), or 1 for duplicates and 0 for other pairs; None for triplets.
            *Shape:* ``(examples,)``.
    """

    name: str
    columns: tuple[list[str], ...]
    gold: NDArray[np.float64] | None = None


TaskData = TaskTexts | RetrievalCollection


def read_task_data(
    task: EvaluationTask,
    folder: str | Path | None,
    files: Sequence[Path] = (),
    *,
    limit: int | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> list[TaskData]:
    """Read the data of a task from a folder, sorted by name, or from files, in the given order.

    Args:
        task: The task.
        folder: The folder of all tasks (with `sts/`, `triplets/`, …), or that of this task.
        files: Files instead of a folder; not for retrieval.
        limit: Maximum number of examples (for retrieval: queries) of each file, drawn with a fixed seed.
        report: Called with warnings.

    Raises:
        UsageError: neither or both of `folder` and `files` are set, or files for retrieval.
        SourceError: the folder does not exist or holds no data for the task, or a file is missing or invalid (the
            message names the line).
    """
    if (folder is None) == (not files):
        raise UsageError(
            "a folder or files are required", f"Set either {setting('data')} or {setting('files')}."
        ).about("data")
    if task is EvaluationTask.RETRIEVAL:
        if folder is None:
            raise UsageError("retrieval needs a test collection", f"Set {setting('data')} to its folder.").about("data")
        collections = [
            read_collection(each, limit=limit)
            for some in _beir_folders(_task_folder(task, Path(folder)))
            for each in find_collections(some)
        ]
        for collection in collections:
            _warn_of_empty_documents(collection, report)
        found: list[TaskData] = [*collections]
    else:
        paths = files if folder is None else _task_files(task, _task_folder(task, Path(folder)))
        found = [_read_file(task, path, limit) for path in paths]
    if not found:
        raise SourceError(
            f"{folder} holds no data for the task {task}",
            f"Check {setting('data')}: `es-sbert evaluate --help` and docs/commands/evaluate.md show the layout.",
        ).about("data", folder)
    return found


def _task_folder(task: EvaluationTask, folder: Path) -> Path:
    if not folder.is_dir():
        raise SourceError(f"there is no folder {folder}", f"Check {setting('data')}.").about("data", folder)
    inside = folder / TASKS[task].folder
    return inside if inside.is_dir() else folder


def _beir_folders(folder: Path) -> list[Path]:
    """Return the folder itself if it holds a corpus; otherwise its subfolders that do."""
    return [folder] if is_beir_folder(folder) else sorted(filter(is_beir_folder, folder.iterdir()))


def _task_files(task: EvaluationTask, folder: Path) -> list[Path]:
    """List the files of the splits that a task measures: `stsb-en-test.tsv.gz` is of the split `test`."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return [path for path in files if _dataset_name(path).rpartition("-")[2] in TASKS[task].splits]


def _warn_of_empty_documents(data: RetrievalCollection, report: Callable[[str], None]) -> None:
    if data.empty:
        some = ", ".join(data.empty[:5]) + (", …" if len(data.empty) > 5 else "")
        documents = pluralize(len(data.empty), "document")
        report(f"Warning: {documents} of {data.name} without title and text count as not found: {some}")


def _read_file(task: EvaluationTask, path: Path, limit: int | None) -> TaskTexts:
    info = TASKS[task]
    table = _read_columns(path, list(filter(None, (*info.texts, info.gold))))
    rows = sample_rows(len(table), limit)
    texts = [table.texts(role) for role in info.texts]  # of all rows: one without text is an error, even if not kept
    gold = table.floats(info.gold) if info.gold else None  # (all examples,)
    if gold is not None and task is EvaluationTask.DUPLICATES:
        _check_binary(table, info.gold, gold)
    columns_of_rows = tuple([column[row] for row in rows] for column in texts)
    return TaskTexts(_dataset_name(path), columns_of_rows, None if gold is None else gold[rows])


def _check_binary(table: Table, column: str, labels: NDArray[np.float64]) -> None:
    problems = table.problems()
    for row in np.flatnonzero((labels != 0) & (labels != 1)):
        problems.add(int(table.lines[row]), f"{column} is {table.columns[column][row]!r}")
    problems.check("Use 0 and 1.")


def _read_columns(path: Path, columns: list[str]) -> Table:
    try:
        return read_table(path, columns)
    except MissingColumns as error:
        remedy = f"Rename the columns to {', '.join(columns)}; they are {', '.join(error.names) or 'none'}."
        raise SourceError(error.message, remedy) from None


def _dataset_name(path: Path) -> str:
    """File name without suffixes: `stsb-en-test` for `stsb-en-test.tsv.gz`."""
    return path.name.partition(".")[0]
