"""The evaluation tasks, the data of each, and checks that their readers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import SourceError
from es_sbert.io.tables import MissingColumns, Table, read_table
from es_sbert.messages import setting_text


class EvaluationTask(StrEnum):
    """The tasks of `evaluate`."""

    STS = "sts"
    TRIPLET = "triplet"
    ARGUMENT = "argument"
    TRANSFER = "transfer"
    DUPLICATES = "duplicates"
    RETRIEVAL = "retrieval"


@dataclass(frozen=True)
class TaskInfo:
    """Properties of a task.

    Attributes:
        title: Its title in a model card.
        hub_task: Its name in the front matter of a model card.
        folder: Its folder in the folder of all tasks.
        roles: Roles of columns, including optional ones.
    """

    title: str
    hub_task: str
    folder: str
    roles: tuple[str, ...] = ()


TASKS = {
    EvaluationTask.STS: TaskInfo(
        "Semantic textual similarity", "semantic-similarity", "sts", ("sentence1", "sentence2", "score", "subset")
    ),
    EvaluationTask.TRIPLET: TaskInfo("Triplets", "triplet", "triplets", ("anchor", "positive", "negative")),
    EvaluationTask.ARGUMENT: TaskInfo(
        "Argument similarity", "semantic-similarity", "argument", ("topic", "sentence_1", "sentence_2", "label")
    ),
    EvaluationTask.TRANSFER: TaskInfo(
        "SentEval", "text-classification", "transfer", ("text", "sentence1", "sentence2", "label")
    ),
    EvaluationTask.DUPLICATES: TaskInfo(
        "Duplicates", "binary-classification", "duplicates", ("question1", "question2", "is_duplicate")
    ),
    EvaluationTask.RETRIEVAL: TaskInfo("Retrieval", "information-retrieval", "retrieval"),
}


@dataclass(frozen=True)
class StsPairs:
    """Pairs with gold similarities (task `sts`).

    Attributes:
        name: Name of the data set.
        first, second: Texts, one per pair.
        scores: *Shape:* ``(pairs,)``, on any scale.
        subsets: Name of each pair's subset; None if there are none.
    """

    name: str
    first: list[str]
    second: list[str]
    scores: NDArray[np.float64]
    subsets: list[str] | None = None


@dataclass(frozen=True)
class Triplets:
    """Anchors with a positive and a negative each (task `triplet`)."""

    name: str
    anchors: list[str]
    positives: list[str]
    negatives: list[str]


@dataclass(frozen=True)
class ArgumentPairs:
    """Pairs of arguments of one topic (task `argument`).

    Attributes:
        labels: NS, DTORCD, SS or HS, one per pair.
        topics: Topics, one per pair.
    """

    name: str
    first: list[str]
    second: list[str]
    labels: list[str]
    topics: list[str]


@dataclass(frozen=True)
class LabeledTexts:
    """Texts, or pairs of texts, with classes.

    Attributes:
        texts: One list of texts, or two for pairs.
        classes: Classes, one per example.
    """

    texts: tuple[list[str], ...]
    classes: list[str]


@dataclass(frozen=True)
class ClassificationData:
    """One task of SentEval (task `transfer`).

    Attributes:
        train: Training examples; all examples if there is no `test`.
        dev, test: The other splits; None if the data does not have them.
    """

    name: str
    train: LabeledTexts
    dev: LabeledTexts | None = None
    test: LabeledTexts | None = None


@dataclass(frozen=True)
class DuplicatePairs:
    """Pairs that are duplicates (1) or not (0) (task `duplicates`).

    Attributes:
        labels: *Shape:* ``(pairs,)``.
    """

    name: str
    first: list[str]
    second: list[str]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class RetrievalCollection:
    """A test collection (task `retrieval`).

    Attributes:
        documents: Id → text, with the title in front.
        queries: Id → text; only judged queries.
        judgements: Query → document → grade; 0 is not relevant.
        empty: Ids of documents without text. They are not in `documents` and count as not found.
    """

    name: str
    documents: dict[str, str]
    queries: dict[str, str]
    judgements: dict[str, dict[str, int]]
    empty: tuple[str, ...] = ()

    def own(self, query: str) -> str | None:
        """Id of the document that is the query itself and therefore never relevant; None if there is none.

        Equal ids are not enough: the document must contain the query, because some collections number both alike.
        """
        text, document = self.queries[query].strip(), self.documents.get(query)
        return query if document is not None and text and text in document else None


TaskData = StsPairs | Triplets | ArgumentPairs | ClassificationData | DuplicatePairs | RetrievalCollection

_SAMPLE_SEED = 0


def sample_rows(count: int, limit: int | None) -> NDArray[np.int64]:
    """Choose the rows to keep, ascending, *shape* ``(rows,)``: all of `count`, or `limit` drawn with a fixed seed.

    The first rows would not be a fair sample, because many files are sorted by label or topic.
    """
    if limit is None or limit >= count:
        return np.arange(count, dtype=np.int64)
    drawn = np.random.default_rng(_SAMPLE_SEED).choice(count, size=limit, replace=False)
    return np.sort(drawn).astype(np.int64)


def read_roles(path: Path, roles: Sequence[str], columns: Mapping[str, str]) -> Table:
    """Read a file's columns by their roles.

    Args:
        path: See `read_table`.
        roles: The roles that are needed, which are the default names of the columns.
        columns: Role → column, if the column has another name.

    Returns:
        The table with the roles as names of its columns.

    Raises:
        SourceError: see `read_table`.
    """
    names = {role: columns.get(role, role) for role in roles}
    try:
        table = read_table(path, list(names.values()))
    except MissingColumns as error:
        missing = next(role for role, name in names.items() if name == error.missing[0])
        raise SourceError(
            error.message,
            f"Set the column to read as {missing}: {setting_text('columns', {missing: 'COLUMN'})}, one of "
            f"{', '.join(error.names) or 'none'}.",
        ) from None
    return replace(table, columns={role: table.columns[name] for role, name in names.items()})


def has_roles(path: Path, roles: Sequence[str], columns: Mapping[str, str]) -> bool:
    """Whether a file can be read and has all of these columns in at least one row."""
    try:
        read_roles(path, roles, columns)
    except SourceError:
        # If the file itself is invalid and not only the column, the next read reports it.
        return False
    return True


def check_labels(table: Table, column: str, allowed: Sequence[str]) -> None:
    """Check that all labels are allowed.

    Raises:
        SourceError: a label is not allowed; the message names the lines.
    """
    problems = table.problems()
    for value, line in zip(table.columns[column], table.lines.tolist(), strict=True):
        if isinstance(value, bool) or str(value) not in allowed:
            problems.add(line, f"{column} is {value!r}")
    problems.check(f"Use {', '.join(allowed)}.")


def texts_at(table: Table, rows: NDArray[np.int64], *columns: str) -> list[list[str]]:
    """Return the texts in some rows, one list for each column.

    Raises:
        SourceError: a row of the file, kept or not, has no text.
    """
    texts = map(table.texts, columns)
    return [[column[row] for row in rows] for column in texts]
