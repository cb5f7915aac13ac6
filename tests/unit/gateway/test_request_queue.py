"""Who gets a place in the next batch of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.gateway.embedder import QueuedRequest, next_batch
from es_sbert.runtime.tokenizer import TokenizedTexts


def request_of(lengths: Sequence[int]) -> QueuedRequest:
    """A request whose texts have so many tokens."""
    ids = [np.ones(length, dtype=np.int64) for length in lengths]
    return QueuedRequest(TokenizedTexts(ids, np.array(lengths, dtype=np.int64), 512), cast(Any, None))


def batch(requests: list[QueuedRequest], tokens: int, *, oldest_first: bool) -> list[tuple[QueuedRequest, int]]:
    return [(request, len(numbers)) for request, numbers in next_batch(requests, tokens, oldest_first=oldest_first)]


def test_batch_mixes_small_and_large_requests() -> None:
    many, one, three = request_of([10] * 1000), request_of([10]), request_of([10] * 3)
    waiting = [many, three, one]
    assert batch(waiting, 640, oldest_first=True) == [(many, 64)]
    assert batch(waiting, 640, oldest_first=False) == [(one, 1), (three, 3), (many, 60)]
    assert waiting == [many]


def test_request_with_more_progress_finishes_first() -> None:
    first, second = request_of([10] * 100), request_of([10] * 100)
    waiting = [first, second]
    for number in range(9):
        assert batch(waiting, 100, oldest_first=number % 2 == 0) == [(first, 10)]
    assert waiting == [first, second]
    assert batch(waiting, 200, oldest_first=True) == [(first, 10), (second, 10)]
    assert waiting == [second]


def test_queries_are_not_batched_with_long_texts() -> None:
    documents, queries = request_of([200] * 10), [request_of([8]) for _ in range(5)]
    waiting = [documents, *queries]
    assert batch(waiting, 512, oldest_first=True) == [(documents, 2)]
    assert batch(waiting, 512, oldest_first=False) == [(query, 1) for query in queries]
    assert batch(waiting, 512, oldest_first=False) == [(documents, 2)]


def test_a_text_longer_than_a_batch_runs_alone() -> None:
    long, short = request_of([256]), request_of([200])
    waiting = [long, short]
    assert batch(waiting, 100, oldest_first=True) == [(long, 1)]
    assert batch(waiting, 100, oldest_first=True) == [(short, 1)]
    assert batch(waiting, 100, oldest_first=True) == []


@given(st.lists(st.lists(st.integers(1, 50), min_size=1), max_size=8), st.integers(1, 400))
def test_every_text_is_batched_once_longest_first(texts: list[list[int]], tokens: int) -> None:
    requests = [request_of(lengths) for lengths in texts]
    waiting = list(requests)
    oldest_first = True
    went: dict[int, list[int]] = {number: [] for number in range(len(requests))}
    while waiting:
        first = waiting[0] if oldest_first else min(waiting, key=lambda request: len(request.left))
        shares = next_batch(waiting, tokens, oldest_first=oldest_first)
        oldest_first = not oldest_first
        assert shares[0][0] is first
        lengths = [len(request.tokenized.ids[number]) for request, numbers in shares for number in numbers]
        assert max(lengths) <= 2 * min(lengths)
        assert len(lengths) == 1 or len(lengths) * max(lengths) <= tokens
        for request, numbers in shares:
            went[requests.index(request)] += numbers
    for lengths, numbers in zip(texts, went.values(), strict=True):
        assert sorted(numbers) == list(range(len(lengths)))
        assert [lengths[number] for number in numbers] == sorted(lengths, reverse=True)
