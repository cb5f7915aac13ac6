"""The data of each task, read and checked: what models are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Task(StrEnum):
    """What can be measured."""

    STS = "sts"
    TRIPLET = "triplet"
    ARGUMENT = "argument"
    TRANSFER = "transfer"
    DUPLICATES = "duplicates"
    RETRIEVAL = "retrieval"


@dataclass(frozen=True)
class ScoredPairs:
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
class Classification:
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
class LabelledPairs:
    """Pairs that are duplicates (1) or not (0) (task `duplicates`).

    Attributes:
        labels: *Shape:* ``(pairs,)``.
    """

    name: str
    first: list[str]
    second: list[str]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Collection:
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


Data = ScoredPairs | Triplets | ArgumentPairs | Classification | LabelledPairs | Collection
