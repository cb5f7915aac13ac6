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

    Attributes:
        begun: How many of the texts were handed to the model.
        parts: What came back of it, in order.
    """

    texts: list[str]
    kind: PromptKind | None
    future: asyncio.Future[Encoded]
    begun: int = 0
    parts: list[Encoded] = field(default_factory=list)

    @property
    def left(self) -> int:
        return len(self.texts) - self.begun

    def take(self, count: int) -> list[str]:
        """The next texts."""
        self.begun += count
        return self.texts[self.begun - count : self.begun]

    def deliver(self, part: Encoded) -> None:
        """Vectors of the texts that were taken; with the last of them the caller gets all."""
        self.parts.append(part)
        if not self.left and not self.future.done():
            self.future.set_result(_joined(self.parts))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def _joined(parts: Sequence[Encoded]) -> Encoded:
    """Parts of one caller's texts as one; a copy, so that nobody keeps the vectors of others in memory."""
    return Encoded(
        np.concatenate([part.vectors for part in parts]),  # (texts, dimensions)
        np.concatenate([part.tokens for part in parts]),  # (texts,)
        np.concatenate([part.truncated for part in parts]),  # (texts,)
    )
