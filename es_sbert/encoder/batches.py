"""Which texts run together: sorted by length, each batch within a budget of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """How large a batch may be.

    Attributes:
        padded: Most tokens with padding: longest × texts.
        tokens: Most tokens without padding; None for no such limit.
    """

    padded: int
    tokens: int | None = None


def plan_batches(lengths: NDArray[np.int64], budget: int | Budget) -> list[NDArray[np.int64]]:
    """Group texts of similar length (smart batching, Reimers and Gurevych 2019, section 7).

    The longest come first: onnxruntime's memory arena then takes its full size once and is never regrown.

    Args:
        lengths: *Shape:* ``(texts,)``, tokens of each text.
        budget: Limits of a batch; a number counts tokens with padding. A text longer than that runs alone.

    Returns:
        Index arrays; together they hold every index exactly once.
    """
    limits = budget if isinstance(budget, Budget) else Budget(budget)
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])  # (texts,), tokens up to and with each
    batches, start = [], 0
    while start < len(order):
        stop = start + limits.padded // max(1, int(lengths[order[start]]))
        if limits.tokens is not None:
            used = int(ends[start - 1]) if start else 0
            stop = min(stop, int(np.searchsorted(ends, used + limits.tokens, side="right")))
        stop = max(stop, start + 1)
        batches.append(order[start:stop])
        start = stop
    return batches


def distinct(rows: Sequence[NDArray[np.int64]]) -> tuple[list[int], NDArray[np.int64]]:
    """Identical inputs need encoding once.

    Returns:
        Indices of the first of each kind, and for every row the position of its kind among them,
        *shape* ``(rows,)``.
    """
    seen: dict[bytes, int] = {}
    firsts: list[int] = []
    where = np.empty(len(rows), dtype=np.int64)  # (rows,)
    for number, row in enumerate(rows):
        position = seen.setdefault(row.tobytes(), len(firsts))
        if position == len(firsts):
            firsts.append(number)
        where[number] = position
    return firsts, where


def slices_within(
    items: Sequence[T], size: Callable[[T], int], most: int, most_items: int | None = None
) -> Iterator[Sequence[T]]:
    """Slices of limited size, so that work on many texts can be interrupted between two of them.

    Args:
        items: What is sliced.
        size: Of an item, in characters for example.
        most: Largest sum of sizes of a slice; an item that is larger goes alone.
        most_items: Most items of a slice; None for any number.
    """
    first = held = 0
    for number, item in enumerate(items):
        if number - first == most_items or (number > first and held + size(item) > most):
            yield items[first:number]
            first, held = number, 0
        held += size(item)
    if first < len(items):
        yield items[first:]
