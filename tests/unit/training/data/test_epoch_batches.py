"""Every example once an epoch, the same for the same seed, and no text twice where that matters."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from es_sbert.training.batch_sampler import number_texts, plan_batches
from es_sbert.training.training_examples import Examples

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=200).map(lambda values: np.array(values, dtype=np.int64))
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
    assert max(sizes) <= batch
    assert max(sizes) - min(sizes) <= 1


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
def test_smart_batching_saves_most_padding(distinct: bool) -> None:
    random = np.random.default_rng(0)
    lengths = random.lognormal(3, 0.7, 5000).astype(np.int64) + 2
    texts = random.integers(0, 4000, (5000, 2)) if distinct else None
    smart, plain = (padding(plan(lengths, 16, smart=smart, distinct=texts), lengths) for smart in (True, False))
    assert plain > lengths.sum()
    assert smart < 0.1 * plain


def test_texts_that_differ_in_case_or_white_space_are_the_same_text() -> None:
    examples = Examples("x", Path("x"), (["a b", "A\t b ", "ab"], ["c", "C", "a b"]), None, np.arange(3))
    assert number_texts(examples).tolist() == [[0, 2], [0, 2], [1, 0]]
