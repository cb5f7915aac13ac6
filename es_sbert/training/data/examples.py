"""Examples of one data set, read and checked: what batches are cut from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


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

    def with_labels(self, labels: NDArray[np.float32]) -> Examples:
        """The same examples with other labels (a teacher's)."""
        return replace(self, labels=labels)

    def part(self, start: int, count: int | None) -> Examples:
        """`count` examples from the one at `start`, counted from 0; all that follow where it is None."""
        rows = slice(start, None if count is None else start + count)
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, texts=tuple(column[rows] for column in self.texts), labels=labels, lines=self.lines[rows])
