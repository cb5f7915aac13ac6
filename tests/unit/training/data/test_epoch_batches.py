"""Every example once an epoch, the same for the same seed, and no text twice where that matters."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from es_sbert.training.batch_sampler import balance_batches, batch_without_duplicates, number_texts, plan_batches
from es_sbert.training.training_examples import Examples

LENGTHS = st.lists(st.integers(1, 300), max_size=200).map(lambda values: np.array(values, dtype=np.int64))
# Few different texts: many conflicts. (examples, 2)
TEXTS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=80).map(np.array)
SEEDS = st.tuples(st.integers(0, 2**31), st.integers(0, 5))


def plan(lengths: NDArray[np.int64], batch: int, **more: Any) -> list[list[int]]:
    settings = {"seed": (1, 0), "epoch": 0, "smart": True} | more
    return [rows.tolist() for rows in plan_batches(lengths, batch, **settings)]


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(row for rows in batches for row in rows)


def repeats(rows: list[int], texts: NDArray[np.int64]) -> bool:
    return any(set(texts[one].tolist()) & set(texts[two].tolist()) for one, two in combinations(rows, 2))


def padding(batches: list[list[int]], lengths: NDArray[np.int64]) -> int:
    return sum(int(lengths[rows].max()) * len(rows) - int(lengths[rows].sum()) for rows in batches)


@given(LENGTHS, st.integers(1, 40), SEEDS, st.integers(0, 9), st.booleans())
def test_every_example_once_in_evenly_sized_batches(
    lengths: NDArray[np.int64], batch: int, seed: tuple[int, int], epoch: int, smart: bool
) -> None:
    batches = plan(lengths, batch, seed=seed, epoch=epoch, smart=smart)
    assert flat(batches) == list(range(len(lengths)))
    assert len(batches) == -(-len(lengths) // batch)
    sizes = {len(rows) for rows in batches}
    assert max(sizes, default=0) <= batch
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(TEXTS, st.integers(1, 20), SEEDS, st.integers(0, 9), st.booleans())
def test_no_text_twice_in_a_batch(
    texts: NDArray[np.int64], batch: int, seed: tuple[int, int], epoch: int, smart: bool
) -> None:
    lengths = np.arange(len(texts), dtype=np.int64) + 1
    batches = plan(lengths, batch, seed=seed, epoch=epoch, smart=smart, distinct=texts)
    assert flat(batches) == list(range(len(texts)))
    assert all(0 < len(rows) <= batch for rows in batches)
    assert not any(repeats(rows, texts) for rows in batches)


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("smart", [False, True])
def test_order_depends_on_seed_and_epoch(smart: bool, distinct: bool) -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 300)
    texts = np.arange(600).reshape(300, 2) if distinct else None
    orders = [
        plan(lengths, 16, smart=smart, distinct=texts, seed=seed, epoch=epoch)
        for seed in ((1, 0), (1, 1), (2, 0))
        for epoch in (0, 1)
    ]
    assert orders[0] == plan(lengths, 16, smart=smart, distinct=texts)
    assert len({str(order) for order in orders}) == len(orders)


@pytest.mark.parametrize("distinct", [False, True])
def test_smart_batching_saves_most_padding(distinct: bool) -> None:
    random = np.random.default_rng(0)
    lengths = random.lognormal(3, 0.7, 5000).astype(np.int64) + 2
    texts = random.integers(0, 4000, (5000, 2)) if distinct else None
    smart, plain = (padding(plan(lengths, 16, smart=smart, distinct=texts), lengths) for smart in (True, False))
    assert plain > lengths.sum()
    assert smart < 0.1 * plain


def test_smart_batches_are_shuffled() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 1600)
    means = [lengths[rows].mean() for rows in plan(lengths, 16)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


def test_conflicting_row_goes_to_the_next_free_batch() -> None:
    texts = np.array([[0, 1], [0, 2], [3, 4], [0, 5], [6, 2], [7, 8]])
    # Row 1 shares text 0 with row 0; row 3 shares it with both; row 4 shares text 2 with row 1.
    assert batch_without_duplicates(range(6), texts, 2) == [[0, 2], [1, 5], [3, 4]]


def test_repeated_text_within_a_row_is_no_conflict() -> None:
    assert batch_without_duplicates([0, 1], np.array([[0, 0], [1, 1]]), 2) == [[0, 1]]


@pytest.mark.timeout(300)  # a scan over all waiting rows, or over all full batches, would take an hour
def test_batching_is_linear_with_a_ubiquitous_text() -> None:
    rows = 100_000
    texts = np.stack([np.zeros(rows, dtype=np.int64), np.arange(1, rows + 1)], axis=1)
    texts[::2, 0] = np.arange(rows + 1, rows + 1 + rows // 2)
    batches = plan(np.ones(rows, dtype=np.int64), 64, distinct=texts)
    assert len(batches) == rows // 2
    assert {len(batch) for batch in batches} == {2}


@pytest.mark.timeout(300)
def test_batching_is_linear_with_many_batches() -> None:
    rows = 100_000
    batches = batch_without_duplicates(range(rows), np.arange(rows)[:, None], 2)
    assert batches == np.arange(rows).reshape(-1, 2).tolist()


@given(TEXTS, st.integers(1, 20), st.integers(0, 5), st.integers(0, 2**31))
def test_balance_batches_gives_the_requested_count(texts: NDArray[np.int64], size: int, more: int, seed: int) -> None:
    dealt = batch_without_duplicates(range(len(texts)), texts, size)
    count = min(len(dealt) + more, len(texts))
    levelled = balance_batches(dealt, texts, np.random.default_rng(seed), count=count)
    assert len(levelled) == count
    assert flat(levelled) == list(range(len(texts)))
    assert all(levelled)
    assert not any(repeats(rows, texts) for rows in levelled)


def test_balanced_batches_have_negatives() -> None:
    # 40 anchors with 5 positives each, as in the triplets made of NLI data.
    texts = np.stack([np.repeat(np.arange(40), 5), np.arange(40, 240)], axis=1)
    for epoch in range(20):
        batches = plan(np.ones(200, dtype=np.int64), 16, epoch=epoch, distinct=texts)
        assert min(map(len, batches)) >= 5
        assert len(batches) <= 20


@settings(max_examples=25)
@given(st.lists(st.sampled_from(["a b", "A  b", "a\tb ", "c", "C", "ab"]), min_size=1, max_size=9))
def test_number_texts_ignores_case_and_whitespace(column: list[str]) -> None:
    examples = Examples("x", Path("x"), (column, column[::-1]), None, np.arange(len(column)))
    numbers = number_texts(examples)
    assert numbers.shape == (len(column), 2)
    plain = [" ".join(text.split()).lower() for text in column]
    assert np.array_equal(numbers[:, 0], numbers[::-1, 1])
    for one, two in combinations(range(len(column)), 2):
        assert (numbers[one, 0] == numbers[two, 0]) == (plain[one] == plain[two])
