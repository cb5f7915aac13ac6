"""Columns of a file with the line that each value stands in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.tabular.problems import Problems


@dataclass(frozen=True)
class Table:
    """Some columns of a file.

    Attributes:
        path: The file or folder.
        columns: Name → one value a row: strings in CSV and TSV, else whatever the format holds; None where a JSON
            object lacks the key.
        lines: ``(rows,)`` int64, from 1: the line in which a row begins (a header counts), or the number of the row
            where the format has no lines.
        unit: What `lines` counts: `line` or `row`.
    """

    path: Path
    columns: dict[str, list[Any]]
    lines: NDArray[np.int64]
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.lines)

    def problems(self) -> Problems:
        """A list of problems of this file, empty so far."""
        return Problems(self.path, self.unit)

    def texts(self, column: str, problems: Problems | None = None) -> list[str]:
        """A column of texts, as they are.

        Args:
            column: Its name.
            problems: Takes the rows whose text is missing, no string, or nothing but white space; without it they
                are an error at once.

        Raises:
            SourceError: a row has no text, with the first such lines.
        """
        found = self.problems() if problems is None else problems
        values = self.columns[column]
        for row, value in enumerate(values):
            reason = _no_text(value)
            if reason is not None:
                found.add(int(self.lines[row]), f"{column} {reason}")
        if problems is None:
            found.check("Fill in the text or leave the row out.")
        return values

    def floats(self, column: str, problems: Problems | None = None) -> NDArray[np.float64]:
        """A column of finite numbers, *shape* ``(rows,)``.

        Args:
            column: Its name.
            problems: Takes the rows whose value is no finite number (they are NaN in the result); without it they
                are an error at once.

        Raises:
            SourceError: a value is no finite number, with the first such lines.
        """
        found = self.problems() if problems is None else problems
        numbers = np.array([_number(value) for value in self.columns[column]], dtype=np.float64)  # (rows,)
        for row in np.flatnonzero(~np.isfinite(numbers)):
            found.add(int(self.lines[row]), f"{column} is not a finite number: {_shown(self.columns[column][row])}")
        if problems is None:
            found.check("Write the number in digits, with a decimal point, or leave the row out.")
        return numbers


def _no_text(value: object) -> str | None:
    if value is None:
        return "is missing"
    if not isinstance(value, str):
        return f"is not a text: {_shown(value)}"
    return None if value.strip() else "is empty"


def _number(value: object) -> float:
    """The value as a number; NaN where it is none."""
    # float() would also take "1_000" and True, which no data set means as numbers.
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        return math.nan
    if isinstance(value, str) and "_" in value:
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
