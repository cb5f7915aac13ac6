"""Plan the batches of every epoch: shuffled, sorted by length, mixed from data sets, reproducible from a seed.

Batches for in-batch negatives never hold a text twice: a repeated positive would count as a negative.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from es_sbert.training.training_examples import Examples

# A batch of n rows tries at most 8n donors: if one text is nearly everywhere, more attempts would be slow and useless.
_ATTEMPTS_PER_ROW = 8


def batch_without_duplicates(
    order: Sequence[int] | NDArray[np.int64], texts: NDArray[np.int64], size: int
) -> list[list[int]]:
    """Assign rows to batches, in order, so that no text occurs twice in a batch.

    Each row goes into the first batch that is not full after all batches with one of its texts.

    Args:
        order: Rows in the order of assignment.
        texts: *Shape:* ``(examples, texts)``, text numbers of each example. One example may have a text twice.
        size: Maximum rows of a batch.
    """
    batches: list[list[int]] = []
    following: list[int] = []  # full batch → a later one that may have room; else the batch itself
    first = [0] * (int(texts.max()) + 1 if texts.size else 0)  # text → first batch that may hold it
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
    """Return the first batch from `place` on that is not full; the number of batches if all are full."""
    end = place
    while end < len(following) and following[end] != end:
        end = following[end]
    # Path compression keeps this near linear.
    while place < len(following) and following[place] not in (place, end):
        following[place], place = end, following[place]
    return end


def balance_batches(
    batches: Sequence[Sequence[int]], texts: NDArray[np.int64], random: np.random.Generator, *, count: int | None = None
) -> list[list[int]]:
    """Make at least `count` batches, and fill small ones to half the size of the largest if the data allows it.

    The last batches of `batch_without_duplicates` may hold one row, which has no negatives. They take rows from larger
    batches.

    Args:
        batches: The rows of each batch, without repetitions.
        texts: *Shape:* ``(examples, texts)``.
        random: Chooses the batches that rows are taken from.
        count: Minimum number of batches.
    """
    levelled = [list(rows) for rows in batches]
    levelled += [[] for _ in range((count or 0) - len(levelled))]
    rows = sum(map(len, levelled))
    least = max(1, min(max(map(len, levelled)) // 2, rows // len(levelled)))
    larger = [batch for batch in levelled if len(batch) > least]
    donors = deque(larger[number] for number in random.permutation(len(larger)))
    for batch in levelled:
        if len(batch) < least:
            _fill_batch(batch, donors, texts, least)
    return levelled


def _fill_batch(batch: list[int], donors: deque[list[int]], texts: NDArray[np.int64], least: int) -> None:
    """Take one row from each donor in turn, so that no donor gives many more rows than the others."""
    present = {text for row in batch for text in texts[row].tolist()}
    for _ in range(_ATTEMPTS_PER_ROW * least):
        if not donors or len(batch) >= least:
            return
        donor = donors.popleft()
        for place, row in enumerate(donor):
            row_texts = texts[row].tolist()
            if present.isdisjoint(row_texts):
                batch.append(donor.pop(place))
                present.update(row_texts)
                break
        if len(donor) > least:
            donors.append(donor)


Rows = NDArray[np.int64]

# Examples are sorted by length within windows of this many batches. This removes nearly all padding, and batches still
# differ from epoch to epoch.
_SORT_WINDOW = 50


def batch_count(examples: int, batch: int) -> int:
    """Number of batches of at most `batch` examples."""
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
    """Assign examples to batches in random order, each example once.

    Sizes differ by at most one, so that no step has only a handful of left-over examples (with `distinct`, sizes vary
    more if the data makes it necessary).

    Args:
        lengths: *Shape:* ``(examples,)``, tokens of each example; at least one.
        batch: Maximum examples of a batch.
        seed: Seeds of the run and of the data set in it.
        epoch: From 0; each has a different order.
        smart: Put examples of similar length together (smart batching, Reimers and Gurevych 2019, section 7).
        distinct: *Shape:* ``(examples, texts)``, text numbers of each example (`number_texts`): no number
            then occurs in two examples of a batch.
        count: With `distinct`: the minimum number of batches.

    Returns:
        Row numbers of each batch, in the order of training.
    """
    random = np.random.default_rng([*seed, epoch])
    order = random.permutation(len(lengths))  # (examples,)
    parts = batch_count(len(order), batch)
    if smart:
        # A stable sort keeps the random order among equal lengths.
        windows = np.array_split(order, batch_count(parts, _SORT_WINDOW))
        order = np.concatenate([rows[np.argsort(lengths[rows], kind="stable")] for rows in windows])
    if distinct is None:
        batches = np.array_split(order, parts)
    else:
        size = batch_count(len(order), parts)
        dealt = balance_batches(batch_without_duplicates(order, distinct, size), distinct, random, count=count)
        batches = [np.array(rows, dtype=np.int64) for rows in dealt]
    # Batches that are not sorted are in random order already, but left-overs of `batch_without_duplicates` gather at
    # the end.
    return [batches[number] for number in random.permutation(len(batches))]


def number_texts(examples: Examples) -> NDArray[np.int64]:
    """Number the texts of a data set; equal texts get the same number. *Shape:* ``(examples, texts)``.

    Texts that differ only in case or white space count as equal: most tokenizers ignore the difference.
    """
    numbers: dict[str, int] = {}
    columns = [
        [numbers.setdefault(" ".join(text.split()).casefold(), len(numbers)) for text in column]
        for column in examples.texts
    ]
    flat = np.fromiter(chain.from_iterable(columns), dtype=np.int64, count=len(columns) * len(examples))
    return flat.reshape(len(columns), len(examples)).T


@dataclass(frozen=True)
class PlannedDataset:
    """The properties of a data set that are needed to plan its batches.

    Attributes:
        lengths: *Shape:* ``(examples,)``, tokens of each example.
        distinct: *Shape:* ``(examples, texts)``, text numbers, if no text may occur twice in a batch.
    """

    lengths: NDArray[np.int64]
    distinct: NDArray[np.int64] | None = None


class BatchItem(NamedTuple):
    """An example of a batch: the number of its data set and its row there, both from 0."""

    dataset: int
    row: int


class MixedDataset(Dataset[BatchItem]):
    """Several data sets as one: an item is the location of an example, and collating looks the example up.

    Args:
        size: Examples of all data sets.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, item: BatchItem) -> BatchItem:
        return item


class MixedBatchSampler(Sampler[list[BatchItem]]):
    """The batches of every epoch of a stage, each of one data set, in random order.

    They are the same for the same arguments and epoch, also after a resume. All epochs have the same number of
    batches: the learning rate schedule relies on it. `set_epoch` has to be called before each epoch.

    Args:
        datasets: In the order of the stage.
        batch: Maximum examples of a batch.
        epochs: Number of epochs, rounded up.
        seed: Seed of the run.
        smart: Whether to put examples of similar length together.

    Attributes:
        examples: Examples of an epoch.
        counts: Number of batches of each data set in an epoch.
    """

    def __init__(
        self, datasets: Sequence[PlannedDataset], batch: int, *, epochs: float, seed: int, smart: bool
    ) -> None:
        self._datasets = tuple(datasets)
        self._batch = batch
        self._seed = seed
        self._smart = smart
        self._epoch = 0
        # The number of batches needed to keep equal texts apart depends on the order: the longest epoch sets it.
        self.counts = [
            batch_count(len(dataset.lengths), batch)
            if dataset.distinct is None
            else max(len(self._plan(number, epoch, None)) for epoch in range(math.ceil(epochs)))
            for number, dataset in enumerate(self._datasets)
        ]
        self.examples = sum(len(dataset.lengths) for dataset in self._datasets)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return sum(self.counts)

    def __iter__(self) -> Iterator[list[BatchItem]]:
        planned = [
            [BatchItem(number, row) for row in rows.tolist()]
            for number, count in enumerate(self.counts)
            for rows in self._plan(number, self._epoch, count)
        ]
        # The seeds of the data sets contain their numbers. This one contains the next number, so it differs from all.
        random = np.random.default_rng([self._seed, len(self._datasets), self._epoch])
        return iter([planned[place] for place in random.permutation(len(planned))])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, that the next iteration draws."""
        self._epoch = epoch

    def _plan(self, number: int, epoch: int, count: int | None) -> list[Rows]:
        dataset, seed, smart = self._datasets[number], (self._seed, number), self._smart
        return plan_batches(
            dataset.lengths, self._batch, seed=seed, epoch=epoch, smart=smart, distinct=dataset.distinct, count=count
        )
