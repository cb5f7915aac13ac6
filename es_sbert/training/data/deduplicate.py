"""Batches without duplicate texts: with in-batch negatives, a repeated positive would count as a negative."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# A batch that should have n rows asks for one 8n times at most: where one text is nearly everywhere, asking on would
# take long and bring nothing.
_ATTEMPTS_PER_ROW = 8


def batch_without_duplicates(
    order: Sequence[int] | NDArray[np.int64], texts: NDArray[np.int64], size: int
) -> list[list[int]]:
    """Deal rows into batches, in order; a row whose text stands in a batch already waits for a later one.

    Each row goes into the first batch with room that follows all batches with one of its texts.

    Args:
        order: Rows in the order in which they are dealt.
        texts: *Shape:* ``(examples, texts)``, numbers of each example's texts. One example may hold a text twice.
        size: Most rows of a batch.
    """
    batches: list[list[int]] = []
    following: list[int] = []  # of a full batch: one behind it that may have room; of any other: itself
    first = [0] * (int(texts.max()) + 1 if texts.size else 0)  # text → first batch that may take it
    numbers = texts.tolist()
    for row in np.asarray(order).tolist():
        place = _first_batch_with_room(max((first[text] for text in numbers[row]), default=0), following)
        if place == len(batches):
            batches.append([])
            following.append(place)
        batches[place].append(row)
        if len(batches[place]) == size:
            following[place] = place + 1
        for text in numbers[row]:
            first[text] = place + 1
    return batches


def _first_batch_with_room(place: int, following: list[int]) -> int:
    """The first batch with room, from `place` on; the number of batches where there is none."""
    end = place
    while end < len(following) and following[end] != end:
        end = following[end]
    # Whoever asks again goes straight to the end: without this, dealing would take quadratic time.
    while place < len(following) and following[place] not in (place, end):
        following[place], place = end, following[place]
    return end


def balance_batches(
    batches: Sequence[Sequence[int]],
    texts: NDArray[np.int64],
    random: np.random.Generator,
    *,
    count: int | None = None,
) -> list[list[int]]:
    """Bring batches to a given number, and small ones to half the largest as far as the data allows.

    The last batches of `batch_without_duplicates` may hold one row, which has no negatives. They take rows from larger
    batches, which cannot make a repetition there.

    Args:
        batches: Rows of each, without repetitions.
        texts: *Shape:* ``(examples, texts)``.
        random: Chooses the batches that give rows away.
        count: How many batches there shall be at least.
    """
    levelled = [list(rows) for rows in batches]
    levelled += [[] for _ in range((count or 0) - len(levelled))]
    rows = sum(map(len, levelled))
    if not rows:
        return levelled
    least = max(1, min(max(map(len, levelled)) // 2, rows // len(levelled)))
    larger = [batch for batch in levelled if len(batch) > least]
    donors = deque(larger[number] for number in random.permutation(len(larger)))
    for batch in levelled:
        if len(batch) < least:
            _fill_batch(batch, donors, texts, least)
    return levelled


def _fill_batch(batch: list[int], donors: deque[list[int]], texts: NDArray[np.int64], least: int) -> None:
    """Take rows of the donors in turn, one of each, so that none gives much more than the others."""
    present = {text for row in batch for text in texts[row].tolist()}
    for _ in range(_ATTEMPTS_PER_ROW * least):
        if not donors or len(batch) >= least:
            return
        donor = donors.popleft()
        for place, row in enumerate(donor):
            own = texts[row].tolist()
            if present.isdisjoint(own):
                batch.append(donor.pop(place))
                present.update(own)
                break
        if len(donor) > least:
            donors.append(donor)
