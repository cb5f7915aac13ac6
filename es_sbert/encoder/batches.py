"""Which texts run together: sorted by true tokens, each batch within a budget of padded tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


def plan_batches(lengths: NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
    """Group texts of similar length (smart batching, Reimers and Gurevych 2019, section 7).

    The longest come first: onnxruntime's memory arena then takes its full size once and is never regrown.

    Args:
        lengths: *Shape:* ``(texts,)``, tokens of each text.
        budget: Most tokens of a batch, padding included (longest × texts). A text longer than the budget
            runs alone.

    Returns:
        Index arrays; together they hold every index exactly once.
    """
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        size = max(1, budget // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches


def pad(rows: Sequence[NDArray[np.int64]], padding: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stack rows of token ids, padded on the right.

    Args:
        rows: Arrays of *shape* ``(tokens,)``.
        padding: Id in the padded places; the mask keeps it out of the result.

    Returns:
        Token ids and attention mask, both of *shape* ``(rows, longest)``.
    """
    longest = max(map(len, rows))
    ids = np.full((len(rows), longest), padding, dtype=np.int64)  # (rows, longest)
    mask = np.zeros((len(rows), longest), dtype=np.int64)  # (rows, longest)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return ids, mask


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
