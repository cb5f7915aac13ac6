"""`Encoder`: a sentence encoder on onnxruntime or OpenVINO, from texts to vectors in input order."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.bundle import EncoderBundle
from es_sbert.bundle.model_lookup import find_index_model
from es_sbert.bundle.modules import Pooling
from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.bundle.variants import Runtime
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.batching import (
    BatchLimits,
    InputBuilder,
    Vectors,
    plan_batches,
    row_length,
    row_route,
    unique_rows,
)
from es_sbert.encoder.chunker import Chunker
from es_sbert.encoder.compiled_model import Session
from es_sbert.encoder.inference_pool import InferencePool
from es_sbert.encoder.model_loading import (
    OnnxModel,
    SelectedVariant,
    gpu_warnings,
    open_variant,
    select_encoder_variant,
)
from es_sbert.encoder.onnx_session import SHORT_TEXT_TOKENS
from es_sbert.encoder.tokenizer import SentenceTokenizer, TokenizedTexts
from es_sbert.errors import ModelError, UsageError


@dataclass(frozen=True)
class EncodeResult:
    """Sentence vectors in the order of the texts.

    Attributes:
        vectors: *Shape:* ``(texts, dimensions)`` float32.
        tokens: *Shape:* ``(texts,)`` int64, tokens before any cut, as in `TokenizedTexts`.
        truncated: *Shape:* ``(texts,)`` bool.
    """

    vectors: Vectors
    tokens: NDArray[np.int64]
    truncated: NDArray[np.bool_]


@dataclass(frozen=True)
class EncoderInfo:
    """The model, variant and device that run, for summaries.

    Attributes:
        model, fingerprint, dimensions, max_tokens: Of the model.
        variant: ONNX variant that was loaded (`int8`, `fp16`, …).
        precision: Its number format.
        provider: onnxruntime's execution provider as the session reports it, or OpenVINO with its release.
        device: `cpu` or `cuda:N`, with the device's name where known.
        threads: CPU threads, 0 on CUDA.
        warnings: Repeated in every summary (a variant exported below its parity threshold, …).
        runtime: The library that runs it: `onnxruntime` or `openvino`.
    """

    model: str
    fingerprint: str
    dimensions: int
    max_tokens: int
    variant: str
    precision: str
    provider: str
    device: str
    threads: int
    warnings: tuple[str, ...] = ()
    runtime: str = Runtime.ONNXRUNTIME


class LoadOptions(TypedDict, total=False):
    """Keyword arguments of `Encoder` that say where and how it runs."""

    device: str
    precision: str
    runtime: str
    threads: int | None
    budget: int | None
    report: Callable[[str], None]


class Encoder(OnnxModel[EncoderBundle]):
    """A sentence encoder on onnxruntime or OpenVINO. A model without ONNX files is exported to the cache on first use.

    It is also an embedding object for LangChain and elasticsearch-py (`embed_documents`, `embed_query`). Thread-safe.
    Close it, or use it as a context manager, to end its threads.

    Usage:
        with Encoder("all-MiniLM-L6-v2") as encoder:
            vectors = encoder.encode(["A man plays a guitar.", "The cat sleeps."])  # (2, 384) float32
            vector = encoder.encode("A man plays a guitar.")  # (384,)

    Args:
        model: Model folder, bundle, hub id, installed or registered name; `all-MiniLM-L6-v2` by default. A `Path` is
            always a folder.
        device: `auto`, `cpu`, `cuda` or `cuda:N`. `cuda` fails if CUDA is not available. `auto` uses the CPU if CUDA
            does not work, and says so in `info.warnings`.
        precision: `auto`, `fp32`, `bf16`, `int8` or `fp16`.
        runtime: `auto`, `onnxruntime` or `openvino`. With precision and runtime `auto`, the fastest variant on this
            machine runs; the first use of a model measures it.
        threads: CPU threads, by default one for each physical core, or for each logical core if that was measured to be
            faster. On CUDA the number of concurrent batches, by default 2.
        budget: Tokens of one batch, with padding on a CPU, without on CUDA; the best for the device by default.
        called: Name to show in `info.model` and in messages instead of the model's own.
        report: Called with a message before slow steps such as the export, and once per process if `auto` finds no GPU.

    Attributes:
        info: The model, variant and device that run.
        window: How many texts to sort by length and embed together.

    Raises:
        ModelError: the model was not found, is broken or has an unknown architecture; the cache cannot be written.
        DeviceError: the requested device cannot be used.
        UsageError: there is no such variant for the device.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        precision: str = "auto",
        runtime: str = "auto",
        threads: int | None = None,
        budget: int | None = None,
        called: str | None = None,
        report: Callable[[str], None] = lambda message: None,
    ) -> None:
        name = DEFAULT_MODEL if model is None else model
        warnings = gpu_warnings(device, report)
        select = partial(
            select_encoder_variant, name, precision=precision, runtime=runtime, called=called, report=report
        )
        selected, pool = open_variant(select, device, threads)
        self._start(replace(selected, warnings=(*warnings, *selected.warnings)), pool, budget)

    @classmethod
    def for_index(
        cls, index: str, name: str, fingerprint: str, *, model: str | None = None, **options: Unpack[LoadOptions]
    ) -> Encoder:
        """Load the model that made an index's vectors from this machine or the hub (see `find_index_model`).

        The caller compares `info.fingerprint` with the mapping: a package or the hub may have another model of that
        name.

        Args:
            index: Name of the index, for messages.
            name: Name of the model in the mapping, and of `info.model`.
            fingerprint: Fingerprint of the model in the mapping.
            model: A model to load instead, as for `Encoder`.

        Raises:
            ModelError, DeviceError, UsageError: as `Encoder`.
        """
        if model is not None:
            return cls(model, **options)
        located = find_index_model(index, name, fingerprint)
        return cls(located.folder, called=located.name, **options)

    def _start(self, selected: SelectedVariant[EncoderBundle], pool: InferencePool, budget: int | None) -> None:
        bundle, device = selected.bundle, selected.device
        self._model = bundle.model
        self._pool = pool
        with pool.session() as session:
            padded_length = partial(pool.model.padded_length, most=bundle.model.longest_input)
            self._inputs = InputBuilder(session.input_names, session.properties, padded_length)
        self._tokenizer = SentenceTokenizer(bundle.model)
        # Of a text without tokens there is no first vector and no largest value. By route.
        self._tokenless_is_zero = [
            self._inputs.packed or not _POOLINGS_WITHOUT_TOKENS.issuperset(model.pooling)
            for model in bundle.model.routes or [bundle.model]
        ]
        self._limits = pool.model.batch_limits(budget or selected.batch_tokens)
        self.window = pool.model.window
        self.info = EncoderInfo(
            model=bundle.model.name,
            fingerprint=bundle.model.fingerprint,
            dimensions=bundle.model.dimensions,
            max_tokens=bundle.model.max_tokens,
            variant=str(selected.variant),
            precision=bundle.manifest.variants[selected.variant].precision,
            runtime=bundle.manifest.variants[selected.variant].runtime,
            provider=pool.provider,
            device=str(device),
            threads=pool.count if device.kind == "cpu" else 0,
            warnings=selected.warnings,
        )

    def encode(self, texts: str | Iterable[str], kind: PromptKind | None = None) -> Vectors:
        """Embed texts.

        Args:
            texts: One text or any number of them; all vectors are held in memory (see `encode_stream`).
            kind: `query` or `document` puts the model's prompt of that kind in front of each text.

        Returns:
            *Shape:* ``(texts, dimensions)`` float32, in the order of the texts; ``(dimensions,)`` for one string.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        if isinstance(texts, str):
            vector: Vectors = self.encode_details([texts], kind).vectors[0]
            return vector
        return self.encode_details(texts, kind).vectors

    def encode_details(self, texts: Iterable[str], kind: PromptKind | None = None) -> EncodeResult:
        """Embed texts as `encode` does, and return token counts and truncation too.

        Raises:
            UsageError: a single string, or a text that is not valid Unicode.
        """
        if isinstance(texts, str):
            # A string is an iterable of strings: each letter would be embedded.
            raise UsageError("texts must be a sequence of texts, not one string", "Pass a list: [text].")
        texts = list(texts)
        if len(texts) <= self.window:
            return self._embed_details(self.tokenize(texts, kind))
        parts = [(part.vectors, part.tokens, part.truncated) for part in self.encode_stream(texts, kind)]
        return EncodeResult(*map(np.concatenate, zip(*parts, strict=True)))

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text, with the model's document prompt, as `es-sbert ingest` embeds it.

        Raises:
            UsageError: a single string, or a text that is not valid Unicode.
        """
        vectors: list[list[float]] = self.encode_details(texts, "document").vectors.tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of a search text, with the model's query prompt, as `es-sbert search` embeds it.

        Raises:
            UsageError: not a string, or not valid Unicode.
        """
        if not isinstance(text, str):
            raise UsageError(f"the query is a {type(text).__name__}, not a string", "Give one string to embed_query.")
        vector: list[float] = self.encode(text, "query").tolist()
        return vector

    async def aembed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Run `embed_documents` in a thread."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Run `embed_query` in a thread."""
        return await asyncio.to_thread(self.embed_query, text)

    def tokenize(self, texts: Sequence[str], kind: PromptKind | None = None) -> TokenizedTexts:
        """The first half of `encode`, for pipelines that overlap the two.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        return self._tokenizer(texts, kind)

    @property
    def batch_tokens(self) -> int:
        """Most tokens of a batch; with padding on a CPU."""
        return self._limits.tokens or self._limits.padded

    @property
    def parallel_batches(self) -> int:
        """How many batches run concurrently."""
        return self._pool.count

    def prompt(self, kind: PromptKind | None = None) -> str:
        """The model's prompt for texts of this kind; empty if it has none."""
        return self._model.prompt(kind)

    def input_limit(self, kind: PromptKind | None = None) -> int:
        """Longest input of this kind in tokens, special tokens and prompt included; longer ones are cut."""
        return self._model.input_limit(kind)

    def make_chunker(self, tokens: int, overlap: int, kind: PromptKind | None = None) -> Chunker:
        """A chunker for texts that are longer than the model reads.

        Args:
            tokens: Most tokens of a chunk, special tokens and the prompt of `kind` included.
            overlap: Most tokens that two adjacent chunks share.

        Raises:
            UsageError: `tokens` exceeds the model's maximum or is too small for any text.
        """
        return self._tokenizer.make_chunker(tokens, overlap, kind)

    def embed(self, tokenized: TokenizedTexts) -> Vectors:
        """The second half of `encode`: run the model. Identical texts run once.

        Returns:
            *Shape:* ``(texts, dimensions)`` float32, in the order of the texts.

        Raises:
            ModelError: a vector is not finite.
        """
        return self.embed_until(tokenized)[0]

    def embed_until(
        self,
        tokenized: TokenizedTexts,
        stop: threading.Event | None = None,
        progress: Callable[[float], None] = lambda part: None,
    ) -> tuple[Vectors, NDArray[np.bool_]]:
        """As `embed`, until `stop` is set: batches that run then are finished, and no other is started.

        Args:
            progress: Called after each batch, in the thread that ran it, with its part of all tokens; all parts sum
                to 1.

        Returns:
            Vectors of *shape* ``(texts, dimensions)`` float32, and which of them were computed, of *shape*
            ``(texts,)`` bool; the other rows hold no vector.

        Raises:
            ModelError: a vector is not finite.
        """
        if not len(tokenized):
            return np.empty((0, self.info.dimensions), dtype=np.float32), np.empty(0, dtype=np.bool_)
        run = _BatchRun(self, tokenized, progress)
        self._pool.run(range(len(run.batches)), run.run_batch, stop, run.is_short)
        return run.in_input_order()

    def encode_stream(
        self, texts: Iterable[str], kind: PromptKind | None = None, *, window: int | None = None
    ) -> Iterator[EncodeResult]:
        """Embed any number of texts in bounded memory, `window` texts at a time, in order.

        While a window is embedded, the next one is read and tokenized.
        """
        stream = iter(texts)
        windows = iter(lambda: list(islice(stream, window or self.window)), [])
        for tokenized in self.tokenize_ahead(windows, kind):
            yield self._embed_details(tokenized)

    def _embed_details(self, tokenized: TokenizedTexts) -> EncodeResult:
        return EncodeResult(self.embed(tokenized), tokenized.tokens, tokenized.truncated)

    def tokenize_ahead(
        self, windows: Iterable[Sequence[str]], kind: PromptKind | None = None
    ) -> Iterator[TokenizedTexts]:
        """Tokenize windows of texts; each while the one before it is embedded.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        remaining = iter(windows)
        with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as thread:
            ahead = thread.submit(self._tokenize_next, remaining, kind)
            while (tokenized := ahead.result()) is not None:
                ahead = thread.submit(self._tokenize_next, remaining, kind)
                yield tokenized

    def _tokenize_next(self, windows: Iterator[Sequence[str]], kind: PromptKind | None) -> TokenizedTexts | None:
        texts = next(windows, None)
        return None if texts is None else self.tokenize(texts, kind)


# Poolings that give the zero vector for a text without tokens.
_POOLINGS_WITHOUT_TOKENS = frozenset({Pooling.MEAN, Pooling.MEAN_SQRT_LEN, Pooling.WEIGHTEDMEAN, Pooling.LASTTOKEN})


class _BatchRun:
    """The batches of one call of `Encoder.embed_until`, and their vectors.

    Attributes:
        batches: By batch, the numbers of its texts among the distinct texts.
    """

    def __init__(self, encoder: Encoder, tokenized: TokenizedTexts, progress: Callable[[float], None]) -> None:
        self._inputs, self._info, self._progress = encoder._inputs, encoder.info, progress
        self._tokenless_is_zero = encoder._tokenless_is_zero
        unique, self._unique_index = unique_rows(tokenized.ids)
        self._rows = [tokenized.ids[number] for number in unique]
        self._lengths = np.fromiter(map(row_length, self._rows), dtype=np.int64, count=len(unique))  # (distinct texts,)
        self._total_tokens = max(1, int(self._lengths.sum()))
        self.batches = self._plan(encoder._limits)
        # In the order of the batches, so that each batch is written without a copy.
        self._vectors = np.empty((len(unique), self._info.dimensions), dtype=np.float32)  # (distinct texts, dimensions)
        self._computed = np.zeros(len(unique), dtype=np.bool_)  # (distinct texts,)
        self._ends = np.cumsum([len(batch) for batch in self.batches])  # (batches,)

    def _plan(self, limits: BatchLimits) -> list[NDArray[np.int64]]:
        """Batches; all texts of one are of one route."""
        if not self._inputs.has_routes:
            return plan_batches(self._lengths, limits)
        routes = np.fromiter(map(row_route, self._rows), dtype=np.int64, count=len(self._rows))  # (distinct texts,)
        groups = [np.flatnonzero(routes == route) for route in np.unique(routes)]
        return [group[batch] for group in groups for batch in plan_batches(self._lengths[group], limits)]

    def is_short(self, number: int) -> bool:
        """Whether no text of a batch has more than `SHORT_TEXT_TOKENS` tokens; the first is the longest."""
        return self._inputs.packed and int(self._lengths[self.batches[number][0]]) <= SHORT_TEXT_TOKENS

    def run_batch(self, session: Session, number: int) -> None:
        """Compute the vectors of one batch."""
        batch = self.batches[number]
        output = slice(self._ends[number] - len(batch), self._ends[number])
        rows, vectors = [self._rows[row] for row in batch], self._vectors[output]
        route = row_route(rows[0]) if self._inputs.has_routes else 0
        if self._tokenless_is_zero[route] and not row_length(rows[-1]):
            # The empty text is the shortest one, and texts are distinct.
            rows, vectors = rows[:-1], vectors[:-1]
            self._vectors[output][-1] = 0
        if rows:
            session.run(self._inputs(rows), vectors)
        # One sum is cheaper than a test of every number: it is finite only if all of them are.
        if not math.isfinite(self._vectors[output].sum()):
            raise ModelError(
                f"{self._info.model} gave a vector with infinite or undefined numbers (variant {self._info.variant})",
                "Numbers of fp16 end at 65,504: use --precision fp32, and report the model.",
            )
        self._computed[output] = True
        self._progress(int(self._lengths[batch].sum()) / self._total_tokens)

    def in_input_order(self) -> tuple[Vectors, NDArray[np.bool_]]:
        """The vectors of all texts, and which of them were computed."""
        positions = np.empty(len(self._rows), dtype=np.int64)  # (distinct texts,), rows in the order of the batches
        positions[np.concatenate(self.batches)] = np.arange(len(self._rows))
        order = positions[self._unique_index]  # (texts,)
        return self._vectors[order], self._computed[order]


def report_warnings(encoder: Encoder, report: Callable[[str], None]) -> None:
    """Report an encoder's warnings, for commands without a summary that holds them."""
    for warning in encoder.info.warnings:
        report(f"Warning: {warning}")
