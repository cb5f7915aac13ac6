"""`Encoder`: a sentence encoder on onnxruntime or OpenVINO, from texts to vectors in input order."""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from es_sbert.arguments import as_texts, check_arguments, iterate_texts, wrong_argument
from es_sbert.bundle.model_lookup import find_index_model
from es_sbert.bundle.modules import STATIC_ARCHITECTURE, Pooling, PromptKind
from es_sbert.bundle.trained_prompts import prompt_warning
from es_sbert.bundle.variants import Runtime
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.model_loading import find_encoder, open_variant, runtime_warnings, select_encoder_variant
from es_sbert.encoder.opened_model import OpenedModel, lasting_path
from es_sbert.encoder.sentence_transformers_names import SentenceTransformersNames, check_without_meaning
from es_sbert.errors import ModelError, UsageError
from es_sbert.messages import setting
from es_sbert.runtime.batching import InputBuilder, plan_batches, unique_rows
from es_sbert.runtime.chunker import Chunker
from es_sbert.runtime.compiled_model import Session
from es_sbert.runtime.onnx_session import SHORT_TEXT_TOKENS
from es_sbert.runtime.tokenizer import SentenceTokenizer, TokenizedTexts
from es_sbert.settings import Count, LoadOptions, ModelName, RunOptions, no_report
from es_sbert.vectors import Vectors, unit_vectors

# Poolings that give the zero vector for a text without tokens.
_POOLINGS_WITHOUT_TOKENS = frozenset({Pooling.MEAN, Pooling.MEAN_SQRT_LEN, Pooling.WEIGHTEDMEAN, Pooling.LASTTOKEN})

# Tokens per batch of a static model. It is large because looking up a token costs far less than a session call.
_STATIC_BATCH_TOKENS = 16_384


@dataclass(frozen=True)
class EncodeResult:
    """Sentence vectors in the order of the texts.

    Attributes:
        vectors: *Shape:* ``(texts, dimensions)`` float32.
        tokens: *Shape:* ``(texts,)`` int64, tokens before truncation, as in `TokenizedTexts`.
        truncated: *Shape:* ``(texts,)`` bool.
    """

    vectors: Vectors
    tokens: NDArray[np.int64]
    truncated: NDArray[np.bool_]


@dataclass(frozen=True)
class EncoderInfo:
    """The model, variant and device in use, for summaries.

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


class ModelOptions(ModelName, RunOptions, total=False):
    """Keyword arguments that choose the model of an index; all may be left out.

    Attributes:
        encoder: An open encoder instead of a model's name; it is not closed.
        report: See `Encoder`.
    """

    encoder: Encoder | None
    report: Annotated[Callable[[str], None], Field(no_report)]


class Encoder(SentenceTransformersNames, OpenedModel):
    """A sentence encoder on onnxruntime or OpenVINO. A model without ONNX files is exported to the cache on first use.

    It is also an embedding object for LangChain and elasticsearch-py (`embed_documents`, `embed_query`). Thread-safe.
    Close it, or use it as a context manager, to end its threads. A forked process opens the model again when it first
    embeds a text. Unpickling opens it again, too.

    Usage:
        ```python
        with Encoder("all-MiniLM-L6-v2") as encoder:
            vectors = encoder.encode(["A man plays a guitar.", "The cat sleeps."])  # (2, 384) float32
            vector = encoder.encode("A man plays a guitar.")  # (384,)
        ```

    Args:
        model: Model folder, bundle, hub id, installed or registered name; `all-MiniLM-L6-v2` by default. A `Path` is
            always a folder.
        device: `auto`, `cpu`, `cuda` or `cuda:N`. `cuda` fails if CUDA is not available. `auto` uses the CPU if CUDA
            does not work, with a warning in `info.warnings`.
        precision: `auto`, `fp32`, `bf16`, `int8` or `fp16`.
        runtime: `auto`, `onnxruntime` or `openvino`. If both are `auto`, the variant runs that is usually the fastest
            on this kind of processor.
        threads: CPU threads, by default one for each physical core. On CUDA the number of concurrent batches, by
            default 2.
        budget: Tokens of one batch, with padding on a CPU, without padding on CUDA; by default the best for the device.
        called: Name to show in `info.model` and in messages instead of the model's own name.
        report: Called with a message before slow steps such as the export, with the time after them, and once per
            process if `auto` finds no GPU.

    Raises:
        ModelError: the model was not found, is broken or has an unknown architecture; the cache cannot be written.
        DeviceError: the requested device cannot be used.
        UsageError: the device, precision or runtime is invalid, or they cannot be combined.
    """

    info: EncoderInfo

    @check_arguments
    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        precision: str = "auto",
        runtime: str = "auto",
        threads: Count | None = None,
        budget: Count | None = None,
        called: str | None = None,
        report: Callable[[str], None] = no_report,
    ) -> None:
        name = DEFAULT_MODEL if model is None else model
        source = find_encoder(name, called)
        warnings = runtime_warnings(device, report)

        select = partial(select_encoder_variant, source, precision=precision, runtime=runtime, report=report)
        selected, pool = open_variant(select, device, threads)
        settings: Any = {"device": device, "precision": precision, "runtime": runtime, "called": source.model.name}
        opening = partial(type(self), lasting_path(name), **settings, threads=threads, budget=budget)
        selected = replace(selected, warnings=(*warnings, *selected.warnings))
        self._hold(opening, selected, pool)
        self._model = loaded = selected.bundle.model
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

    def __repr__(self) -> str:
        info = self.info
        runs = "closed" if self._closed else f"{info.variant} on {info.device} by {info.runtime}"
        return f"<Encoder {info.model!r}, {info.dimensions} dimensions, {runs}>"

    @property
    def window(self) -> int:
        """Number of texts that are sorted by length and embedded together."""
        return self._pool.model.window

    @check_arguments
    def encode(
        self,
        texts: str | Iterable[str],
        kind: PromptKind | None = None,
        *,
        prompt_name: PromptKind | None = None,
        prompt: str | None = None,
        normalize_embeddings: bool = False,
        show_progress_bar: bool | None = None,
        **others: object,
    ) -> Vectors:
        """Embed texts.

        Args:
            texts: One text or any number of them; all vectors are held in memory (see `encode_stream`).
            kind: `query` or `document` prepends the model's prompt of that kind to each text.
            prompt_name: sentence-transformers' name for `kind`.
            prompt: Text to prepend to each text instead.
            normalize_embeddings: Scale the vectors to length 1. Most models do that themselves.
            show_progress_bar: Show a progress bar on stderr.
            others: Other arguments of sentence-transformers, with values that ask for what this method does anyway;
                `batch_size` is ignored, since a batch has a maximum of tokens.

        Returns:
            *Shape:* ``(texts, dimensions)`` float32, in the order of the texts; ``(dimensions,)`` for one string.

        Raises:
            UsageError: `kind` is unknown, a text is not a str or not valid Unicode, or an argument cannot be applied.
        """
        check_without_meaning(others)
        listed = [texts] if isinstance(texts, str) else as_texts(texts)
        kind = kind or prompt_name
        if prompt is not None:
            if self._model.prompt(None) or not self._model.include_prompt:
                raise UsageError(
                    f"`prompt` cannot be applied: {self._model.name} does not read its prompts as a part of the text",
                    f"Use its own prompts: {setting('kind', 'query')} or {setting('kind', 'document')}.",
                )
            listed, kind = [prompt + text for text in listed], None
        if show_progress_bar:
            parts = _with_progress_bar(self.encode_stream(listed, kind), len(listed))
            vectors = np.concatenate([np.empty((0, self._model.dimensions), np.float32), *parts])
        else:
            vectors = self.encode_details(listed, kind).vectors
        if normalize_embeddings:
            vectors = unit_vectors(vectors)
        return vectors[0] if isinstance(texts, str) else vectors

    @check_arguments
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

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed texts with the model's document prompt, as `es-sbert ingest` does.

        Raises:
            UsageError: `texts` is a single string, or a text is not valid Unicode.
        """
        vectors: list[list[float]] = self.encode_details(texts, "document").vectors.tolist()
        return vectors

    @check_arguments
    def embed_query(self, text: str) -> list[float]:
        """Embed a search text with the model's query prompt, as `es-sbert search` does.

        Raises:
            UsageError: the text is not a string, or not valid Unicode.
        """
        vector: list[float] = self.encode(text, "query").tolist()
        return vector

    async def aembed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """Run `embed_documents` in a thread."""
        return await asyncio.to_thread(self.embed_documents, texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Run `embed_query` in a thread."""
        return await asyncio.to_thread(self.embed_query, text)

    @check_arguments
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

    @check_arguments
    def prompt(self, kind: PromptKind | None = None) -> str:
        """The model's prompt for texts of this kind; empty if it has none."""
        return self._model.prompt(kind)

    @check_arguments
    def input_limit(self, kind: PromptKind | None = None) -> int:
        """Maximum tokens of a text of this kind, with special tokens and prompt; longer texts are truncated."""
        return self._model.input_limit(kind)

    @check_arguments
    def make_chunker(self, tokens: int, overlap: NonNegativeInt, kind: PromptKind | None = None) -> Chunker:
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
            return np.empty((0, self._model.dimensions), dtype=np.float32), np.empty(0, dtype=np.bool_)
        pool = self._own_pool()
        run = _BatchRun(self, tokenized, progress)
        pool.run(range(len(run.batches)), run.run_batch, stop, run.is_short)
        return run.in_input_order()

    @check_arguments
    def encode_stream(
        self, texts: Iterable[str], kind: PromptKind | None = None, *, window: Count | None = None
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


def open_index_encoder(
    index: str, name: str, fingerprint: str, *, model: str | Path | None = None, **options: Unpack[LoadOptions]
) -> Encoder:
    """Load the model of an index's vectors, from this machine or the hub (see `find_index_model`).

    The caller compares `info.fingerprint` with the mapping: a package or the hub may have a different model of that
    name.

    Args:
        index: Name of the index, for messages.
        name: Name of the model in the mapping, and of `info.model`.
        fingerprint: Fingerprint of the model in the mapping.
        model: A model to load instead, as for `Encoder`.
        options: As for `Encoder`.

    Raises:
        ModelError, DeviceError, UsageError: as for `Encoder`.
    """
    if model is not None:
        return Encoder(model, **options)
    located = find_index_model(index, name, fingerprint)
    return Encoder(located.folder, called=located.name, **options)


def check_one_model(options: ModelOptions) -> None:
    """Check that not both a model and an encoder are given.

    Raises:
        UsageError: both are.
    """
    if options.get("model") is not None and options.get("encoder") is not None:
        raise UsageError("a model and an encoder cannot be combined", "Pass one of the two.")


@contextmanager
def chosen_encoder(options: ModelOptions, stored: tuple[str, str, str] | None = None) -> Iterator[Encoder]:
    """Open the encoder that options choose, until the block ends; an encoder among them stays open.

    Args:
        options: Further entries are ignored.
        stored: Index, name and fingerprint of the model to open if the options name none; else the default model.

    Raises:
        ModelError, DeviceError, UsageError: as for `Encoder`; or both a model and an encoder are given.
    """
    check_one_model(options)
    encoder, model = options.get("encoder"), options.get("model")
    if encoder is not None:
        yield encoder
        return
    loading: Any = {name: value for name, value in options.items() if name in LoadOptions.__annotations__}
    with Encoder(model, **loading) if stored is None else open_index_encoder(*stored, model=model, **loading) as opened:
        yield opened


def _with_progress_bar(parts: Iterable[EncodeResult], texts: int) -> Iterator[Vectors]:
    import click  # imported here: programs without a bar do without it

    with click.progressbar(length=texts, label="Encoding", file=sys.stderr) as bar:
        for part in parts:
            yield part.vectors
            bar.update(len(part.vectors))


class _BatchRun:
    """The batches of one call of `Encoder.embed_until`, and their vectors.

    Attributes:
        batches: For each batch, the indices of its texts among the distinct texts.
    """

    def __init__(self, encoder: Encoder, tokenized: TokenizedTexts, progress: Callable[[float], None]) -> None:
        self._inputs, self._info, self._progress = encoder._inputs, encoder.info, progress
        self._tokenless_is_zero = encoder._tokenless_is_zero
        unique, self._unique_index = unique_rows(tokenized.ids)
        self._rows = [tokenized.ids[number] for number in unique]
        self._lengths = np.fromiter(map(len, self._rows), dtype=np.int64, count=len(unique))  # (distinct texts,)
        self._total_tokens = max(1, int(self._lengths.sum()))
        self.batches = plan_batches(self._lengths, encoder._limits)
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


def preparation_text(seconds: float) -> str:
    """Say in a summary that its time does not include preparing the model; empty if nothing was prepared."""
    return f" (the model was prepared before, in {seconds:,.1f} s)" if seconds else ""


def report_warnings(encoder: Encoder, report: Callable[[str], None]) -> None:
    """Report an encoder's warnings, for commands whose summary does not include them."""
    for warning in encoder.info.warnings:
        report(f"Warning: {warning}")
