"""`JoinedText`: a text of several values, with the offset at which each of them begins."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Self

# Between the values of a list, as between several text fields.
SEPARATOR = "\n"


class JoinedText(str):
    """A text with the values of a list, joined by line feeds.

    It is a string like any other. Chunks do not cross from one value into the next: `Chunker` reads `breaks`.

    Args:
        text: The text.
        breaks: Offsets at which a further value of a list begins, ascending, none of them 0.
    """

    breaks: tuple[int, ...]

    def __new__(cls, text: str, breaks: Sequence[int]) -> Self:
        self = super().__new__(cls, text)
        self.breaks = tuple(breaks)
        return self

    def __getnewargs__(self) -> tuple[str, tuple[int, ...]]:  # type: ignore[override]
        return str(self), self.breaks


def value_breaks(text: str) -> tuple[int, ...]:
    """Offsets at which a further value begins; none in a text of one value."""
    return text.breaks if isinstance(text, JoinedText) else ()


def value_spans(text: str) -> list[tuple[int, int]]:
    """Offsets of the parts of a text that are chunked separately. Together they are the whole text."""
    return list(pairwise((0, *value_breaks(text), len(text))))
