"""Embed texts of concurrent requests in shared batches, with an LRU cache of vectors."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from es_sbert.arguments import as_text
from es_sbert.batched import slice_by_size
from es_sbert.bundle.modules import PromptKind
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.text_pipeline import EncodeResult, EncoderInfo
from es_sbert.errors import Overloaded, UsageError
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.settings import Limits
from es_sbert.index.mapping import ChunkRules
from es_sbert.runtime.chunker import Chunker
from es_sbert.runtime.tokenizer import TokenizedTexts
from es_sbert.vectors import Vectors


@dataclass(eq=False)
class QueuedRequest:
    """The uncached texts of one request.

    Attributes:
        left: Positions of the texts that are not yet in a batch. The longest is the last one and is taken first: a
            batch is padded to its longest text, so texts of similar length belong together.
        parts: Positions of embedded texts, and their vectors.
    """

    tokenized: TokenizedTexts
    future: asyncio.Future[EncodeResult]
    left: list[int] = field(init=False)
    parts: list[tuple[list[int], Vectors]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ids = self.tokenized.ids
        self.left = sorted(range(len(ids) - 1, -1, -1), key=lambda number: len(ids[number]))

    def deliver(self, numbers: list[int], vectors: Vectors) -> None:
        """Add vectors; the last ones complete the request."""
        self.parts.append((numbers, vectors))
        if sum(len(done) for done, _ in self.parts) == len(self.tokenized) and not self.future.done():
            places = np.argsort(np.concatenate([done for done, _ in self.parts]))  # (texts,)
            # A copy, which does not keep the vectors of other requests in memory.
            joined = np.concatenate([part for _, part in self.parts])[places]  # (texts, dimensions)
            self.future.set_result(EncodeResult(joined, self.tokenized.tokens, self.tokenized.truncated))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


# The positions of the texts of one request in a batch.
BatchSlice: TypeAlias = tuple[QueuedRequest, list[int]]


def next_batch(waiting: list[QueuedRequest], tokens: int, *, oldest_first: bool) -> list[BatchSlice]:
    """Take a batch from one request first, then from those with the fewest remaining texts.

    Batches alternately begin with the oldest request and with the one that has the fewest remaining texts. So a query
    does not wait for a thousand documents, and the thousand documents do not wait forever. Of two large requests, one
    finishes early: its documents go to the engine while those of the other are embedded.

    The texts of a batch have similar lengths, because each takes as long as the longest: no text has more than twice
    the tokens of another.

    Args:
        waiting: The requests, oldest first. Requests without remaining texts are removed.
        tokens: Maximum padded tokens of the batch (longest × texts). A longer text runs alone.
        oldest_first: Begin with the oldest request.

    Returns:
        The texts of each request in the batch; empty if no request waits.
    """
    order = sorted(waiting, key=lambda request: len(request.left))
    if order and oldest_first:
        order.remove(waiting[0])
        order.insert(0, waiting[0])
    slices = []
    count, shortest, longest = 0, sys.maxsize, 0
    for request in order:
        if (count + 1) * longest > tokens:
            break
        numbers = []
        while request.left:
            length = len(request.tokenized.ids[request.left[-1]])
            low, high = min(shortest, length), max(longest, length)
            if count and (high > 2 * low or (count + 1) * high > tokens):
                break
            count, shortest, longest = count + 1, low, high
            numbers.append(request.left.pop())
        if numbers:
            slices.append((request, numbers))
    waiting[:] = [request for request in waiting if request.left]
    return slices


# Fingerprint of the model, kind of the prompt, and a hash of caller and text, so that all keys have the same size.
VectorCacheKey = tuple[str, PromptKind | None, bytes]


# The most recently used vectors, shared by all models, for use in one thread. Each value is the result for one text.
VectorCache: TypeAlias = LRUCache[VectorCacheKey, EncodeResult]


T = TypeVar("T")


# Texts with fewer characters are tokenized in the event loop, which is faster than using a thread.
_TOKENIZE_INLINE_CHARACTERS = 1024
# Niceness of the threads relative to the process. Batches use all cores: at a lower priority, the threads yield a core
# to the event loop at once, and still get a third of it on a busy machine.
_NICE_INCREMENT = 5
_DRAIN_POLL_SECONDS = 0.01
# Characters that a thread tokenizes at a time, so that other requests get a thread in between.
_TOKENIZE_PART_CHARACTERS = 1 << 17


class BatchingEmbedder:
    """Batches texts of concurrent requests of one event loop.

    Each batch runs in one thread of the encoder.

    Args:
        encoder: Owned by the embedder.
        limits: Limits of batches and the queue.
        cache: Shared by the embedders of all models.
        metrics: Counts texts and batches.

    Attributes:
        info: Description of the encoder.
        batches_in_flight: Maximum batches that run or wait in the encoder.
    """

    def __init__(self, encoder: Encoder, limits: Limits, cache: VectorCache, metrics: GatewayMetrics) -> None:
        self.info: EncoderInfo = encoder.info
        self.input_limit = encoder.pipeline.input_limit
        self._encoder = encoder
        self._waiting_texts = limits.waiting_texts
        self._batch_tokens = limits.batch_tokens or encoder.pipeline.batch_tokens
        # One more than the encoder runs at a time, so that its threads are never idle. With more, a query would wait
        # for all of them.
        self.batches_in_flight = encoder.pipeline.parallel_batches + 1
        self._cache = cache
        self._metrics = metrics
        # One more thread, to tokenize texts while batches run.
        self._threads = ThreadPoolExecutor(
            self.batches_in_flight + 1, thread_name_prefix="embedder", initializer=_lower_priority
        )
        self._chunkers: dict[ChunkRules, Chunker] = {}
        self._pending: list[QueuedRequest] = []
        self._oldest_first = True
        self._occupied = 0  # texts in the queue or in batches
        self._running: set[asyncio.Task[None]] = set()  # one task for each batch in flight

    async def embed(self, texts: Sequence[str], kind: PromptKind | None = None, caller: bytes = b"") -> EncodeResult:
        """Embed texts; the vectors are in their order.

        Cancellation removes the texts from the queue. Vectors of documents are not cached, since documents seldom
        repeat.

        Args:
            texts: At most `waiting_texts`.
            kind: Prompt to prepend: `query` or `document`.
            caller: Key of the caller (`caller_cache_key`), which separates the cache by caller.

        Raises:
            UsageError: a text contains invalid Unicode, or there are more texts than the queue may hold.
            Overloaded: the queue is full.
        """
        if not texts:
            return EncodeResult(np.empty((0, self.info.dimensions), np.float32), np.empty(0, int), np.empty(0, bool))
        keys = _cache_keys(self.info.fingerprint, texts, kind, caller)
        cached = [self._cache.get(key) for key in keys]
        missing = [number for number, entry in enumerate(cached) if entry is None]
        self._metrics.cache_hits.inc(len(texts) - len(missing))
        if missing:
            fresh = await self._enqueue([texts[number] for number in missing], kind)
            for row, number in enumerate(missing):
                # A copy: a view would keep the whole batch in memory.
                cached[number] = entry = EncodeResult(fresh.vectors[[row]], fresh.tokens[[row]], fresh.truncated[[row]])
                if kind != "document" and self._cache.maxsize:
                    self._cache[keys[number]] = entry
            if len(missing) == len(texts):
                return fresh
        entries = [entry for entry in cached if entry is not None]
        return EncodeResult(
            np.concatenate([entry.vectors for entry in entries]),  # (texts, dimensions)
            np.concatenate([entry.tokens for entry in entries]),  # (texts,)
            np.concatenate([entry.truncated for entry in entries]),  # (texts,)
        )

    async def chunker(self, rules: ChunkRules) -> Chunker:
        """Return the chunker of documents with these rules."""
        if rules not in self._chunkers:
            make = self._encoder.pipeline.make_chunker
            self._chunkers[rules] = await self.run_in_thread(make, rules.tokens, rules.overlap, "document")
        return self._chunkers[rules]

    async def run_in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in one of the threads for batches."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def drain(self) -> None:
        """Wait until all requests are done."""
        while self._occupied or self._running:  # also batches of cancelled requests
            await asyncio.sleep(_DRAIN_POLL_SECONDS)

    def close(self) -> None:
        """Close the encoder and its threads."""
        self._threads.shutdown(wait=False)
        self._encoder.close()

    async def _enqueue(self, texts: list[str], kind: PromptKind | None) -> EncodeResult:
        limit = self._waiting_texts
        if len(texts) > limit:
            raise UsageError(
                f"{len(texts):,} texts are too many for one request: the limit is {limit:,}",
                "Send them in several requests.",
            )
        if self._occupied + len(texts) > limit:
            raise Overloaded(
                f"{self._occupied:,} texts wait to be embedded, and the limit is {limit:,}",
                "Send the request again in a moment, and fewer at a time.",
            )
        loop = asyncio.get_running_loop()
        self._occupy(len(texts))
        try:
            request = QueuedRequest(await self._tokenize(texts, kind), loop.create_future())
            self._pending.append(request)
            # Start batches in the event loop's next iteration, so that concurrent requests share a batch.
            loop.call_soon(self._start_batches)
            return await request.future
        finally:
            self._occupy(-len(texts))

    async def _tokenize(self, texts: Sequence[str], kind: PromptKind | None) -> TokenizedTexts:
        if sum(map(len, texts)) <= _TOKENIZE_INLINE_CHARACTERS:
            return self._encoder.pipeline.tokenize(texts, kind)
        parts = [
            await self.run_in_thread(self._encoder.pipeline.tokenize, part, kind)
            for part in slice_by_size(texts, len, _TOKENIZE_PART_CHARACTERS)
        ]
        return TokenizedTexts.joined(parts, self.input_limit(kind))

    def _occupy(self, change: int) -> None:
        self._occupied += change
        self._metrics.texts_waiting.inc(change)

    def _start_batches(self) -> None:
        while len(self._running) < self.batches_in_flight:
            # Drop requests that were cancelled, or that failed in another batch.
            self._pending = [request for request in self._pending if not request.future.done()]
            batch = next_batch(self._pending, self._batch_tokens, oldest_first=self._oldest_first)
            if not batch:
                break
            self._oldest_first = not self._oldest_first
            task = asyncio.create_task(self._embed_batch(batch))
            self._running.add(task)
            task.add_done_callback(self._batch_done)

    def _batch_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled() or task.exception() is not None:
            # The event loop is shutting down, or there is a bug: cancel waiting requests rather than let them hang.
            while self._pending:
                self._pending.pop().future.cancel()
        self._start_batches()

    async def _embed_batch(self, batch: Sequence[BatchSlice]) -> None:
        start = time.perf_counter()
        try:
            vectors = await self.run_in_thread(_encode_batch, batch, self._encoder)
        except Exception as error:
            if len(batch) == 1:
                batch[0][0].fail(error)
                return
            # Retry each request alone, so that only the request that caused the error fails.
            for share in batch:
                await self._embed_batch([share])
            return
        except BaseException:
            for request, _ in batch:
                request.future.cancel()
            raise
        self._metrics.observe_batch(len(vectors), time.perf_counter() - start)
        first = 0
        for request, numbers in batch:
            request.deliver(numbers, vectors[first : first + len(numbers)])
            first += len(numbers)


def _lower_priority() -> None:
    if sys.platform == "linux":  # the only system with priorities of threads
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE_INCREMENT)


def _cache_keys(fingerprint: str, texts: Sequence[str], kind: PromptKind | None, caller: bytes) -> list[VectorCacheKey]:
    """Keys of texts. Callers do not share vectors, so that response times do not reveal what others searched for."""
    try:
        hashes = [hashlib.blake2b(text.encode(), key=caller, digest_size=16).digest() for text in texts]
    except UnicodeEncodeError:
        # Reject the text before the tokenizer, where it would make the texts of other requests fail too.
        for text in texts:
            as_text(text)
        raise
    return [(fingerprint, kind, digest) for digest in hashes]


def _encode_batch(batch: Sequence[BatchSlice], encoder: Encoder) -> Vectors:
    """Embed the texts of several requests; runs in a thread. *Shape:* ``(texts, dimensions)``."""
    ids: list[NDArray[np.int64]] = [request.tokenized.ids[number] for request, numbers in batch for number in numbers]
    tokens = np.concatenate([request.tokenized.tokens[numbers] for request, numbers in batch])  # (texts,)
    return encoder.pipeline.embed(
        TokenizedTexts(ids, tokens, max(request.tokenized.max_tokens for request, _ in batch))
    )
