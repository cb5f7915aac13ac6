"""Which examples of a data set make up a batch, differently in each epoch, and always the same for one seed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from es_sbert.training.data.examples import Examples
from es_sbert.training.data.repeats import level, without_repeats

Rows = NDArray[np.int64]

# Examples are sorted by length among so many batches: nearly all of the padding goes, and which examples meet in a
# batch still differs from epoch to epoch.
_WINDOW = 50


def batch_count(examples: int, batch: int) -> int:
    """How many batches of at most `batch` hold so many examples."""
    return -(-examples // batch)


def plan_batches(
    lengths: NDArray[np.int64],
    batch: int,
    *,
    seed: Sequence[int],
    epoch: int,
    smart: bool,
    distinct: NDArray[np.int64] | None = None,
    count: int | None = None,
) -> list[Rows]:
    """Deal examples into batches in random order, each example once.

    Sizes differ by one at most, so that no step rests on a handful of left-over examples (with `distinct`, sizes
    vary more where the data makes it necessary).

    Args:
        lengths: *Shape:* ``(examples,)``, tokens of each example.
        batch: Most examples of a batch.
        seed: Of the run and of the data set in it.
        epoch: From 0; each has an order of its own.
        smart: Put examples of similar length together (smart batching, Reimers and Gurevych 2019, section 7).
        distinct: *Shape:* ``(examples, texts)``, numbers of the texts of each example (`text_numbers`): no number
            then stands in two examples of a batch.
        count: With `distinct`: make so many batches where fewer would do.

    Returns:
        Row numbers of each batch, in the order of training.
    """
    random = np.random.default_rng([*seed, epoch])
    order = random.permutation(len(lengths))  # (examples,)
    parts = batch_count(len(order), batch)
    if smart:
        order = _sorted_in_windows(order, lengths, parts)
    if distinct is None:
        batches = np.array_split(order, parts) if parts else []
    else:
        size = batch_count(len(order), parts) if parts else batch
        dealt = level(without_repeats(order, distinct, size), distinct, random, count=count)
        batches = [np.array(rows, dtype=np.int64) for rows in dealt]
    # Unsmart batches are in random order already, but left-overs of `without_repeats` gather at the end.
    return [batches[number] for number in random.permutation(len(batches))]


def _sorted_in_windows(order: Rows, lengths: NDArray[np.int64], parts: int) -> Rows:
    windows = np.array_split(order, batch_count(parts, _WINDOW)) if parts else []
    # The order was random, and a stable sort keeps that order among equal lengths.
    return np.concatenate([order[:0], *(rows[np.argsort(lengths[rows], kind="stable")] for rows in windows)])


def text_numbers(examples: Examples) -> NDArray[np.int64]:
    """Number the texts of a data set, equal ones alike, *shape* ``(examples, texts)``.

    Texts that differ in case or white space only count as equal: most tokenizers see one text in them.
    """
    numbers: dict[str, int] = {}
    columns = [
        [numbers.setdefault(" ".join(text.split()).casefold(), len(numbers)) for text in column]
        for column in examples.texts
    ]
    flat = np.fromiter(chain.from_iterable(columns), dtype=np.int64, count=len(columns) * len(examples))
    return flat.reshape(len(columns), len(examples)).T
