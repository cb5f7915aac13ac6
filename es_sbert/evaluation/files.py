"""Reads the data of a task from a folder or from files.

| task | files in the folder | columns |
|---|---|---|
| sts | `sts/NAME-dev`, `sts/NAME-test` | sentence1, sentence2, score; subset where there are several |
| triplet | `triplets/NAME-dev`, `triplets/NAME-test` | anchor, positive, negative |
| argument | `argument/NAME` | topic, sentence_1, sentence_2, label |
| transfer | `transfer/NAME`, or `NAME-train`, `-dev`, `-test` | text, label; for pairs sentence1, sentence2, label |
| duplicates | `duplicates/NAME-test` | question1, question2, is_duplicate |
| retrieval | `retrieval/NAME/`: `corpus.jsonl`, `queries.jsonl`, `qrels/test.tsv` | as in BEIR, see beir.py |

Each file may be JSONL, CSV, TSV (also .gz or .zst) or Parquet; see es_sbert/tabular. Columns of other names are mapped
to these, except those of retrieval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from es_sbert.errors import SourceError, UsageError
from es_sbert.evaluation.argument import GRADES
from es_sbert.evaluation.beir import is_collection, read_collection
from es_sbert.evaluation.data import (
    ArgumentPairs,
    Classification,
    Data,
    LabelledPairs,
    LabelledTexts,
    ScoredPairs,
    Task,
    Triplets,
)
from es_sbert.evaluation.reading import check_labels, has_roles, read_roles, sample, texts_at

_FOLDERS = {
    Task.STS: "sts", Task.TRIPLET: "triplets", Task.ARGUMENT: "argument", Task.TRANSFER: "transfer",
    Task.DUPLICATES: "duplicates", Task.RETRIEVAL: "retrieval",
}  # fmt: skip
# What models are trained on is not measured, except by SentEval's classifier, which is fitted on it.
_MEASURED = {Task.STS: ("dev", "test"), Task.TRIPLET: ("dev", "test"), Task.DUPLICATES: ("test",)}
_SPLITS = ("train", "dev", "test")
# What columns are for, also those that a file need not have.
ROLES = {
    Task.STS: ("sentence1", "sentence2", "score", "subset"),
    Task.TRIPLET: ("anchor", "positive", "negative"),
    Task.ARGUMENT: ("topic", "sentence_1", "sentence_2", "label"),
    Task.TRANSFER: ("text", "sentence1", "sentence2", "label"),
    Task.DUPLICATES: ("question1", "question2", "is_duplicate"),
    Task.RETRIEVAL: (),
}
_AS_NAMED: Mapping[str, str] = {}


def read_folder(
    task: Task, folder: Path, *, limit: int | None = None, columns: Mapping[str, str] = _AS_NAMED
) -> list[Data]:
    """All data sets of a task in a folder, sorted by name.

    Args:
        task: Which.
        folder: The folder of all tasks (with `sts/`, `triplets/`, …), or that of this task.
        limit: At most so many examples (for retrieval: queries) of each file, drawn by a fixed seed.
        columns: As for `read_files`.

    Raises:
        SourceError: there is no such folder, no data of the task in it, or a file that is not as it should be (with
            its line).
    """
    if not folder.is_dir():
        raise SourceError(f"there is no folder {folder}", "Check --data.")
    own = folder / _FOLDERS[task]
    place = own if own.is_dir() else folder
    if task is Task.RETRIEVAL:
        places = [place] if is_collection(place) else sorted(filter(is_collection, place.iterdir()))
        found: list[Data] = [read_collection(each, limit=limit) for each in places]
    else:
        files = sorted(path for path in place.iterdir() if path.is_file() and not path.name.startswith("."))
        splits = _MEASURED.get(task)
        measured = [path for path in files if splits is None or _split(path) in splits]
        found = read_files(task, measured, limit=limit, columns=columns)
    if not found:
        raise SourceError(
            f"{place} holds no data for the task {task}",
            "Check --data: `es-sbert evaluate --help` and docs/commands/evaluate.md show what it should look like.",
        )
    return found


def read_files(
    task: Task, files: Sequence[Path], *, limit: int | None = None, columns: Mapping[str, str] = _AS_NAMED
) -> list[Data]:
    """The data sets that files hold, in the order given; for transfer, splits of one name are one data set.

    Args:
        task: Which.
        files: Of that task.
        limit: At most so many examples of each, drawn by a fixed seed.
        columns: One of the task's `ROLES` → the column of the files, where that has another name.

    Raises:
        SourceError: a file is missing, broken or not as it should be (with its line).
        UsageError: the task is retrieval, whose data is a folder, or a test split has no training split.
    """
    if task is Task.RETRIEVAL:
        raise UsageError("retrieval needs documents, queries and judgements", "Name their folder with --data.")
    if task is Task.TRANSFER:
        return _classifications(files, limit, columns)
    return [_READERS[task](path, limit, columns) for path in files]


def _sts(path: Path, limit: int | None, columns: Mapping[str, str]) -> ScoredPairs:
    roles = ["sentence1", "sentence2", "score"]
    # A column that was named must be there.
    subset = "subset" in columns or has_roles(path, ["subset"], columns)
    table = read_roles(path, [*roles, "subset"] if subset else roles, columns)
    rows = sample(len(table), limit)
    first, second = texts_at(table, "sentence1", rows), texts_at(table, "sentence2", rows)
    subsets = texts_at(table, "subset", rows) if subset else None
    return ScoredPairs(_name(path), first, second, table.floats("score")[rows], subsets)


def _triplets(path: Path, limit: int | None, columns: Mapping[str, str]) -> Triplets:
    table = read_roles(path, ROLES[Task.TRIPLET], columns)
    rows = sample(len(table), limit)
    return Triplets(_name(path), *(texts_at(table, role, rows) for role in ROLES[Task.TRIPLET]))


def _argument(path: Path, limit: int | None, columns: Mapping[str, str]) -> ArgumentPairs:
    table = read_roles(path, ROLES[Task.ARGUMENT], columns)
    rows = sample(len(table), limit)
    check_labels(table, "label", tuple(GRADES))
    first, second, labels, topics = (texts_at(table, column, rows) for column in ("sentence_1", "sentence_2", "label",
                                                                                 "topic"))  # fmt: skip
    return ArgumentPairs(_name(path), first, second, labels, topics)


def _duplicates(path: Path, limit: int | None, columns: Mapping[str, str]) -> LabelledPairs:
    table = read_roles(path, ROLES[Task.DUPLICATES], columns)
    rows = sample(len(table), limit)
    check_labels(table, "is_duplicate", ("0", "1"))
    labels = np.array([int(value) for value in table.columns["is_duplicate"]], dtype=np.int64)  # (pairs,)
    return LabelledPairs(
        _name(path), texts_at(table, "question1", rows), texts_at(table, "question2", rows), labels[rows]
    )


def _classifications(files: Sequence[Path], limit: int | None, columns: Mapping[str, str]) -> list[Data]:
    """Files grouped by the name in front of `-train`, `-dev` and `-test`."""
    groups: dict[str, dict[str, Path]] = {}
    for path in files:
        split = _split(path)
        base = _name(path).removesuffix(f"-{split}")
        if split in groups.setdefault(base, {}):
            raise UsageError(f"{path} and {groups[base][split]} are the same split of {base}", "Name one of the two.")
        groups[base][split] = path
    found: list[Data] = []
    for base, splits in groups.items():
        whole, train = splits.get(""), splits.get("train")
        if whole is not None and len(splits) == 1:
            found.append(Classification(base, _labelled(whole, limit, columns)))
        elif whole is None and train is not None and "test" in splits:
            dev = _labelled(splits["dev"], limit, columns) if "dev" in splits else None
            found.append(
                Classification(base, _labelled(train, limit, columns), dev, _labelled(splits["test"], limit, columns))
            )
        else:
            raise UsageError(
                f"{base} has the files {', '.join(path.name for path in splits.values())}",
                f"Give one file {base} with all examples, or {base}-train and {base}-test (and {base}-dev).",
            )
    return found


def _labelled(path: Path, limit: int | None, columns: Mapping[str, str]) -> LabelledTexts:
    pairs = "sentence1" in columns or has_roles(path, ["sentence1", "sentence2"], columns)
    roles = ("sentence1", "sentence2") if pairs else ("text",)
    table = read_roles(path, [*roles, "label"], columns)
    rows = sample(len(table), limit)
    problems = table.problems()
    for value, line in zip(table.columns["label"], table.lines.tolist(), strict=True):
        if value is None or not str(value).strip():
            problems.add(line, "label is empty")
    problems.check("Give every example a label.")
    classes = [str(table.columns["label"][row]) for row in rows]
    return LabelledTexts(tuple(texts_at(table, role, rows) for role in roles), classes)


_READERS: dict[Task, Callable[[Path, int | None, Mapping[str, str]], Data]] = {
    Task.STS: _sts, Task.TRIPLET: _triplets, Task.ARGUMENT: _argument, Task.DUPLICATES: _duplicates,
}  # fmt: skip


def _name(path: Path) -> str:
    """`stsb-en-test` of `stsb-en-test.tsv.gz`."""
    return path.name.partition(".")[0]


def _split(path: Path) -> str:
    """`test` of `stsb-en-test.tsv.gz`; empty where the name ends in no split."""
    last = _name(path).rpartition("-")[2]
    return last if last in _SPLITS else ""
