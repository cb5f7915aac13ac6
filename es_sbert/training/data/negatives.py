"""Negatives that are none: mining finds right answers too, and an objective cannot tell which side to believe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from es_sbert.tabular import Problems


def check_negatives(texts: Sequence[Sequence[str]], lines: NDArray[np.int64], problems: Problems) -> None:
    """Note the rows whose negative is the anchor itself, or a positive of the same anchor in any row.

    Texts that differ in white space only count as equal.

    Args:
        texts: Columns: anchors, positives, then any number of columns of negatives.
        lines: *Shape:* ``(rows,)``, for messages.
        problems: Takes the rows.
    """
    anchors, positives, *negatives = ([" ".join(text.split()) for text in column] for column in texts)
    right: dict[tuple[str, str], int] = {}  # (anchor, positive) → the first line that says so
    for line, pair in zip(lines.tolist(), zip(anchors, positives, strict=True), strict=True):
        right.setdefault(pair, line)
    for column in negatives:
        for line, anchor, negative in zip(lines.tolist(), anchors, column, strict=True):
            if negative == anchor:
                problems.add(line, "the negative is the anchor itself")
            elif (said := right.get((anchor, negative))) is not None:
                where = "" if said == line else f" of the same anchor in line {said}"
                problems.add(line, f"the negative is the positive{where}")
