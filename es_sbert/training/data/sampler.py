"""Batch sampler for torch's DataLoader: this process's part of every joint batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch.utils.data import Dataset, Sampler

from es_sbert.errors import UsageError
from es_sbert.training.data.epoch_plan import EpochPlan


class BatchItem(NamedTuple):
    """An example of a batch.

    Attributes:
        dataset: Number of its data set, from 0.
        row: Of the data set, from 0.
        joint: Examples of the joint batch, so that each process knows the parts of the others (`process_part_sizes`).
    """

    dataset: int
    row: int
    joint: int


def process_part_sizes(joint: int, processes: int) -> tuple[int, ...]:
    """Examples of each process's part of a joint batch, in the order of the processes."""
    least, over = divmod(joint, processes)
    return tuple(least + (process < over) for process in range(processes))


class MixedDataset(Dataset[BatchItem]):
    """Several data sets as one: an item is the location of an example, and collating looks the example up.

    Args:
        sizes: Examples of each data set.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._size = sum(sizes)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, item: BatchItem) -> BatchItem:
        return item


class MixedBatchSampler(Sampler[list[BatchItem]]):
    """Batches of the current epoch, each of one data set.

    A joint batch is dealt out in order: the parts of all processes, one after another, are the joint batch. Their
    sizes differ by at most one. Use it in a plain `DataLoader(…, batch_sampler=…)` that accelerate does not prepare:
    its `BatchSamplerShard` would split the parts again, and with `split_batches` it skips every batch that is
    smaller than `batch_size`.

    `set_epoch` has to be called before each epoch. Nothing else changes what is drawn, so a resumed run that sets
    the epoch and skips the batches it has seen (`accelerate.skip_first_batches`) continues with the same ones.

    Args:
        plan: The joint batches.
        process: Number of this process, from 0.
        processes: How many processes share each joint batch.

    Raises:
        UsageError: a joint batch has fewer examples than there are processes.
    """

    def __init__(self, plan: EpochPlan, *, process: int = 0, processes: int = 1) -> None:
        if not 0 <= process < processes:
            raise ValueError(f"process {process} of {processes}")
        if processes > 1 and (smallest := plan.smallest()) < processes:
            raise UsageError(
                f"a batch of {smallest} cannot be shared by {processes} processes",
                f"Raise batch in the recipe to at least {processes}, use more examples, or start fewer processes.",
            )
        self._plan = plan
        self.examples = plan.examples
        """Examples of an epoch, over all processes."""
        self._process = process
        self.processes = processes
        """How many processes share each joint batch."""
        self._epoch = 0

    def __len__(self) -> int:
        """Batches of an epoch, the same in every epoch and process."""
        return len(self._plan)

    def __iter__(self) -> Iterator[list[BatchItem]]:
        for joint in self._plan.batches(self._epoch):
            part = np.array_split(joint.rows, self.processes)[self._process]
            yield [BatchItem(joint.dataset, row, len(joint.rows)) for row in part.tolist()]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, that the next iteration draws."""
        self._epoch = epoch
