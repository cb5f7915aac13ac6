"""Texts of concurrent requests become vectors together: while one batch runs, what comes makes the next one."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from es_sbert.bundle.model import PromptKind
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.types import Encoded, EncoderInfo, TokenizedTexts
from es_sbert.errors import Overloaded, UsageError
from es_sbert.gateway.embedding.cache import CachedVector, Key, VectorCache, cache_key
from es_sbert.gateway.embedding.shares import fair_shares
from es_sbert.gateway.embedding.waiting import WaitingRequest
from es_sbert.gateway.metrics import GatewayMetrics

T = TypeVar("T")


class EmbeddingSettings(BaseModel):
    """How texts of concurrent requests are put together.

    Attributes:
        batch_seconds: How long a text waits for others where no batch runs. None is needed: those that come while a
            batch runs make the next one, and a caller who is alone would wait for nothing.
        batch_texts: Most texts that run together; a text that comes meanwhile waits for at most so many.
        waiting_texts: Most texts that wait for their vectors, or run; more are refused.
        cached_vectors: Vectors that are kept for texts that come again (1.5 kB each at 384 dimensions).
    """

    model_config = ConfigDict(frozen=True)

    batch_seconds: float = Field(default=0.0, ge=0, le=1)
    batch_texts: int = Field(default=64, ge=1)
    waiting_texts: int = Field(default=4096, ge=1)
    cached_vectors: int = Field(default=10_000, ge=0)


Batch = list[tuple[WaitingRequest, list[str]]]


class Embedder:
    """An encoder for concurrent callers of one event loop.

    The encoder runs in one thread, a batch at a time, and is closed once nobody holds the embedder any more.

    Args:
        encoder: Is the embedder's from now on.
        settings: How texts are put together.
        cache: Shared by the embedders of all models.
        metrics: Told what happens.
    """

    def __init__(
        self, encoder: Encoder, settings: EmbeddingSettings, cache: VectorCache, metrics: GatewayMetrics
    ) -> None:
        self.info: EncoderInfo = encoder.info
        self._encoder = encoder
        self._settings = settings
        self._cache = cache
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._pending: deque[WaitingRequest] = deque()
        self._occupied = 0  # texts that wait or run
        self._full = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._closer = weakref.finalize(self, _close, encoder, self._thread)

    async def embed(self, texts: Sequence[str], kind: PromptKind | None = None, caller: bytes = b"") -> Encoded:
        """Vectors of texts, in their order.

        A caller who gives up (is cancelled) costs no more than the batch that runs already. The vectors of documents
        are not cached: a document comes once.

        Args:
            texts: Any number up to `waiting_texts`.
            kind: `query` or `document` puts the model's prompt of that kind in front.
            caller: Who asks (`CallerKeys.key`): vectors are cached for each caller alone.

        Raises:
            UsageError: not a sequence of texts, or a text that is not valid Unicode, or more than may ever wait.
            Overloaded: too many texts wait already.
        """
        keys = _keys(self.info.fingerprint, texts, kind, caller)
        found = [self._cache.get(key) for key in keys]
        missing = [number for number, entry in enumerate(found) if entry is None]
        self._metrics.from_cache(len(texts) - len(missing))
        if missing:
            fresh = await self._run([texts[number] for number in missing], kind)
            for number, row in zip(missing, range(len(missing)), strict=True):
                entry = CachedVector(fresh.vectors[row], int(fresh.tokens[row]), bool(fresh.truncated[row]))
                if kind != "document":
                    self._cache.put(keys[number], entry)
                found[number] = entry
            if len(missing) == len(texts):
                return fresh
        entries = [entry for entry in found if entry is not None]
        return Encoded(
            np.array([entry.vector for entry in entries], np.float32).reshape(len(texts), self.info.dimensions),
            np.array([entry.tokens for entry in entries], np.int64),  # (texts,)
            np.array([entry.truncated for entry in entries], np.bool_),  # (texts,)
        )

    async def in_turn(self, work: Callable[[Encoder], T]) -> T:
        """Something else that the encoder does, in the thread that batches run in: after one of them."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._encoder)

    async def drain(self) -> None:
        """Wait until every caller has got an answer."""
        while self._running is not None:
            await asyncio.wait([self._running])

    def close(self) -> None:
        """End the encoder and its threads; nothing may be embedded any more."""
        self._closer()

    async def _run(self, texts: list[str], kind: PromptKind | None) -> Encoded:
        most = self._settings.waiting_texts
        if len(texts) > most:
            raise UsageError(
                f"{len(texts):,} texts are too many for one request: at most {most:,} may wait",
                "Send them in several requests, or raise the gateway's limit of waiting texts.",
            )
        if self._occupied + len(texts) > most:
            self._metrics.refused(len(texts))
            raise Overloaded(
                f"{self._occupied:,} texts wait for their vectors, and at most {most:,} may",
                "Send the request again in a moment, and fewer at a time.",
            )
        request = WaitingRequest(texts, kind, asyncio.get_running_loop().create_future())
        self._pending.append(request)
        self._occupy(len(texts))
        try:
            if self._running is None:
                self._running = asyncio.create_task(self._serve())
            if self._occupied >= self._settings.batch_texts:
                self._full.set()
            return await request.future
        finally:
            self._occupy(-len(texts))

    def _occupy(self, change: int) -> None:
        self._occupied += change
        self._metrics.waiting(change)

    async def _serve(self) -> None:
        """Run batches until no caller waits."""
        try:
            if self._settings.batch_seconds:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.batch_seconds):
                        await self._full.wait()
            while batch := self._take():
                await self._answer(batch)
        finally:
            # Whatever ended this early ended it for those who wait too; nobody may wait for ever.
            while self._pending:
                self._pending.popleft().future.cancel()
            self._full.clear()
            self._running = None

    def _take(self) -> Batch:
        """The next batch: a share of each caller's texts, so that few texts do not wait for many."""
        waiting = [request for request in self._pending if not request.future.done()]
        shares = fair_shares([request.left for request in waiting], self._settings.batch_texts)
        batch = [(request, request.take(share)) for request, share in zip(waiting, shares, strict=True) if share]
        # Who got nothing comes first next time.
        unserved = [request for request, share in zip(waiting, shares, strict=True) if not share]
        self._pending = deque([*unserved, *(request for request, _ in batch if request.left)])
        return batch

    async def _answer(self, batch: Batch) -> None:
        start = time.perf_counter()
        try:
            parts = await self._encode(batch)
        except Exception as error:
            if len(batch) == 1:
                batch[0][0].fail(error)
                return
            # Each caller's texts run alone, so that the error reaches those only whose texts are the reason.
            for caller in batch:
                await self._answer([caller])
            return
        except BaseException:
            for request, _ in batch:
                request.future.cancel()
            raise
        self._metrics.batch(sum(len(texts) for _, texts in batch), time.perf_counter() - start)
        for (request, _), part in zip(batch, parts, strict=True):
            request.deliver(part)

    async def _encode(self, batch: Batch) -> list[Encoded]:
        work = [(texts, request.kind) for request, texts in batch]
        return await asyncio.get_running_loop().run_in_executor(self._thread, _encode, self._encoder, work)


def _close(encoder: Encoder, thread: ThreadPoolExecutor) -> None:
    # Without waiting: the last one who holds an embedder may be that thread itself.
    thread.shutdown(wait=False)
    encoder.close()


def _keys(fingerprint: str, texts: Sequence[str], kind: PromptKind | None, caller: bytes) -> list[Key]:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise UsageError("vectors are made of a sequence of texts", "Give a list of strings.")
    try:
        return [cache_key(fingerprint, kind, text, caller) for text in texts]
    except UnicodeEncodeError as error:
        # Found here rather than by the tokenizer, where it would fail the texts of other callers too.
        raise UsageError(f"a text cannot be tokenised: {error.reason}", "Give valid Unicode strings.") from error


def _encode(encoder: Encoder, work: Sequence[tuple[list[str], PromptKind | None]]) -> list[Encoded]:
    """Embed the texts of several callers together, whatever their kinds; in a thread."""
    tokenized = [encoder.tokenize(texts, kind) for texts, kind in work]
    tokens = np.concatenate([part.tokens for part in tokenized])  # (all texts,)
    ids = [row for part in tokenized for row in part.ids]
    vectors = encoder.embed(TokenizedTexts(ids, tokens, tokenized[0].max_tokens))  # (all texts, dimensions)
    ends = np.cumsum([len(part) for part in tokenized])  # (callers,)
    return [
        Encoded(vectors[end - len(part) : end], part.tokens, part.truncated)
        for part, end in zip(tokenized, ends, strict=True)
    ]
