"""Batches hold every text once, stay within the budget, and pad what they must."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.runtime.batching import ENOUGH_TOKENS, BatchLimits, plan_batches, unique_rows

LENGTHS = st.lists(st.integers(1, 300), max_size=200)


def test_unpadded_budget_ignores_padding() -> None:
    lengths = np.array([20, 4, 4, 4, 4, 4], dtype=np.int64)
    assert [len(batch) for batch in plan_batches(lengths, BatchLimits(1000, 32))] == [4, 2]
    assert [len(batch) for batch in plan_batches(lengths, BatchLimits(40, 32))] == [2, 4]


@given(LENGTHS, st.integers(1, 2000), st.integers(1, 2000), st.floats(0.1, 1))
def test_batches_hold_every_text_once_longest_first_within_their_limits(
    lengths: list[int], padded: int, tokens: int, similar: float
) -> None:
    array = np.array(lengths, dtype=np.int64)
    batches = plan_batches(array, BatchLimits(padded, tokens, similar))
    order = [index for batch in batches for index in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    for batch in batches:
        longest = array[batch].max()
        assert len(batch) == 1 or (longest * len(batch) <= padded and array[batch].sum() <= tokens)
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
