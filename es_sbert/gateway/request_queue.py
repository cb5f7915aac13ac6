"""Queue of texts to embed, from which batches are taken fairly.

One request may be spread over several batches, and one batch may hold texts of several requests.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from es_sbert.encoder.encoder import EncodeResult
from es_sbert.runtime.tokenizer import TokenizedTexts


@dataclass(eq=False)
class QueuedRequest:
    """The uncached texts of one request, longest first.

    A batch is padded to its longest text, so texts of similar length belong together.

    Attributes:
        order: Positions of the texts, by descending length.
        begun: Number of texts taken for batches.
        parts: Positions of embedded texts, and their vectors.
    """

    tokenized: TokenizedTexts
    future: asyncio.Future[EncodeResult]
    order: list[int] = field(init=False)
    begun: int = 0
    parts: list[tuple[list[int], EncodeResult]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ids = self.tokenized.ids
        self.order = sorted(range(len(ids)), key=lambda number: len(ids[number]), reverse=True)

    @property
    def left(self) -> int:
        return len(self.order) - self.begun

    @property
    def next_token_count(self) -> int:
        """Tokens of the next text."""
        return len(self.tokenized.ids[self.order[self.begun]])

    def take(self) -> int:
        """Take the next text; returns its position."""
        self.begun += 1
        return self.order[self.begun - 1]

    def deliver(self, numbers: list[int], part: EncodeResult) -> None:
        """Add vectors; the last ones complete the request."""
        self.parts.append((numbers, part))
        if sum(len(done) for done, _ in self.parts) == len(self.order) and not self.future.done():
            places = np.argsort(np.concatenate([done for done, _ in self.parts]))  # (texts,)
            self.future.set_result(select_rows(join_results(part for _, part in self.parts), places))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, eq=False)
class BatchSlice:
    """The texts of one request in a batch.

    Attributes:
        numbers: Positions of the texts in the request.
    """

    request: QueuedRequest
    numbers: list[int]

    @property
    def tokenized(self) -> TokenizedTexts:
        whole = self.request.tokenized
        return TokenizedTexts(
            [whole.ids[number] for number in self.numbers],
            whole.tokens[self.numbers],
            whole.max_tokens,
        )


def next_batch(waiting: list[QueuedRequest], tokens: int, *, oldest_first: bool) -> list[BatchSlice]:
    """Take a batch from one request first, then from those with the fewest remaining texts.

    Batches alternately begin with the oldest request and with the one that has the fewest remaining texts. So a query
    does not wait for a thousand documents, and the thousand documents do not wait forever. Of two large requests, one
    finishes early: its documents go to the engine while those of the other are embedded.

    The texts of a batch have similar lengths, because each takes as long as the longest: no text has more than twice
    the tokens of another.

    Args:
        waiting: The requests, oldest first. Requests without remaining texts are removed.
        tokens: Maximum padded tokens of the batch (longest × texts). A longer text runs alone.
        oldest_first: Begin with the oldest request.

    Returns:
        The texts of each request in the batch; empty if no request waits.
    """
    order = sorted(waiting, key=lambda request: request.left)
    if order and oldest_first:
        order.remove(waiting[0])
        order.insert(0, waiting[0])
    shares = []
    count, shortest, longest = 0, sys.maxsize, 0
    for request in order:
        if (count + 1) * longest > tokens:
            break
        numbers = []
        while request.left:
            length = request.next_token_count
            low, high = min(shortest, length), max(longest, length)
            if count and (high > 2 * low or (count + 1) * high > tokens):
                break
            count, shortest, longest = count + 1, low, high
            numbers.append(request.take())
        if numbers:
            shares.append(BatchSlice(request, numbers))
    waiting[:] = [request for request in waiting if request.left]
    return shares


def join_results(parts: Iterable[EncodeResult]) -> EncodeResult:
    """Concatenate the vectors of all parts. The result is a copy, so it does not keep other vectors in memory."""
    parts = list(parts)
    return EncodeResult(
        np.concatenate([part.vectors for part in parts]),  # (texts, dimensions)
        np.concatenate([part.tokens for part in parts]),  # (texts,)
        np.concatenate([part.truncated for part in parts]),  # (texts,)
    )


def select_rows(result: EncodeResult, rows: slice | NDArray[np.intp] | list[int]) -> EncodeResult:
    """Return the vectors of some of the texts."""
    return EncodeResult(result.vectors[rows], result.tokens[rows], result.truncated[rows])
