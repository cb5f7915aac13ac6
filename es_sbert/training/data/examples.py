"""Examples of a data set, and the columns and labels that an objective needs. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class LabelKind(StrEnum):
    """What stands beside the texts of an example."""

    NONE = "none"
    SCORE = "score"  # float: a similarity, or a teacher's margin
    CLASS = "class"  # integer: the number of a class
    VECTOR = "vector"  # a teacher's sentence vector


@dataclass(frozen=True)
class ExampleSchema:
    """What an objective needs of a data set.

    Attributes:
        roles: Names of the text columns, in the order of the objective.
        label: What kind of label the objective expects.
        repeats_last: Whether the last role may be mapped to any number of columns, none included.
        score_range: For `LabelKind.SCORE`: the range that gold scores are mapped to, or None for scores as they are.
        classes: For `LabelKind.CLASS`: the names of the classes, in the order of their numbers.
        distinct: Whether a text must not stand twice in a batch (in-batch negatives).
        taught: Whether a teacher model makes the labels, so that the data holds none.
    """

    roles: tuple[str, ...]
    label: LabelKind = LabelKind.NONE
    repeats_last: bool = False
    score_range: tuple[float, float] | None = None
    classes: tuple[str, ...] = ()
    distinct: bool = False
    taught: bool = False


@dataclass(frozen=True)
class Examples:
    """One data set.

    Attributes:
        name: Of the data set in the recipe.
        path: Where it was read from.
        texts: One list for each text column of the objective, in the order of its roles, all of one length.
        labels: Scores ``(examples,)`` float32, classes ``(examples,)`` int64, vectors ``(examples, dimensions)``
            float32, or None.
        lines: ``(examples,)`` int64: the line (or, where the format has none, the row) of each example in its
            file, from 1.
    """

    name: str
    path: Path
    texts: tuple[list[str], ...]
    labels: NDArray[np.float32] | NDArray[np.int64] | None
    lines: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lines)

    def origin(self, example: int) -> str:
        """Where an example comes from, for messages: `pairs.tsv, line 17`."""
        return f"{self.path}, line {self.lines[example]}"

    def replace_labels(self, labels: NDArray[np.float32]) -> Examples:
        """The same examples with other labels (a teacher's)."""
        return replace(self, labels=labels)

    def part(self, start: int, count: int | None) -> Examples:
        """`count` examples from the one at `start`, counted from 0; all that follow where it is None."""
        rows = slice(start, None if count is None else start + count)
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, texts=tuple(column[rows] for column in self.texts), labels=labels, lines=self.lines[rows])
