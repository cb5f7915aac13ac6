"""Joint batches reach a DataLoader whole, in parts, and again after a resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from accelerate import skip_first_batches
from torch.utils.data import DataLoader

from es_sbert.errors import UsageError
from es_sbert.training.batch_sampler import (
    BatchItem,
    EpochPlan,
    MixedBatchSampler,
    MixedDataset,
    PlannedDataset,
    process_part_sizes,
)

SIZES = (37, 21)
PLAN = EpochPlan([PlannedDataset(np.arange(1, size + 1)) for size in SIZES], 8, epochs=3, seed=1, smart=True)


def joint(epoch: int) -> list[list[BatchItem]]:
    return [
        [BatchItem(batch.dataset, row, len(batch.rows)) for row in batch.rows.tolist()] for batch in PLAN.batches(epoch)
    ]


def loader(sampler: MixedBatchSampler, workers: int = 0) -> DataLoader[Any]:
    return DataLoader(MixedDataset(SIZES), batch_sampler=sampler, collate_fn=list, num_workers=workers)


def test_single_process_gets_the_joint_batches() -> None:
    sampler = MixedBatchSampler(PLAN)
    for epoch in (0, 2, 1):
        sampler.set_epoch(epoch)
        assert list(loader(sampler)) == joint(epoch)
    assert len(loader(sampler)) == len(joint(0)) == len(sampler)
    assert len(MixedDataset(SIZES)) == sum(SIZES)


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_parts_of_all_processes_form_the_joint_batch(processes: int) -> None:
    samplers = [MixedBatchSampler(PLAN, process=process, processes=processes) for process in range(processes)]
    for sampler in samplers:
        sampler.set_epoch(1)
    batches = list(zip(*map(loader, samplers), strict=True))
    assert [[item for part in parts for item in part] for parts in batches] == joint(1)
    assert all(max(map(len, parts)) - min(map(len, parts)) <= 1 for parts in batches)
    # Every process knows the parts of the others from its own.
    for parts in batches:
        for part in parts:
            assert process_part_sizes(part[0].joint, processes) == tuple(map(len, parts))
    assert all(all(parts) for parts in batches)


@pytest.mark.parametrize("processes", [1, 2])
def test_resumed_epoch_continues_with_unseen_batches(processes: int) -> None:
    sampler = MixedBatchSampler(PLAN, processes=processes)
    sampler.set_epoch(2)
    whole = list(loader(sampler))
    # A new process: transformers' Trainer wraps the loader first and sets the epoch then.
    sampler = MixedBatchSampler(PLAN, processes=processes)
    resumed = skip_first_batches(loader(sampler), 3)
    sampler.set_epoch(2)
    assert list(resumed) == whole[3:]


def test_more_processes_than_batch_examples_are_rejected() -> None:
    with pytest.raises(UsageError, match="a batch of 7 cannot be shared by 8 processes"):
        MixedBatchSampler(PLAN, process=0, processes=8)
