"""Embed texts of concurrent requests in shared batches, with an LRU cache of vectors."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.encoder.encoder import Encoder, EncodeResult, EncoderInfo
from es_sbert.errors import Overloaded, UsageError
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.settings import EmbeddingSettings
from es_sbert.runtime.batching import slice_by_size
from es_sbert.runtime.chunker import Chunker
from es_sbert.runtime.tokenizer import TokenizedTexts


@dataclass(eq=False)
class QueuedRequest:
    """The uncached texts of one request, longest first.

    A batch is padded to its longest text, so texts of similar length belong together.

    Attributes:
        order: Positions of the texts, by descending length.
        begun: Number of texts taken for batches.
        parts: Positions of embedded texts, and their vectors.
    """

    tokenized: TokenizedTexts
    future: asyncio.Future[EncodeResult]
    order: list[int] = field(init=False)
    begun: int = 0
    parts: list[tuple[list[int], EncodeResult]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ids = self.tokenized.ids
        self.order = sorted(range(len(ids)), key=lambda number: len(ids[number]), reverse=True)

    @property
    def left(self) -> int:
        return len(self.order) - self.begun

    @property
    def next_token_count(self) -> int:
        """Tokens of the next text."""
        return len(self.tokenized.ids[self.order[self.begun]])

    def take(self) -> int:
        """Take the next text; returns its position."""
        self.begun += 1
        return self.order[self.begun - 1]

    def deliver(self, numbers: list[int], part: EncodeResult) -> None:
        """Add vectors; the last ones complete the request."""
        self.parts.append((numbers, part))
        if sum(len(done) for done, _ in self.parts) == len(self.order) and not self.future.done():
            places = np.argsort(np.concatenate([done for done, _ in self.parts]))  # (texts,)
            self.future.set_result(select_rows(join_results(part for _, part in self.parts), places))

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, eq=False)
class BatchSlice:
    """The texts of one request in a batch.

    Attributes:
        numbers: Positions of the texts in the request.
    """

    request: QueuedRequest
    numbers: list[int]

    @property
    def tokenized(self) -> TokenizedTexts:
        whole = self.request.tokenized
        return TokenizedTexts(
            [whole.ids[number] for number in self.numbers],
            whole.tokens[self.numbers],
            whole.max_tokens,
        )


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
    order = sorted(waiting, key=lambda request: request.left)
    if order and oldest_first:
        order.remove(waiting[0])
        order.insert(0, waiting[0])
    shares = []
    count, shortest, longest = 0, sys.maxsize, 0
    for request in order:
        if (count + 1) * longest > tokens:
            break
        numbers = []
        while request.left:
            length = request.next_token_count
            low, high = min(shortest, length), max(longest, length)
            if count and (high > 2 * low or (count + 1) * high > tokens):
                break
            count, shortest, longest = count + 1, low, high
            numbers.append(request.take())
        if numbers:
            shares.append(BatchSlice(request, numbers))
    waiting[:] = [request for request in waiting if request.left]
    return shares


def join_results(parts: Iterable[EncodeResult]) -> EncodeResult:
    """Concatenate the vectors of all parts. The result is a copy, so it does not keep other vectors in memory."""
    parts = list(parts)
    return EncodeResult(
        np.concatenate([part.vectors for part in parts]),  # (texts, dimensions)
        np.concatenate([part.tokens for part in parts]),  # (texts,)
        np.concatenate([part.truncated for part in parts]),  # (texts,)
    )


def select_rows(result: EncodeResult, rows: slice | NDArray[np.intp] | list[int]) -> EncodeResult:
    """Return the vectors of some of the texts."""
    return EncodeResult(result.vectors[rows], result.tokens[rows], result.truncated[rows])


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
# Characters that a thread tokenizes at a time, so that other requests get a thread in between.
_TOKENIZE_PART_CHARACTERS = 1 << 17


class BatchingEmbedder:
    """Batches texts of concurrent requests of one event loop.

    Each batch runs in one thread of the encoder. The encoder is closed when the embedder is garbage-collected.

    Args:
        encoder: Owned by the embedder.
        settings: Limits of batches and the queue.
        cache: Shared by the embedders of all models.
        metrics: Counts texts and batches.

    Attributes:
        info: Description of the encoder.
        batches_in_flight: Maximum batches that run or wait in the encoder.
        close: Closes the encoder and its threads.
    """

    def __init__(
        self, encoder: Encoder, settings: EmbeddingSettings, cache: VectorCache, metrics: GatewayMetrics
    ) -> None:
        self.info: EncoderInfo = encoder.info
        self._encoder = encoder
        self._settings = settings
        self._batch_tokens = settings.batch_tokens or encoder.batch_tokens
        # One more than the encoder runs at a time, so that its threads are never idle. With more, a query would wait
        # for all of them.
        self.batches_in_flight = encoder.parallel_batches + 1
        self._cache = cache
        self._metrics = metrics
        # One more thread, to tokenize texts while batches run.
        self._threads = ThreadPoolExecutor(
            self.batches_in_flight + 1, thread_name_prefix="embedder", initializer=_lower_priority
        )
        self._pending: list[QueuedRequest] = []
        self._oldest_first = True
        self._occupied = 0  # texts in the queue or in batches
        self._free = asyncio.Event()  # set while there are no such texts
        self._free.set()
        self._running: set[asyncio.Task[None]] = set()  # one task for each batch in flight
        self.close = weakref.finalize(self, _close, encoder, self._threads)

    async def embed(self, texts: Sequence[str], kind: PromptKind | None = None, caller: bytes = b"") -> EncodeResult:
        """Embed texts; the vectors are in their order.

        Cancellation removes the texts from the queue. Vectors of documents are not cached, since documents seldom
        repeat.

        Args:
            texts: At most `waiting_texts`.
            kind: Prompt to prepend: `query` or `document`.
            caller: Key of the caller (`CallerCacheKeys.key`), which separates the cache by caller.

        Raises:
            UsageError: `texts` is not a sequence of strings, contains invalid Unicode, or holds more texts than the
                queue may.
            Overloaded: the queue is full.
        """
        keys = _cache_keys(self.info.fingerprint, texts, kind, caller)
        cached = [self._cache.get(key) for key in keys]
        missing = [number for number, entry in enumerate(cached) if entry is None]
        self._metrics.cache_hits.inc(len(texts) - len(missing))
        if missing:
            fresh = await self._enqueue([texts[number] for number in missing], kind)
            for row, number in enumerate(missing):
                # A copy: a view would keep the whole batch in memory.
                entry = select_rows(fresh, [row])
                if kind != "document" and self._cache.maxsize:
                    self._cache[keys[number]] = entry
                cached[number] = entry
            if len(missing) == len(texts):
                return fresh
        if not texts:
            return EncodeResult(np.empty((0, self.info.dimensions), np.float32), np.empty(0, int), np.empty(0, bool))
        return join_results(entry for entry in cached if entry is not None)

    async def make_chunker(self, tokens: int, overlap: int, kind: PromptKind) -> Chunker:
        """See `Encoder.make_chunker`."""
        return await self.run_in_thread(self._encoder.make_chunker, tokens, overlap, kind)

    async def run_in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in one of the threads for batches."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def drain(self) -> None:
        """Wait until all requests are done."""
        await self._free.wait()
        if self._running:  # batches of cancelled requests
            await asyncio.wait(self._running)

    async def _enqueue(self, texts: list[str], kind: PromptKind | None) -> EncodeResult:
        limit = self._settings.waiting_texts
        if len(texts) > limit:
            raise UsageError(
                f"{len(texts):,} texts are too many for one request: the limit is {limit:,}",
                "Send them in several requests, or raise the gateway's limit of waiting texts.",
            )
        if self._occupied + len(texts) > limit:
            self._metrics.texts_refused.inc(len(texts))
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

    def input_limit(self, kind: PromptKind | None) -> int:
        """Longest input of this kind in tokens; see `Encoder.input_limit`."""
        return self._encoder.input_limit(kind)

    async def _tokenize(self, texts: Sequence[str], kind: PromptKind | None) -> TokenizedTexts:
        if sum(map(len, texts)) <= _TOKENIZE_INLINE_CHARACTERS:
            return self._encoder.tokenize(texts, kind)
        parts = [
            await self.run_in_thread(self._encoder.tokenize, part, kind)
            for part in slice_by_size(texts, len, _TOKENIZE_PART_CHARACTERS)
        ]
        return TokenizedTexts.joined(parts, self._encoder.input_limit(kind))

    def _occupy(self, change: int) -> None:
        self._occupied += change
        self._metrics.texts_waiting.inc(change)
        if self._occupied:
            self._free.clear()
        else:
            self._free.set()

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
            parts = await self.run_in_thread(_encode_batch, batch, self._encoder)
        except Exception as error:
            if len(batch) == 1:
                batch[0].request.fail(error)
                return
            # Retry each request alone, so that only the request that caused the error fails.
            for share in batch:
                await self._embed_batch([share])
            return
        except BaseException:
            for share in batch:
                share.request.future.cancel()
            raise
        self._metrics.observe_batch(sum(len(share.numbers) for share in batch), time.perf_counter() - start)
        for share, part in zip(batch, parts, strict=True):
            share.request.deliver(share.numbers, part)


def _lower_priority() -> None:
    if sys.platform == "linux":  # the only system with priorities of threads
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE_INCREMENT)


def _close(encoder: Encoder, threads: ThreadPoolExecutor) -> None:
    # Do not wait: this may run in one of these threads.
    threads.shutdown(wait=False)
    encoder.close()


def _cache_keys(fingerprint: str, texts: Sequence[str], kind: PromptKind | None, caller: bytes) -> list[VectorCacheKey]:
    """Keys of texts. Callers do not share vectors, so that response times do not reveal what others searched for."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise UsageError("the texts to embed must be a sequence of strings", "Pass a list of strings.")
    try:
        hashes = [hashlib.blake2b(text.encode(), key=caller, digest_size=16).digest() for text in texts]
    except UnicodeEncodeError as error:
        # Reject the text before the tokenizer, where it would make the texts of other requests fail too.
        raise UsageError(f"a text cannot be tokenized: {error.reason}", "Pass valid Unicode strings.") from error
    return [(fingerprint, kind, digest) for digest in hashes]


def _encode_batch(batch: Sequence[BatchSlice], encoder: Encoder) -> list[EncodeResult]:
    """Embed the texts of several requests; runs in a thread."""
    parts = [share.tokenized for share in batch]
    texts = TokenizedTexts.joined(parts, max(part.max_tokens for part in parts))
    # Take each part's own flags: queries and documents may have different limits.
    truncated = np.concatenate([part.truncated for part in parts])  # (texts,)
    result = EncodeResult(encoder.embed(texts), texts.tokens, truncated)
    ends = np.cumsum([len(share.numbers) for share in batch])  # (callers,)
    return [select_rows(result, slice(first, end)) for first, end in pairwise([0, *ends.tolist()])]
