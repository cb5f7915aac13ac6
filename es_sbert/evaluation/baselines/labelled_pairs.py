"""Pairs of texts with a class, as natural language inference data has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.tabular import read_table


@dataclass(frozen=True)
class LabelledPairs:
    """Pairs of texts with a class.

    Attributes:
        first: The first text of each pair (premises).
        second: The second (hypotheses).
        labels: ``(pairs,)`` int64: the number of each pair's class, from 0.
        classes: The classes' names, in the order of their numbers.
    """

    first: Sequence[str]
    second: Sequence[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


def read_labelled_pairs(
    path: Path, columns: tuple[str, str, str], classes: Sequence[str] | None = None
) -> LabelledPairs:
    """Read pairs from a table.

    Args:
        path: Anything that `read_table` reads.
        columns: Names of the columns of the first text, the second text and the class.
        classes: The classes there are; all that occur, in the order of the alphabet, by default.

    Raises:
        SourceError: the file is missing or broken, a text or class is empty, or a class is none of `classes`.
    """
    table = read_table(path, columns)
    problems = table.problems()
    first, second = table.texts(columns[0], problems), table.texts(columns[1], problems)
    names = [value if isinstance(value, str) else str(value) for value in table.columns[columns[2]]]
    known = tuple(sorted(set(names))) if classes is None else tuple(classes)
    numbers = {name: number for number, name in enumerate(known)}
    for line, value, name in zip(table.lines.tolist(), table.columns[columns[2]], names, strict=True):
        if value is None or not name.strip():
            problems.add(line, f"{columns[2]} is missing")
        elif name not in numbers:
            problems.add(line, f"{columns[2]} is {name!r}, none of {', '.join(known)}")
    problems.check("Mend these rows, or leave them out.")
    labels = np.array([numbers[name] for name in names], dtype=np.int64)  # (pairs,)
    return LabelledPairs(first, second, labels, known)
