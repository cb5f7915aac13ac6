"""A caller's texts on their way through batches, of which each may hold a part of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from es_sbert.bundle.model import PromptKind
from es_sbert.encoder.types import Encoded


@dataclass(eq=False)
class WaitingRequest:
    """One caller's texts that are not in the cache.

    The longest go first: each batch is padded to its longest text, so texts of like length belong together.

    Attributes:
        order: Their numbers, in the order in which they go.
        begun: How many of the texts were handed to the model.
        parts: What came back of it, in that order.
    """

    texts: list[str]
    kind: PromptKind | None
    future: asyncio.Future[Encoded]
    order: list[int] = field(init=False)
    begun: int = 0
    parts: list[Encoded] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = sorted(range(len(self.texts)), key=lambda number: len(self.texts[number]), reverse=True)

    @property
    def left(self) -> int:
        return len(self.texts) - self.begun

    def take(self, count: int) -> list[str]:
        """The next texts."""
        self.begun += count
        return [self.texts[number] for number in self.order[self.begun - count : self.begun]]

    def deliver(self, part: Encoded) -> None:
        """Vectors of the texts that were taken; with the last of them the caller gets all."""
        self.parts.append(part)
        if not self.left and not self.future.done():
            self.future.set_result(_joined(self.parts, self.order))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _joined(parts: Sequence[Encoded], order: Sequence[int]) -> Encoded:
    """Parts of one caller's texts as one, in the caller's order; a copy, so that nobody keeps the vectors of others."""
    places = np.argsort(order)  # (texts,)
    return Encoded(
        np.concatenate([part.vectors for part in parts])[places],  # (texts, dimensions)
        np.concatenate([part.tokens for part in parts])[places],  # (texts,)
        np.concatenate([part.truncated for part in parts])[places],  # (texts,)
    )
