"""Every caller gets the vectors of its own texts, whoever calls beside it, gives up or brings an error."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.bundle.modules import PromptKind
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.text_pipeline import EncodeResult
from es_sbert.errors import ModelError, Overloaded, UsageError
from es_sbert.gateway.embedder import BatchingEmbedder, QueuedRequest, VectorCache, next_batch
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.server.openai_api import exception_response, parse_embeddings_request
from es_sbert.gateway.settings import Limits
from es_sbert.runtime.tokenizer import TokenizedTexts
from tests.event_loop import in_event_loop
from tests.raised import raises_as_recorded
from tests.unit.gateway.encoders import POISON, TellingEncoder

Call = tuple[list[str], PromptKind | None]

_TEXTS = st.text("abc", max_size=12)
_CALLS = st.lists(
    st.tuples(st.lists(_TEXTS, max_size=9), st.sampled_from(TellingEncoder.KINDS)), min_size=1, max_size=12
)


def embedder(encoder: TellingEncoder, cache: VectorCache | None = None, **settings: Any) -> BatchingEmbedder:
    chosen = Limits(**settings)
    cache = VectorCache(chosen.cached_vectors) if cache is None else cache
    return BatchingEmbedder(cast(Encoder, encoder), chosen, cache, GatewayMetrics())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def assert_own(encoder: TellingEncoder, call: Call, encoded: EncodeResult) -> None:
    texts, kind = call
    np.testing.assert_array_equal(encoded.vectors, encoder.expected(texts, kind))
    assert encoded.vectors.shape == (len(texts), encoder.DIMENSIONS)
    assert encoded.vectors.dtype == np.float32
    assert encoded.tokens.tolist() == [len(text.encode()) + 1 for text in texts]
    assert encoded.truncated.tolist() == [len(text.encode()) + 1 > 8 for text in texts]


@given(_CALLS, st.integers(1, 100), st.integers(0, 6))
@in_event_loop
async def test_every_caller_gets_its_own_vectors(calls: list[Call], batch_tokens: int, cached: int) -> None:
    encoder = TellingEncoder()
    embed = embedder(encoder, batch_tokens=batch_tokens, cached_vectors=cached).embed
    for _ in range(2):
        answers = await asyncio.gather(*(embed(texts, kind) for texts, kind in calls))
        for call, encoded in zip(calls, answers, strict=True):
            assert_own(encoder, call, encoded)
    assert all(len(batch) == 1 or len(batch) * max(batch) <= batch_tokens for batch in encoder.lengths)


@given(_CALLS, st.data())
@in_event_loop
async def test_cancelled_or_failed_callers_do_not_affect_others(calls: list[Call], data: st.DataObject) -> None:
    fates = [data.draw(st.sampled_from(["stays", "gives up", "fails"])) for _ in calls]
    encoder = TellingEncoder()
    encoder.may_run.clear()
    one = embedder(encoder, batch_tokens=20)
    tasks = []
    for (texts, kind), fate in zip(calls, fates, strict=True):
        extra = [POISON] if fate == "fails" else []
        tasks.append(asyncio.create_task(one.embed([*texts, *extra], kind)))
    await asyncio.sleep(0)
    for task, fate in zip(tasks, fates, strict=True):
        if fate == "gives up":
            task.cancel()
    encoder.may_run.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    for call, fate, answer in zip(calls, fates, answers, strict=True):
        if fate == "fails":
            assert isinstance(answer, MemoryError)
        elif fate == "gives up" and call[0]:
            assert isinstance(answer, asyncio.CancelledError)
        elif fate == "stays":
            assert isinstance(answer, EncodeResult)
            assert_own(encoder, call, answer)
    assert_own(encoder, (["again"], None), await one.embed(["again"]))


async def occupy(one: BatchingEmbedder, encoder: TellingEncoder) -> list[asyncio.Task[EncodeResult]]:
    """Start as many batches as may run, each with one text, and let them wait in the encoder."""
    encoder.may_run.clear()
    tasks = []
    for number in range(one.batches_in_flight):
        tasks.append(asyncio.create_task(one.embed([f"busy{number}"])))
        await until(lambda: encoder.running == len(tasks))
    return tasks


@in_event_loop
async def test_concurrent_callers_share_a_batch() -> None:
    encoder = TellingEncoder()
    one = embedder(encoder)
    await asyncio.gather(one.embed(["a"]), one.embed(["b"], "query"), one.embed(["c"]))
    assert encoder.batches == [3]


@in_event_loop
async def test_short_request_does_not_wait_for_a_large_one() -> None:
    encoder = TellingEncoder()
    encoder.may_run.clear()
    one = embedder(encoder, batch_tokens=60)
    many = asyncio.create_task(one.embed([f"text{number}" for number in range(1000)], "document"))
    await asyncio.to_thread(encoder.started.wait, 60)
    single = asyncio.create_task(one.embed(["query"], "query"))
    await asyncio.sleep(0)
    encoder.may_run.set()
    await single
    assert not many.done()
    assert len(encoder.batches) < 20
    assert_own(encoder, ([f"text{number}" for number in range(1000)], "document"), await many)


@in_event_loop
async def test_full_queue_rejects_texts_but_keeps_waiting_callers() -> None:
    encoder = TellingEncoder()
    one = embedder(encoder, waiting_texts=4)
    busy = await occupy(one, encoder)
    waiting = asyncio.create_task(one.embed(["a"]))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await one.embed(["c", "d"])
    # One who gives up makes room.
    given_up = asyncio.create_task(one.embed(["c"]))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    last = asyncio.create_task(one.embed(["d"]))
    await asyncio.sleep(0)
    encoder.may_run.set()
    await asyncio.gather(*busy)
    assert_own(encoder, (["a"], None), await waiting)
    assert_own(encoder, (["d"], None), await last)
    assert sorted(encoder.batches) == [*[1] * one.batches_in_flight, 2]
    with raises_as_recorded(UsageError):
        await one.embed(list("vwxyz"))


@in_event_loop
async def test_query_vectors_are_cached_but_document_vectors_are_not() -> None:
    encoder = TellingEncoder()
    cache = VectorCache(10)
    one = embedder(encoder, cache)
    first = await one.embed(["a", "b"], "query")
    first.vectors[:] = 7  # callers may do with their vectors what they like
    assert_own(encoder, (["b", "a", "b"], "query"), await one.embed(["b", "a", "b"], "query"))
    assert encoder.batches == [2]
    await one.embed(["a"])  # of another kind
    await one.embed(["a"], "document")
    await one.embed(["a"], "document")
    assert encoder.batches == [2, 1, 1, 1]
    other = TellingEncoder("0" * 32)
    await embedder(other, cache).embed(["a"], "query")  # of another model
    assert other.batches == [1]
    await one.embed([f"text{number}" for number in range(30)], "query")
    assert len(cache) == 10


@in_event_loop
async def test_invalid_unicode_is_refused_before_the_tokenizer() -> None:
    encoder = TellingEncoder()
    with raises_as_recorded(UsageError):
        await embedder(encoder).embed(["lone \ud800 surrogate"])
    assert encoder.batches == []


@in_event_loop
async def test_vector_cache_is_per_caller() -> None:
    """Otherwise the time of an answer would tell what others have searched for."""
    encoder = TellingEncoder()
    embed = embedder(encoder).embed
    for caller in (b"anna", b"ben", b""):
        made = len(encoder.batches)
        for _ in range(2):
            assert_own(encoder, (["a", "b"], "query"), await embed(["a", "b"], "query", caller))
        assert len(encoder.batches) == made + 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of single threads")
@in_event_loop
async def test_embedding_threads_have_lower_priority_than_event_loop() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    embedding = embedder(TellingEncoder())
    assert await embedding.run_in_thread(priority) > priority()
    embedding.close()


def request_of(lengths: Sequence[int]) -> QueuedRequest:
    """A request whose texts have so many tokens."""
    ids = [np.ones(length, dtype=np.int64) for length in lengths]
    return QueuedRequest(TokenizedTexts(ids, np.array(lengths, dtype=np.int64), 512), cast(Any, None))


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


@pytest.mark.parametrize(
    "body",
    [
        {"input": list(range(300_000))},
        {"input": [[7]] * 300_000},
        {"input": [["a", "b"]]},
        {"input": [None] * 300_000},
        *({"input": items} for items in (["a", None], ["a", 1], ["a", ["b"]], [[]], [True])),
        [{"input": "a"}],
        {"input": "a"} | {f"x{number}": 1 for number in range(300_000)},
    ],
)
def test_large_wrong_request_is_refused_at_once(body: Any) -> None:
    content = orjson.dumps(body)
    start = time.process_time()
    with raises_as_recorded(UsageError):
        parse_embeddings_request(content, Limits())
    assert time.process_time() - start < 2


def test_logged_error_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    overloaded = exception_response(Overloaded("m", "r"))
    assert (overloaded.status_code, overloaded.headers["retry-after"]) == (429, "1")
    caplog.clear()
    assert exception_response(ModelError("no model", "Get one.")).status_code == 503
    assert caplog.messages == ["an embeddings request failed: no model. Get one."]
