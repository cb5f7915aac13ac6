"""Batches hold every text once, stay within the budget, and pad what they must."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.runtime.batching import ENOUGH_TOKENS, BatchLimits, plan_batches, unique_rows

LENGTHS = st.lists(st.integers(1, 300), max_size=200)


@given(LENGTHS, st.integers(1, 2000))
def test_every_text_is_batched_once(lengths: list[int], budget: int) -> None:
    batches = plan_batches(np.array(lengths, dtype=np.int64), budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))


@given(LENGTHS, st.integers(1, 2000))
def test_padded_tokens_stay_within_the_budget(lengths: list[int], budget: int) -> None:
    array = np.array(lengths, dtype=np.int64)
    for batch in plan_batches(array, budget):
        assert len(batch) == 1 or array[batch].max() * len(batch) <= budget


@given(LENGTHS)
def test_longest_first(lengths: list[int]) -> None:
    array = np.array(lengths, dtype=np.int64)
    order = [int(array[index]) for batch in plan_batches(array, 64) for index in batch]
    assert order == sorted(lengths, reverse=True)


def test_batches_are_filled() -> None:
    assert [len(batch) for batch in plan_batches(np.full(10, 8, dtype=np.int64), 32)] == [4, 4, 2]


@given(LENGTHS, st.integers(1, 2000), st.integers(1, 2000))
def test_unpadded_tokens_stay_within_their_own_budget(lengths: list[int], padded: int, tokens: int) -> None:
    array = np.array(lengths, dtype=np.int64)
    batches = plan_batches(array, BatchLimits(padded, tokens))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or (array[batch].max() * len(batch) <= padded and array[batch].sum() <= tokens)


def test_unpadded_budget_ignores_padding() -> None:
    lengths = np.array([20, 4, 4, 4, 4, 4], dtype=np.int64)
    assert [len(batch) for batch in plan_batches(lengths, BatchLimits(1000, 32))] == [4, 2]
    assert [len(batch) for batch in plan_batches(lengths, BatchLimits(40, 32))] == [2, 4]


@given(LENGTHS, st.integers(1, 2000), st.floats(0.1, 1))
def test_texts_far_shorter_than_the_longest_go_into_another_batch(
    lengths: list[int], budget: int, similar: float
) -> None:
    array = np.array(lengths, dtype=np.int64)
    batches = plan_batches(array, BatchLimits(budget, similar=similar))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = array[batch].max()
        assert len(batch) == 1 or longest * len(batch) <= budget
        enough = -(-ENOUGH_TOKENS // longest)
        assert (array[batch[enough:]] >= similar * longest).all()


def test_a_batch_of_few_tokens_takes_shorter_texts() -> None:
    limits = BatchLimits(1000, similar=0.75)
    assert [len(batch) for batch in plan_batches(np.array([30, 10, 10, 10, 10]), limits)] == [3, 2]
    assert [len(batch) for batch in plan_batches(np.array([100, 75, 74, 60, 56, 55]), limits)] == [2, 3, 1]
    assert [len(batch) for batch in plan_batches(np.array([100, 75, 74, 60, 56, 55]), BatchLimits(1000))] == [6]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=50))
def test_unique_rows_round_trip(rows: list[list[int]]) -> None:
    arrays = [np.array(row, dtype=np.int64) for row in rows]
    firsts, where = unique_rows(arrays)
    assert [rows[firsts[position]] for position in where] == rows
    assert len({tuple(rows[first]) for first in firsts}) == len(firsts)
