"""Read the data of a task from a folder or from files.

| task | files in the folder | columns |
|---|---|---|
| sts | `sts/NAME-dev`, `sts/NAME-test` | sentence1, sentence2, score; subset if there are several |
| triplet | `triplets/NAME-dev`, `triplets/NAME-test` | anchor, positive, negative |
| argument | `argument/NAME` | topic, sentence_1, sentence_2, label |
| transfer | `transfer/NAME`, or `NAME-train`, `-dev`, `-test` | text, label; for pairs sentence1, sentence2, label |
| duplicates | `duplicates/NAME-test` | question1, question2, is_duplicate |
| retrieval | `retrieval/NAME/`, see beir_files.py | _id, title, text; _id, text; query-id, corpus-id, score |

Files may be JSONL, CSV, TSV (each also .gz or .zst) or Parquet. Columns can be mapped to these names, except for
retrieval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from es_sbert.errors import SourceError, UsageError
from es_sbert.evaluation.beir_files import find_collections, is_beir_folder, read_collection
from es_sbert.evaluation.probing import GRADES
from es_sbert.evaluation.task_data import (
    TASKS,
    ArgumentPairs,
    ClassificationData,
    DuplicatePairs,
    EvaluationTask,
    LabeledTexts,
    RetrievalCollection,
    StsPairs,
    TaskData,
    Triplets,
    check_labels,
    has_roles,
    read_roles,
    sample_rows,
    texts_at,
)
from es_sbert.messages import pluralize

_SPLITS = ("train", "dev", "test")
# Tasks that measure only some splits. Only SentEval uses training splits, to fit the classifier.
_MEASURED_SPLITS = {
    EvaluationTask.STS: ("dev", "test"),
    EvaluationTask.TRIPLET: ("dev", "test"),
    EvaluationTask.DUPLICATES: ("test",),
}
_NO_RENAMES: Mapping[str, str] = {}


def read_task_data(
    task: EvaluationTask,
    folder: str | Path | None,
    files: Sequence[Path] = (),
    *,
    limit: int | None = None,
    columns: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> list[TaskData]:
    """Read the data of a task from a folder, or from files.

    Args:
        task: The task.
        folder, files: Exactly one of the two; see `read_folder` and `read_files`.
        limit: Maximum number of examples of each file.
        columns: Role → column. Roles of other tasks are ignored.
        report: Called with warnings.

    Raises:
        UsageError: neither or both of `folder` and `files` are set.
        SourceError: see `read_folder` and `read_files`.
    """
    if (folder is None) == (not files):
        raise UsageError("exactly one of `data` and `files` is required", "Set `data=FOLDER` or `files=FILE`.")
    task_columns = {role: column for role, column in (columns or {}).items() if role in TASKS[task].roles}
    if folder is None:
        return read_files(task, files, limit=limit, columns=task_columns)
    datasets = read_folder(task, Path(folder), limit=limit, columns=task_columns)
    for dataset in datasets:
        if isinstance(dataset, RetrievalCollection) and dataset.empty:
            some = ", ".join(dataset.empty[:5]) + (", …" if len(dataset.empty) > 5 else "")
            documents = pluralize(len(dataset.empty), "document")
            report(f"Warning: {documents} of {dataset.name} without title and text count as not found: {some}")
    return datasets


def read_folder(
    task: EvaluationTask, folder: Path, *, limit: int | None = None, columns: Mapping[str, str] = _NO_RENAMES
) -> list[TaskData]:
    """Read all data sets of a task in a folder, sorted by name.

    Args:
        task: The task.
        folder: The folder of all tasks (with `sts/`, `triplets/`, …), or that of this task.
        limit: Maximum number of examples (for retrieval: queries) of each file, drawn with a fixed seed.
        columns: See `read_files`.

    Raises:
        SourceError: the folder does not exist, holds no data for the task, or has an invalid file (the message names
            the line).
    """
    if not folder.is_dir():
        raise SourceError(f"there is no folder {folder}", "Check `data`.")
    task_folder = folder / TASKS[task].folder
    if not task_folder.is_dir():
        task_folder = folder
    if task is EvaluationTask.RETRIEVAL:
        datasets: list[TaskData] = [
            read_collection(each, limit=limit)
            for folder in _beir_folders(task_folder)
            for each in find_collections(folder)
        ]
    else:
        files = sorted(path for path in task_folder.iterdir() if path.is_file() and not path.name.startswith("."))
        splits = _MEASURED_SPLITS.get(task)
        measured = [path for path in files if splits is None or _split_name(path) in splits]
        datasets = read_files(task, measured, limit=limit, columns=columns)
    if not datasets:
        raise SourceError(
            f"{task_folder} holds no data for the task {task}",
            "Check `data`: `es-sbert evaluate --help` and docs/commands/evaluate.md show the layout.",
        )
    return datasets


def _beir_folders(folder: Path) -> list[Path]:
    """Return the folder itself if it holds a corpus; otherwise its subfolders that do."""
    return [folder] if is_beir_folder(folder) else sorted(filter(is_beir_folder, folder.iterdir()))


def read_files(
    task: EvaluationTask, files: Sequence[Path], *, limit: int | None = None, columns: Mapping[str, str] = _NO_RENAMES
) -> list[TaskData]:
    """Read the data sets in files, in the given order. For transfer, splits with one name are one data set.

    Args:
        task: The task.
        files: Files of the task.
        limit: Maximum number of examples of each file, drawn with a fixed seed.
        columns: Role of the task → column of the files, if the column has another name.

    Raises:
        SourceError: a file is missing or invalid (the message names the line).
        UsageError: the task is retrieval (its data is a folder), or a test split has no training split.
    """
    if task is EvaluationTask.RETRIEVAL:
        raise UsageError("retrieval needs documents, queries and judgements", "Set `data` to their folder.")
    if task is EvaluationTask.TRANSFER:
        return _read_classifications(files, limit, columns)
    return [_read_file(task, path, limit, columns) for path in files]


def _read_file(task: EvaluationTask, path: Path, limit: int | None, columns: Mapping[str, str]) -> TaskData:
    roles = list(TASKS[task].roles)
    # The subset is optional, but a column named by the user must exist.
    if task is EvaluationTask.STS and "subset" not in columns and not has_roles(path, ["subset"], columns):
        roles.remove("subset")
    name, table = _dataset_name(path), read_roles(path, roles, columns)
    rows = sample_rows(len(table), limit)
    if task is EvaluationTask.STS:
        first, second = texts_at(table, rows, "sentence1", "sentence2")
        subsets = texts_at(table, rows, "subset")[0] if "subset" in roles else None
        return StsPairs(name, first, second, table.floats("score")[rows], subsets)
    if task is EvaluationTask.TRIPLET:
        return Triplets(name, *texts_at(table, rows, *roles))
    if task is EvaluationTask.ARGUMENT:
        check_labels(table, "label", tuple(GRADES))
        return ArgumentPairs(name, *texts_at(table, rows, "sentence_1", "sentence_2", "label", "topic"))
    check_labels(table, "is_duplicate", ("0", "1"))
    labels = np.array([int(value) for value in table.columns["is_duplicate"]], dtype=np.int64)  # (pairs,)
    first, second = texts_at(table, rows, "question1", "question2")
    return DuplicatePairs(name, first, second, labels[rows])


def _read_classifications(files: Sequence[Path], limit: int | None, columns: Mapping[str, str]) -> list[TaskData]:
    """Read files, grouped by the name in front of `-train`, `-dev` and `-test`."""
    groups: dict[str, dict[str, Path]] = {}
    for path in files:
        split = _split_name(path)
        base = _dataset_name(path).removesuffix(f"-{split}")
        if split in groups.setdefault(base, {}):
            raise UsageError(
                f"{path} and {groups[base][split]} are the same split of {base}", "Use only one of the two."
            )
        groups[base][split] = path
    found: list[TaskData] = []
    for base, splits in groups.items():
        if set(splits) != {""} and ("" in splits or not {"train", "test"} <= set(splits)):
            raise UsageError(
                f"{base} has the files {', '.join(path.name for path in splits.values())}",
                f"Use one file {base} with all examples, or {base}-train and {base}-test (and {base}-dev).",
            )
        parts = {
            split: _read_labeled_texts(splits[split], limit, columns)
            for split in ("", "dev", "train", "test")
            if split in splits
        }
        train = parts["" if "" in parts else "train"]
        found.append(ClassificationData(base, train, parts.get("dev"), parts.get("test")))
    return found


def _read_labeled_texts(path: Path, limit: int | None, columns: Mapping[str, str]) -> LabeledTexts:
    pairs = "sentence1" in columns or has_roles(path, ["sentence1", "sentence2"], columns)
    roles = ("sentence1", "sentence2") if pairs else ("text",)
    table = read_roles(path, [*roles, "label"], columns)
    rows = sample_rows(len(table), limit)
    problems = table.problems()
    for value, line in zip(table.columns["label"], table.lines.tolist(), strict=True):
        if value is None or not str(value).strip():
            problems.add(line, "label is empty")
    problems.check("Every example needs a label.")
    classes = [str(table.columns["label"][row]) for row in rows]
    return LabeledTexts(tuple(texts_at(table, rows, *roles)), classes)


def _dataset_name(path: Path) -> str:
    """File name without suffixes: `stsb-en-test` for `stsb-en-test.tsv.gz`."""
    return path.name.partition(".")[0]


def _split_name(path: Path) -> str:
    """Split of a file: `test` for `stsb-en-test.tsv.gz`; empty if the name does not end in a split."""
    last = _dataset_name(path).rpartition("-")[2]
    return last if last in _SPLITS else ""
