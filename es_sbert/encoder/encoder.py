"""`Encoder`: a sentence encoder on onnxruntime or OpenVINO, from texts to vectors in input order."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from es_sbert.arguments import as_texts, check_arguments, iterate_texts, wrong_argument
from es_sbert.bundle.bundle import EncoderBundle, route_bundle
from es_sbert.bundle.model_lookup import find_index_model
from es_sbert.bundle.sentence_model import PromptKind, SentenceModel
from es_sbert.bundle.trained_prompts import prompt_warning
from es_sbert.bundle.variants import Runtime
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder_route import EncoderRoute
from es_sbert.encoder.model_loading import (
    SelectedVariant,
    find_encoder,
    open_variant,
    runtime_warnings,
    select_encoder_variant,
)
from es_sbert.option_signature import spell_out
from es_sbert.runtime.chunker import Chunker
from es_sbert.runtime.device import Device
from es_sbert.runtime.inference_pool import model_closed
from es_sbert.runtime.tokenizer import TokenizedTexts
from es_sbert.vectors import Vectors


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
        query_fingerprint: Fingerprint of the model for queries if the model is a pair (`es-sbert model pair`); else
            empty.
        prepared_seconds: Time to export and measure the model on its first use; 0 afterwards.

    For a model with a Router, `max_tokens` and all attributes from `variant` on describe the opened routes: different
    texts are joined by ` + ` in the order of opening; of numbers, the largest counts.
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
    query_fingerprint: str = ""
    prepared_seconds: float = 0.0

    def encoder_fingerprint(self, kind: PromptKind | None) -> str:
        """The fingerprint of the model that embeds texts of this kind: for a pair, one of its two models."""
        return (kind == "query" and self.query_fingerprint) or self.fingerprint


class LoadOptions(TypedDict, total=False):
    """Keyword arguments of `Encoder` for the device and the runtime."""

    device: str
    precision: str
    runtime: str
    threads: int | None
    budget: int | None
    report: Callable[[str], None]


def no_report(message: str) -> None:
    """Drop a message."""


LOAD_DEFAULTS: dict[str, object] = {
    "device": "auto",
    "precision": "auto",
    "runtime": "auto",
    "threads": None,
    "budget": None,
    "report": no_report,
}


class Encoder:
    """A sentence encoder on onnxruntime or OpenVINO. A model without ONNX files is exported to the cache on first use.

    For a model with a Router, the network of a route is loaded when a text first uses it, so a process that embeds only
    queries never loads the network for documents.

    It is also an embedding object for LangChain and elasticsearch-py (`embed_documents`, `embed_query`). Thread-safe.
    Close it, or use it as a context manager, to end its threads.

    Usage:
        ```python
        with Encoder("all-MiniLM-L6-v2") as encoder:
            vectors = encoder.encode(["A man plays a guitar.", "The cat sleeps."])  # (2, 384) float32
            vector = encoder.encode("A man plays a guitar.")  # (384,)
        ```

    Args:
        model: Model folder, bundle, hub id, installed or registered name; `all-MiniLM-L6-v2` by default. A `Path` is
            always a folder.
        kind: The kind of texts that will be embedded, if it is known: with a Router, its route is loaded at once.
        device: `auto`, `cpu`, `cuda` or `cuda:N`. `cuda` fails if CUDA is not available. `auto` uses the CPU if CUDA
            does not work, with a warning in `info.warnings`.
        precision: `auto`, `fp32`, `bf16`, `int8` or `fp16`.
        runtime: `auto`, `onnxruntime` or `openvino`. With precision and runtime `auto`, the fastest variant on this
            machine runs; the first use of a model measures it if several may be.
        threads: CPU threads, by default one for each physical core, or for each logical core if that was measured to be
            faster. On CUDA the number of concurrent batches, by default 2.
        budget: Tokens of one batch, with padding on a CPU, without padding on CUDA; by default the best for the device.
        called: Name to show in `info.model` and in messages instead of the model's own name.
        report: Called with a message before slow steps such as the export, with the time after them, and once per
            process if `auto` finds no GPU.

    Raises:
        ModelError: the model was not found, is broken or has an unknown architecture; the cache cannot be written.
        DeviceError: the requested device cannot be used.
        UsageError: the device, precision or runtime is invalid, or they cannot be combined.
    """

    @check_arguments
    def __init__(
        self,
        model: str | Path | None = None,
        *,
        kind: PromptKind | None = None,
        device: str = "auto",
        precision: str = "auto",
        runtime: str = "auto",
        threads: int | None = None,
        budget: int | None = None,
        called: str | None = None,
        report: Callable[[str], None] = no_report,
    ) -> None:
        source = find_encoder(DEFAULT_MODEL if model is None else model, called)
        warnings = runtime_warnings(device, report)

        def open_route(number: int) -> EncoderRoute:
            select = partial(
                select_encoder_variant, source.route(number), precision=precision, runtime=runtime, report=report
            )
            selected, pool = open_variant(select, device, threads)
            return EncoderRoute(replace(selected, warnings=(*warnings, *selected.warnings)), pool, budget)

        self._attach(source.model, open_route, report)
        if not source.model.routes or kind is not None:
            self.open(kind)

    @classmethod
    def from_bundle(
        cls,
        bundle: EncoderBundle,
        variant: str,
        device: Device,
        *,
        threads: int | None = None,
        budget: int | None = None,
    ) -> Self:
        """Open a variant of an opened bundle.

        Args:
            bundle: The bundle.
            variant: Name of a variant: `fp32`, `int8`, `openvino-bf16`, …
            device: Device on which to run it.
            threads, budget: As in the class.

        Raises:
            DeviceError: the session would run on another device.
            BundleInvalid: the variant's file or the tokenizer is broken.
        """

        def open_route(number: int) -> EncoderRoute:
            selected = SelectedVariant(route_bundle(bundle, number), variant, device)
            return EncoderRoute(selected, selected.open(threads), budget)

        encoder = cls.__new__(cls)
        encoder._attach(bundle.model, open_route)
        if not bundle.model.routes:
            encoder.open()
        return encoder

    def _attach(
        self,
        model: SentenceModel,
        open_route: Callable[[int], EncoderRoute],
        report: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._model, self._open_route, self._report = model, open_route, report
        self._routes: dict[int, EncoderRoute] = {}
        # Number of routes that were open, and their description: every search reads it.
        self._described: tuple[int, EncoderInfo] | None = None
        self._lock = threading.Lock()  # while a route is opened
        self._closed = False

    @check_arguments
    def open(self, kind: PromptKind | None = None) -> None:
        """Load the model or route that embeds texts of this kind, if it is not loaded yet.

        Raises:
            ModelError, DeviceError: as for the class.
            UsageError: the model has a Router without a route for this kind.
        """
        self._route(self._model.route_number(kind))

    @check_arguments
    def is_open(self, kind: PromptKind | None = None) -> bool:
        """Whether the model or route that embeds texts of this kind is loaded.

        Raises:
            UsageError: the model has a Router without a route for this kind.
        """
        return self._model.route_number(kind) in self._routes

    def _route(self, number: int) -> EncoderRoute:
        """Return a route; the first call opens it."""
        found = self._routes.get(number)
        if found is None:
            with self._lock:
                found = self._routes.get(number)
                if found is None:
                    if self._closed:
                        raise model_closed()
                    found = self._open_route(number)
                    # Warnings of the first route are not reported here: callers read them in `info`.
                    for warning in found.selected.warnings if self._routes else ():
                        self._report(f"Warning: {warning}")
                    self._routes[number] = found
        return found

    @property
    def _first_route(self) -> EncoderRoute:
        """The route that was opened first; if none is open, the route of texts without a kind, else the first one."""
        number = next(iter(self._routes), None)
        if number is None:
            number = self._model.route_number(None) if self._model.has_route(None) else 0
        return self._route(number)

    def __repr__(self) -> str:
        named = f"<Encoder {self._model.name!r}, {self._model.dimensions} dimensions"
        if self._closed or not self._routes:  # `info` would load a route
            return f"{named}, {'closed' if self._closed else 'not loaded yet'}>"
        info = self.info
        return f"{named}, {info.variant} on {info.device} by {info.runtime}>"

    @property
    def info(self) -> EncoderInfo:
        """The model, variant and device in use. For a model with a Router, this loads a route if none is loaded yet."""
        _ = self._first_route  # opens one if none is open
        opened, described = list(self._routes.values()), self._described
        if described is None or described[0] != len(opened):
            described = self._described = len(opened), self._describe(opened)
        return described[1]

    def _describe(self, opened: Sequence[EncoderRoute]) -> EncoderInfo:
        routes = [_describe_route(route) for route in opened]
        of_routes = {name: _join_values([route[name] for route in routes]) for name in routes[0]}
        model = self._model
        return EncoderInfo(
            model=model.name,
            fingerprint=model.fingerprint,
            query_fingerprint=model.query_fingerprint,
            dimensions=model.dimensions,
            warnings=(*_model_warnings(model), *dict.fromkeys(each for route in routes for each in route["warnings"])),
            **{name: value for name, value in of_routes.items() if name not in ("warnings", "prepared_seconds")},
            prepared_seconds=sum(route["prepared_seconds"] for route in routes),
        )

    @property
    def window(self) -> int:
        """Number of texts that are sorted by length and embedded together."""
        return self._first_route.pool.model.window

    def close(self) -> None:
        """End the worker threads."""
        with self._lock:
            self._closed = True
            for route in self._routes.values():
                route.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @classmethod
    @check_arguments
    @spell_out(LoadOptions, LOAD_DEFAULTS)
    def for_index(
        cls,
        index: str,
        name: str,
        fingerprint: str,
        *,
        model: str | Path | None = None,
        kind: PromptKind | None = None,
        **options: Unpack[LoadOptions],
    ) -> Encoder:
        """Load the model of an index's vectors, from this machine or the hub (see `find_index_model`).

        The caller compares `info.fingerprint` with the mapping: a package or the hub may have a different model of
        that name.

        Args:
            index: Name of the index, for messages.
            name: Name of the model in the mapping, and of `info.model`.
            fingerprint: Fingerprint of the model in the mapping.
            model: A model to load instead, as for `Encoder`.
            kind, options: As for `Encoder`.

        Raises:
            ModelError, DeviceError, UsageError: as for `Encoder`.
        """
        if model is not None:
            return cls(model, kind=kind, **options)
        located = find_index_model(index, name, fingerprint)
        return cls(located.folder, kind=kind, called=located.name, **options)

    @check_arguments
    def encode(self, texts: str | Iterable[str], kind: PromptKind | None = None) -> Vectors:
        """Embed texts.

        Args:
            texts: One text or any number of them; all vectors are held in memory (see `encode_stream`).
            kind: `query` or `document` prepends the model's prompt of that kind to each text.

        Returns:
            *Shape:* ``(texts, dimensions)`` float32, in the order of the texts; ``(dimensions,)`` for one string.

        Raises:
            UsageError: `kind` is unknown, or a text is not a str or not valid Unicode.
        """
        if isinstance(texts, str):
            vector: Vectors = self.encode_details([texts], kind).vectors[0]
            return vector
        return self.encode_details(texts, kind).vectors

    @check_arguments
    def encode_details(self, texts: Iterable[str], kind: PromptKind | None = None) -> EncodeResult:
        """Embed texts as `encode` does, and return token counts and truncation too.

        Raises:
            UsageError: `texts` is a single string, `kind` is unknown, or a text is not a str or not valid Unicode.
        """
        texts = as_texts(texts)
        self.open(kind)
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
        number = self._model.route_number(kind)
        return replace(self._route(number).tokenizer(as_texts(texts), kind), route=number)

    @property
    def batch_tokens(self) -> int:
        """Maximum tokens of a batch; on a CPU, padding counts too."""
        limits = self._first_route.limits
        return limits.tokens or limits.padded

    @property
    def parallel_batches(self) -> int:
        """Number of batches that run concurrently."""
        return self._first_route.pool.count

    @check_arguments
    def prompt(self, kind: PromptKind | None = None) -> str:
        """The model's prompt for texts of this kind; empty if it has none."""
        return self._model.prompt(kind)

    @check_arguments
    def input_limit(self, kind: PromptKind | None = None) -> int:
        """Maximum tokens of a text of this kind, with special tokens and prompt; longer texts are truncated."""
        return self._model.input_limit(kind)

    @check_arguments
    def make_chunker(self, tokens: int, overlap: int, kind: PromptKind | None = None) -> Chunker:
        """Create a chunker for texts that are longer than the model's maximum.

        Args:
            tokens: Maximum tokens of a chunk, including special tokens and the prompt of `kind`.
            overlap: Maximum tokens that two adjacent chunks share.

        Raises:
            UsageError: `tokens` exceeds the model's maximum or is too small for any text.
        """
        return self._route(self._model.route_number(kind)).tokenizer.make_chunker(tokens, overlap, kind)

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
        return self._route(tokenized.route).embed(tokenized, stop, progress)

    @check_arguments
    def encode_stream(
        self, texts: Iterable[str], kind: PromptKind | None = None, *, window: int | None = None
    ) -> Iterator[EncodeResult]:
        """Embed any number of texts in bounded memory, `window` texts at a time, in order.

        While a window is embedded, the next one is read and tokenized.
        """
        stream = iterate_texts(texts)
        self.open(kind)
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


def _describe_route(route: EncoderRoute) -> dict[str, Any]:
    """Return the attributes of `EncoderInfo` that describe a route."""
    selected, pool = route.selected, route.pool
    graph = selected.bundle.manifest.variants[selected.variant]
    return {
        "max_tokens": selected.bundle.model.max_tokens,
        "variant": str(selected.variant),
        "precision": graph.precision,
        "provider": pool.provider,
        "device": str(selected.device),
        "threads": pool.count if selected.device.kind == "cpu" else 0,
        "warnings": selected.warnings,
        "runtime": graph.runtime,
        "prepared_seconds": round(selected.prepared_seconds, 1),
    }


def _join_values(values: Sequence[Any]) -> Any:
    """Join the values of several routes into one; see `EncoderInfo`."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1:
        return distinct[0]
    return " + ".join(distinct) if isinstance(distinct[0], str) else max(distinct)


def _model_warnings(model: SentenceModel) -> list[str]:
    prompts = prompt_warning(model)
    warnings = [] if prompts is None else [prompts]
    if model.pair is not None and not model.pair.agreement.passed:
        agreement = model.pair.agreement
        warnings.append(
            f"{model.pair.queries.name} embeds queries, and agrees with {model.pair.documents.name} less than it "
            f"should ({agreement.bar}): {agreement.describe()}"
        )
    return warnings


def preparation_text(seconds: float) -> str:
    """Say in a summary that its time does not include preparing the model; empty if nothing was prepared."""
    return f" (the model was prepared before, in {seconds:,.1f} s)" if seconds else ""


def report_warnings(encoder: Encoder, report: Callable[[str], None]) -> None:
    """Report an encoder's warnings, for commands whose summary does not include them."""
    for warning in encoder.info.warnings:
        report(f"Warning: {warning}")
