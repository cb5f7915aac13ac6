"""`batched`: slices of a sequence. Python 3.12 has a function that yields tuples, item by item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield slices of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
