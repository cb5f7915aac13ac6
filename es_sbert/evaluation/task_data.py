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
    """What can be measured."""

    STS = "sts"
    TRIPLET = "triplet"
    ARGUMENT = "argument"
    TRANSFER = "transfer"
    DUPLICATES = "duplicates"
    RETRIEVAL = "retrieval"


@dataclass(frozen=True)
class TaskInfo:
    """What is known of a task.

    Attributes:
        title: For the model card.
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
        name: Of the data set.
        first, second: Texts, one a pair.
        scores: *Shape:* ``(pairs,)``, on any scale.
        subsets: Name of each pair's subset; None where there are none.
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
        labels: NS, DTORCD, SS or HS, one a pair.
        topics: One a pair.
    """

    name: str
    first: list[str]
    second: list[str]
    labels: list[str]
    topics: list[str]


@dataclass(frozen=True)
class LabelledTexts:
    """Texts, or pairs of texts, with classes.

    Attributes:
        texts: One list of texts, or two for pairs.
        classes: One an example.
    """

    texts: tuple[list[str], ...]
    classes: list[str]


@dataclass(frozen=True)
class ClassificationData:
    """One task of SentEval (task `transfer`).

    Attributes:
        train: All examples, where there is no `test`.
        dev, test: Given splits.
    """

    name: str
    train: LabelledTexts
    dev: LabelledTexts | None = None
    test: LabelledTexts | None = None


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
        documents: Id → text, the title in front.
        queries: Id → text; judged ones only.
        judgements: Query → document → grade; 0 is not relevant.
        empty: Ids of documents that have no text and are not among the others: they count as not found.
    """

    name: str
    documents: dict[str, str]
    queries: dict[str, str]
    judgements: dict[str, dict[str, int]]
    empty: tuple[str, ...] = ()

    def own(self, query: str) -> str | None:
        """The document that a query is, if it is one: never an answer to itself.

        Equal ids alone say nothing: some collections number queries and documents alike.
        """
        text, document = self.queries[query].strip(), self.documents.get(query)
        return query if document is not None and text and text in document else None


TaskData = StsPairs | Triplets | ArgumentPairs | ClassificationData | DuplicatePairs | RetrievalCollection

_SAMPLE_SEED = 0


def sample_rows(count: int, limit: int | None) -> NDArray[np.int64]:
    """Rows to keep, rising, *shape* ``(rows,)``: all of `count`, or `limit` of them drawn by a fixed seed.

    Drawn and not cut off at the end: many files are sorted by label or topic.
    """
    if limit is None or limit >= count:
        return np.arange(count, dtype=np.int64)
    drawn = np.random.default_rng(_SAMPLE_SEED).choice(count, size=limit, replace=False)
    return np.sort(drawn).astype(np.int64)


def read_roles(path: Path, roles: Sequence[str], columns: Mapping[str, str]) -> Table:
    """Read a file's columns by what they are for.

    Args:
        path: As for `read_table`.
        roles: What is needed: the names that columns have by default.
        columns: Role → column, where it has another name.

    Returns:
        The table with the roles as names of its columns.

    Raises:
        SourceError: as `read_table`.
    """
    names = {role: columns.get(role, role) for role in roles}
    try:
        table = read_table(path, list(names.values()))
    except MissingColumns as error:
        missing = next(role for role, name in names.items() if name == error.missing[0])
        raise SourceError(
            error.message,
            f"Name the column to be read as {missing}: {setting_text('columns', {missing: 'COLUMN'})}, one of "
            f"{', '.join(error.names) or 'none'}.",
        ) from None
    return replace(table, columns={role: table.columns[name] for role, name in names.items()})


def has_roles(path: Path, roles: Sequence[str], columns: Mapping[str, str]) -> bool:
    """Whether a file can be read and has all of these columns in at least one row."""
    try:
        read_roles(path, roles, columns)
    except SourceError:
        # Where it is the file that is wrong and not the column, the read that follows says so.
        return False
    return True


def check_labels(table: Table, column: str, allowed: Sequence[str]) -> None:
    """Refuse any other label.

    Raises:
        SourceError: with the lines.
    """
    problems = table.problems()
    for value, line in zip(table.columns[column], table.lines.tolist(), strict=True):
        if isinstance(value, bool) or str(value) not in allowed:
            problems.add(line, f"{column} is {value!r}")
    problems.check(f"Use {', '.join(allowed)}.")


def texts_at(table: Table, rows: NDArray[np.int64], *columns: str) -> list[list[str]]:
    """Some rows of columns of texts, one list for each column.

    Raises:
        SourceError: a row of the file, kept or not, has no text.
    """
    texts = map(table.texts, columns)
    return [[column[row] for row in rows] for column in texts]
