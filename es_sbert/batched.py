"""Split items into groups, by their number or size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield slices of at most `size` items. Python 3.12 has a function that yields tuples, item by item."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def slice_by_size(
    items: Iterable[T], size: Callable[[T], int], most: int, most_items: int | None = None
) -> Iterator[list[T]]:
    """Split items into groups of limited size, in order, so that work on many items can be interrupted between groups.

    Args:
        items: The items to group.
        size: Size of an item, for example in characters.
        most: Maximum sum of sizes of a group; a larger item is a separate group.
        most_items: Maximum items of a group; None for any number.
    """
    group: list[T] = []
    held = 0
    for item in items:
        item_size = size(item)
        if group and (len(group) == most_items or held + item_size > most):
            yield group
            group, held = [], 0
        group.append(item)
        held += item_size
    if group:
        yield group
