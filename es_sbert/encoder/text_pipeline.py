"""`TextPipeline`: an open sentence encoder as loads and the gateway use it: tokens, chunks, batches and vectors."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from es_sbert.arguments import as_texts, iterate_texts, wrong_argument
from es_sbert.bundle.modules import STATIC_ARCHITECTURE, Pooling, PromptKind
from es_sbert.bundle.trained_prompts import prompt_warning
from es_sbert.bundle.variants import Runtime
from es_sbert.encoder.model_loading import find_encoder, open_variant, runtime_warnings, select_encoder_variant
from es_sbert.encoder.opened_model import OpenedModel, lasting_path
from es_sbert.errors import ModelError, UsageError
from es_sbert.messages import setting
from es_sbert.runtime.batching import InputBuilder, plan_batches, unique_rows
from es_sbert.runtime.chunker import Chunker
from es_sbert.runtime.compiled_model import Session
from es_sbert.runtime.onnx_session import SHORT_TEXT_TOKENS
from es_sbert.runtime.tokenizer import SentenceTokenizer, TokenizedTexts
from es_sbert.settings import LoadOptions, no_report
from es_sbert.vectors import Vectors

# Poolings that give the zero vector for a text without tokens.
_POOLINGS_WITHOUT_TOKENS = frozenset({Pooling.MEAN, Pooling.MEAN_SQRT_LEN, Pooling.WEIGHTEDMEAN, Pooling.LASTTOKEN})

# Tokens per batch of a static model. It is large because looking up a token costs far less than a session call.
_STATIC_BATCH_TOKENS = 16_384


@dataclass(frozen=True)
class EncodeResult:
    """Sentence vectors in the order of the texts.

    Usage:
        ```python
        for part in encoder.encode_stream(texts):
            print(part.vectors.shape, part.tokens.sum(), part.truncated.any())
        ```

    Attributes:
        vectors: *Shape:* ``(texts, dimensions)`` float32.
        tokens: *Shape:* ``(texts,)`` int64, tokens before truncation, with special tokens and the prompt.
        truncated: *Shape:* ``(texts,)`` bool.
    """

    vectors: Vectors
    tokens: NDArray[np.int64]
    truncated: NDArray[np.bool_]


@dataclass(frozen=True)
class EncoderInfo:
    """The model, variant and device in use, for summaries.

    Usage:
        ```python
        print(encoder.info.model, encoder.info.dimensions, encoder.info.device, encoder.info.warnings)
        ```

    Attributes:
        model, fingerprint, dimensions, max_tokens: Properties of the model.
        variant: ONNX variant that was loaded (`int8`, `fp16`, …).
        precision: Number format of the variant.
        provider: onnxruntime's execution provider as the session reports it, or OpenVINO with its release.
        device: `cpu` or `cuda:N`.
        threads: CPU threads, 0 on CUDA.
        warnings: Warnings to repeat in every summary (a variant exported below its parity threshold, …).
        runtime: The library that runs the variant: `onnxruntime` or `openvino`.
        prepared_seconds: Time to export the model on its first use; 0 afterwards.
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
    prepared_seconds: float = 0.0


class TextPipeline(OpenedModel):
    """The steps from texts to vectors, for programs that overlap them. Thread-safe; see `Encoder` for its arguments.

    Attributes:
        info: The model, variant and device in use.
        model: The model's settings.
    """

    info: EncoderInfo

    def __init__(
        self,
        model: str | Path,
        *,
        called: str | None = None,
        **options: Unpack[LoadOptions],
    ) -> None:
        source, report, budget = find_encoder(model, called), options.pop("report", no_report), options.get("budget")
        warnings = runtime_warnings(options.get("device", "auto"), report)

        selected, pool = open_variant(partial(select_encoder_variant, source, report=report), options)
        opening = partial(TextPipeline, lasting_path(model), called=source.model.name, **options)
        selected = replace(selected, warnings=(*warnings, *selected.warnings))
        self._hold(opening, selected, pool)
        self.model = loaded = selected.bundle.model
        with pool.session() as session:
            padded_length = partial(pool.model.padded_length, most=loaded.longest_input)
            self._inputs = InputBuilder(session.input_names, session.properties, padded_length)
        self._tokenizer = SentenceTokenizer(loaded)
        # Zeros are written for a text without tokens (`run_batch`) if the graph takes packed texts, or if the pooling
        # needs a first vector or a largest value, which such a text lacks.
        self._tokenless_is_zero = self._inputs.packed or not _POOLINGS_WITHOUT_TOKENS.issuperset(loaded.pooling)
        if budget is None and loaded.architecture == STATIC_ARCHITECTURE:
            budget = max(pool.model.batch_tokens, _STATIC_BATCH_TOKENS)
        self._limits = pool.model.batch_limits(budget)
        graph = selected.bundle.manifest.variants[selected.variant]
        prompts = prompt_warning(loaded)
        self.info = EncoderInfo(
            model=loaded.name,
            fingerprint=loaded.fingerprint,
            dimensions=loaded.dimensions,
            max_tokens=loaded.max_tokens,
            variant=str(selected.variant),
            precision=graph.precision,
            provider=pool.provider,
            device=str(selected.device),
            threads=pool.count if selected.device.kind == "cpu" else 0,
            warnings=(*(() if prompts is None else (prompts,)), *dict.fromkeys(selected.warnings)),
            runtime=graph.runtime,
            prepared_seconds=round(selected.prepared_seconds, 1),
        )

    @property
    def window(self) -> int:
        """Number of texts that are sorted by length and embedded together."""
        return self._pool.model.window

    def tokenize(self, texts: Sequence[str], kind: PromptKind | None = None) -> TokenizedTexts:
        """Tokenize texts: the first half of `encode`, for pipelines that overlap tokenization and inference.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        return self._tokenizer(as_texts(texts), kind)

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of a batch; on a CPU, padding counts too."""
        return self._limits.tokens or self._limits.padded

    @property
    def parallel_batches(self) -> int:
        """Number of batches that run concurrently."""
        return self._pool.count

    def input_limit(self, kind: PromptKind | None = None) -> int:
        """Maximum tokens of a text of this kind, with special tokens and prompt; longer texts are truncated."""
        return self.model.input_limit(kind)

    def make_chunker(self, tokens: int, overlap: int, kind: PromptKind | None = None) -> Chunker:
        """Create a chunker for texts that are longer than the model's maximum.

        Args:
            tokens: Maximum tokens of a chunk, including special tokens and the prompt of `kind`.
            overlap: Maximum tokens that two adjacent chunks share.

        Raises:
            UsageError: `tokens` exceeds the model's maximum or is too small for any text.
        """
        return self._tokenizer.make_chunker(tokens, overlap, kind)

    def embed(self, tokenized: TokenizedTexts) -> Vectors:
        """Run the model: the second half of `encode`. Identical texts run once.

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
        """Like `embed`, but stops once `stop` is set: running batches are finished, and no other is started.

        Args:
            progress: Called after each batch, in the thread that ran it, with the batch's share of all tokens; all
                shares sum to 1.

        Returns:
            Vectors of *shape* ``(texts, dimensions)`` float32, and a mask of those that were computed, of *shape*
            ``(texts,)`` bool; the other rows are undefined.

        Raises:
            ModelError: a vector is not finite.
        """
        if not isinstance(tokenized, TokenizedTexts):
            raise wrong_argument("tokenized", tokenized, "what `tokenize` returns; for texts, call `encode`")
        if not len(tokenized):
            return np.empty((0, self.model.dimensions), dtype=np.float32), np.empty(0, dtype=np.bool_)
        pool = self._own_pool()
        run = _BatchRun(self, tokenized, progress)
        pool.run(range(len(run.batches)), run.run_batch, stop, run.is_short)
        return run.in_input_order()

    def encode_details(self, texts: Iterable[str], kind: PromptKind | None = None) -> EncodeResult:
        """Embed texts as `encode` does, and return token counts and truncation too.

        Raises:
            UsageError: `texts` is a single string, `kind` is unknown, or a text is not a str or not valid Unicode.
        """
        texts = as_texts(texts)
        if len(texts) <= self.window:
            return self._embed_details(self.tokenize(texts, kind))
        parts = [(part.vectors, part.tokens, part.truncated) for part in self.encode_stream(texts, kind)]
        return EncodeResult(*map(np.concatenate, zip(*parts, strict=True)))

    def encode_stream(
        self, texts: Iterable[str], kind: PromptKind | None = None, *, window: int | None = None
    ) -> Iterator[EncodeResult]:
        """Embed any number of texts in bounded memory, `window` texts at a time, in order.

        While a window is embedded, the next one is read and tokenized.
        """
        stream = iterate_texts(texts)
        size = window or self.window
        windows = (as_texts(itertools.islice(stream, size), first=first) for first in itertools.count(step=size))
        for tokenized in self.tokenize_ahead(itertools.takewhile(bool, windows), kind):
            yield self._embed_details(tokenized)

    def _embed_details(self, tokenized: TokenizedTexts) -> EncodeResult:
        return EncodeResult(self.embed(tokenized), tokenized.tokens, tokenized.truncated)

    def tokenize_ahead(
        self, windows: Iterable[Sequence[str]], kind: PromptKind | None = None
    ) -> Iterator[TokenizedTexts]:
        """Tokenize windows of texts, each while the caller embeds the one before it.

        Raises:
            UsageError: a text is not valid Unicode, or the process was forked since the first window.
        """
        remaining, process = iter(windows), os.getpid()
        with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as thread:
            ahead = thread.submit(self._tokenize_next, remaining, kind)
            while (tokenized := ahead.result()) is not None:
                ahead = thread.submit(self._tokenize_next, remaining, kind)
                yield tokenized
                if os.getpid() != process:  # the thread is in the other process
                    raise UsageError(
                        f"the texts are being read in process {process}, from which this one was forked",
                        "Call `encode_stream` or `tokenize_ahead` again in this process, with the texts that are left.",
                    )

    def _tokenize_next(self, windows: Iterator[Sequence[str]], kind: PromptKind | None) -> TokenizedTexts | None:
        texts = next(windows, None)
        return None if texts is None else self.tokenize(texts, kind)


class _BatchRun:
    """The batches of one call of `TextPipeline.embed_until`, and their vectors.

    Attributes:
        batches: For each batch, the indices of its texts among the distinct texts.
    """

    def __init__(self, pipeline: TextPipeline, tokenized: TokenizedTexts, progress: Callable[[float], None]) -> None:
        self._inputs, self._info, self._progress = pipeline._inputs, pipeline.info, progress
        self._tokenless_is_zero = pipeline._tokenless_is_zero
        unique, self._unique_index = unique_rows(tokenized.ids)
        self._rows = [tokenized.ids[number] for number in unique]
        self._lengths = np.fromiter(map(len, self._rows), dtype=np.int64, count=len(unique))  # (distinct texts,)
        self._total_tokens = max(1, int(self._lengths.sum()))
        self.batches = plan_batches(self._lengths, pipeline._limits)
        # Rows are in the order of the batches, so that each batch is written without a copy.
        self._vectors = np.empty((len(unique), self._info.dimensions), dtype=np.float32)  # (distinct texts, dimensions)
        self._computed = np.zeros(len(unique), dtype=np.bool_)  # (distinct texts,)
        self._ends = np.cumsum([len(batch) for batch in self.batches])  # (batches,)

    def is_short(self, number: int) -> bool:
        """Whether texts are packed and none in a batch has more than `SHORT_TEXT_TOKENS` tokens."""
        return self._inputs.packed and int(self._lengths[self.batches[number][0]]) <= SHORT_TEXT_TOKENS

    def run_batch(self, session: Session, number: int) -> None:
        """Compute the vectors of one batch."""
        batch = self.batches[number]
        output = slice(self._ends[number] - len(batch), self._ends[number])
        rows, vectors = [self._rows[row] for row in batch], self._vectors[output]
        if self._tokenless_is_zero and not len(rows[-1]):
            # Only the last row can be empty: rows are sorted by length, longest first, and texts are distinct.
            rows, vectors = rows[:-1], vectors[:-1]
            self._vectors[output][-1] = 0
        if rows:
            session.run(self._inputs(rows), vectors)
        # One sum is cheaper than a test of every number: it is finite only if all of them are.
        if not math.isfinite(self._vectors[output].sum()):
            raise ModelError(
                f"{self._info.model} gave a vector with infinite or undefined numbers (variant {self._info.variant})",
                f"The largest fp16 number is 65,504: use {setting('precision', 'fp32')}, and report the model.",
            )
        self._computed[output] = True
        self._progress(int(self._lengths[batch].sum()) / self._total_tokens)

    def in_input_order(self) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return the vectors of all texts in input order, and a mask of those that were computed."""
        positions = np.empty(len(self._rows), dtype=np.int64)  # (distinct texts,), rows in the order of the batches
        positions[np.concatenate(self.batches)] = np.arange(len(self._rows))
        order = positions[self._unique_index]  # (texts,)
        return self._vectors[order], self._computed[order]
