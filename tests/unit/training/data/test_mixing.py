"""Several data sets in one epoch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.training.batch_sampler import EpochPlan, JointBatch, PlannedDataset, mix_batches


def rows(*sizes: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    return [np.arange(size, dtype=np.int64) for size in sizes]


def planned(size: int, texts: int | None = None) -> PlannedDataset:
    random = np.random.default_rng(size)
    distinct = None if texts is None else random.integers(0, texts, (size, 2))
    return PlannedDataset(random.integers(1, 60, size), distinct)


def plan(*datasets: PlannedDataset, batch: int = 8, **more: Any) -> EpochPlan:
    return EpochPlan(datasets, batch, **({"epochs": 3, "seed": 7, "smart": True} | more))


def plain(batches: list[JointBatch]) -> list[tuple[int, list[int]]]:
    return [(batch.dataset, batch.rows.tolist()) for batch in batches]


def test_mix_has_every_batch_in_random_order() -> None:
    batches = [rows(*range(1, 41)), rows(*range(41, 61))]
    mixed = mix_batches(batches, np.random.default_rng(0))
    assert sorted(len(batch.rows) for batch in mixed) == list(range(1, 61))
    assert Counter(batch.dataset for batch in mixed[:30]) != {0: 30}
    assert [len(batch.rows) for batch in mixed] != list(range(1, 61))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.none() | st.integers(3, 90)), min_size=1, max_size=3),
    st.integers(1, 12),
    st.booleans(),
)
def test_every_epoch_covers_every_example_in_equal_batch_counts(
    sizes: list[tuple[int, int | None]], batch: int, smart: bool
) -> None:
    made = plan(*(planned(*size) for size in sizes), batch=batch, smart=smart, epochs=2.5)
    for epoch in range(3):
        batches = made.batches(epoch)
        assert len(batches) == len(made)
        assert min(len(joint.rows) for joint in batches) >= made.smallest()
        seen = Counter((joint.dataset, row) for joint in batches for row in joint.rows.tolist())
        assert seen == Counter((number, row) for number, (size, _) in enumerate(sizes) for row in range(size))


def test_epochs_have_equal_batch_counts_despite_conflicts() -> None:
    # Of 60 rows with 12 texts, some orders need one batch more than others.
    datasets = planned(60, 12)
    lone = {len(plan(datasets, epochs=1, seed=seed)) for seed in range(20)}
    assert len(lone) > 1
    made = plan(datasets, epochs=20)
    assert {len(made.batches(epoch)) for epoch in range(20)} == {len(made)}


def test_plan_is_deterministic_in_any_epoch_order() -> None:
    one, two = (plan(planned(40), planned(30, 50)) for _ in range(2))
    assert plain(one.batches(2)) == plain(two.batches(2))
    assert plain(one.batches(1)) == plain(two.batches(1))
    assert plain(one.batches(1)) != plain(one.batches(2))
    assert plain(one.batches(1)) != plain(plan(planned(40), planned(30, 50), seed=8).batches(1))


def test_equal_data_sets_are_shuffled_differently() -> None:
    made = plan(planned(64), planned(64))
    orders = [[row for number, row in plain(made.batches(0)) if number == dataset] for dataset in (0, 1)]
    assert {tuple(row) for row in orders[0]} != {tuple(row) for row in orders[1]}
