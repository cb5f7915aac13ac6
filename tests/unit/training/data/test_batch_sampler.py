"""The batches of several data sets in every epoch, as a DataLoader gets them, and again after a resume."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from accelerate import skip_first_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from es_sbert.training.batch_sampler import BatchItem, MixedBatchSampler, MixedDataset, PlannedDataset


def planned(size: int, texts: int | None = None) -> PlannedDataset:
    random = np.random.default_rng(size)
    distinct = None if texts is None else random.integers(0, texts, (size, 2))
    return PlannedDataset(random.integers(1, 60, size), distinct)


def make_sampler(*datasets: PlannedDataset, batch: int = 8, **more: Any) -> MixedBatchSampler:
    return MixedBatchSampler(datasets, batch, **({"epochs": 3, "seed": 7, "smart": True} | more))


def batches(sampler: MixedBatchSampler, epoch: int) -> list[list[BatchItem]]:
    sampler.set_epoch(epoch)
    return list(sampler)


def loader(sampler: MixedBatchSampler) -> DataLoader[Any]:
    return DataLoader(MixedDataset(sampler.examples), batch_sampler=sampler, collate_fn=list)


def test_resumed_epoch_continues_with_unseen_batches() -> None:
    sampler = make_sampler(planned(37), planned(21))
    assert len(loader(sampler)) == len(sampler)
    whole = batches(sampler, 2)
    assert list(loader(sampler)) == whole
    # A new process: transformers' Trainer wraps the loader first and sets the epoch then.
    sampler = make_sampler(planned(37), planned(21))
    resumed = skip_first_batches(loader(sampler), 3)
    sampler.set_epoch(2)
    assert list(resumed) == whole[3:]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.none() | st.integers(3, 90)), min_size=1, max_size=3),
    st.integers(1, 12),
    st.booleans(),
)
def test_every_epoch_covers_every_example_in_equal_batch_counts(
    sizes: list[tuple[int, int | None]], batch: int, smart: bool
) -> None:
    sampler = make_sampler(*(planned(*size) for size in sizes), batch=batch, smart=smart, epochs=2.5)
    for epoch in range(3):
        found = batches(sampler, epoch)
        assert len(found) == len(sampler)
        assert all(len({item.dataset for item in items}) == 1 for items in found)
        seen = Counter(item for items in found for item in items)
        assert seen == Counter((number, row) for number, (size, _) in enumerate(sizes) for row in range(size))


def test_plan_is_deterministic_in_any_epoch_order() -> None:
    one, two = (make_sampler(planned(40), planned(30, 50)) for _ in range(2))
    assert batches(one, 2) == batches(two, 2)
    assert batches(one, 1) == batches(two, 1)
    assert batches(one, 1) != batches(one, 2)
    assert batches(one, 1) != batches(make_sampler(planned(40), planned(30, 50), seed=8), 1)
