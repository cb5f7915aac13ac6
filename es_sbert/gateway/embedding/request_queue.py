"""Queue of texts to embed, from which batches are taken fairly.

One request may be spread over several batches, and one batch may hold texts of several requests.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from es_sbert.encoder.encoder import EncodeResult
from es_sbert.encoder.tokenizer import TokenizedTexts


@dataclass(eq=False)
class QueuedRequest:
    """One caller's texts that are not in the cache.

    The longest go first: a batch is padded to its longest text, so texts of like length belong together.

    Attributes:
        order: Their numbers, in the order in which they go.
        begun: How many of the texts were handed to the model.
        parts: The numbers of texts that have vectors, and their vectors.
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
        """The number of the next text."""
        self.begun += 1
        return self.order[self.begun - 1]

    def deliver(self, numbers: list[int], part: EncodeResult) -> None:
        """Vectors of these texts; with the last of them the caller gets all."""
        self.parts.append((numbers, part))
        if sum(len(done) for done, _ in self.parts) == len(self.order) and not self.future.done():
            self.future.set_result(_merge_parts(self.parts))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, eq=False)
class BatchSlice:
    """What one batch takes of a request.

    Attributes:
        numbers: Which of the request's texts.
    """

    request: QueuedRequest
    numbers: list[int]

    @property
    def tokenized(self) -> TokenizedTexts:
        whole = self.request.tokenized
        return TokenizedTexts(
            [whole.ids[number] for number in self.numbers], whole.tokens[self.numbers], whole.max_tokens
        )


def next_batch(waiting: list[QueuedRequest], tokens: int, *, oldest_first: bool) -> list[BatchSlice]:
    """Take a batch: of one request first, and where there is room for more, of those with the fewest texts left.

    Batches begin in turn with the oldest request and with the one that has the fewest texts left. So one query does not
    wait for a thousand documents, the thousand do not wait for ever, and of two large requests one ends early: its
    documents go to the engine while the other one's are embedded.

    A batch holds texts of like length, since all of them take as long as the longest: none has more than twice the
    tokens of another.

    Args:
        waiting: The requests, first come first. Changed: those that have texts left stay.
        tokens: Most padded tokens of the batch (longest × texts). A text that has more runs alone.
        oldest_first: Whose turn it is.

    Returns:
        A share of each request that had texts for it; empty if none waits.
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


def join_texts(shares: Iterable[BatchSlice]) -> TokenizedTexts:
    """The texts of all shares, one share after another."""
    parts = [share.tokenized for share in shares]
    return TokenizedTexts.joined(parts, parts[0].max_tokens)


def _merge_parts(parts: Sequence[tuple[list[int], EncodeResult]]) -> EncodeResult:
    """Parts of one caller's texts as one, in the caller's order; a copy, so that nobody keeps the vectors of others."""
    places = np.argsort(np.concatenate([numbers for numbers, _ in parts]))  # (texts,)
    return EncodeResult(
        np.concatenate([part.vectors for _, part in parts])[places],  # (texts, dimensions)
        np.concatenate([part.tokens for _, part in parts])[places],  # (texts,)
        np.concatenate([part.truncated for _, part in parts])[places],  # (texts,)
    )
