"""`Encoder`: texts to vectors, in input order."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from es_sbert.bundle.bundle import EncoderBundle
from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.encoder.batching import WINDOW, InputBuilder, batch_limits, plan_batches, unique_rows
from es_sbert.encoder.chunker import Chunker
from es_sbert.encoder.device import Device
from es_sbert.encoder.embeddings import EmbeddingModel, EncodeResult, EncoderInfo, Vectors
from es_sbert.encoder.onnx_session import SHORT_TEXT_TOKENS, InferencePool, OnnxModel, run_session
from es_sbert.encoder.tokenizer import SentenceTokenizer, TokenizedTexts
from es_sbert.errors import ModelError, UsageError


class Encoder(EmbeddingModel, OnnxModel):
    """Sentence encoder on onnxruntime, and an embedding object for LangChain and the like (see `EmbeddingModel`).

    `es_sbert.model_loading.load_encoder` opens one by the model's name. Thread-safe. Close it, or use it as a context
    manager, to end its threads.

    Args:
        bundle: An opened bundle.
        variant: Name of the variant to run.
        device: Where to run it.
        threads: CPU threads, or the sessions that run batches side by side on CUDA.
        budget: Tokens of one batch, with padding on a CPU, without on CUDA; by default what is best for the device.
        warnings: What every summary must repeat.

    Raises:
        DeviceError: the session would run elsewhere than asked.
        BundleInvalid: the variant's file or the tokenizer is broken.
    """

    def __init__(
        self,
        bundle: EncoderBundle,
        variant: str,
        device: Device,
        *,
        threads: int,
        budget: int | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self._workers = InferencePool(bundle.variant_file(variant), device, threads)
        with self._workers.session() as session:
            self._inputs = InputBuilder(session)
        self._tokenizer = SentenceTokenizer(bundle.model)
        self._prompt = bundle.model.prompt
        self._budget = batch_limits(device, budget)
        self._window = WINDOW[device.kind]
        self._dimensions = bundle.model.dimensions
        self.info = EncoderInfo(
            model=bundle.model.name,
            fingerprint=bundle.model.fingerprint,
            dimensions=bundle.model.dimensions,
            max_tokens=bundle.model.max_tokens,
            variant=variant,
            precision=bundle.manifest.variants[variant].precision,
            provider=self._workers.provider,
            device=str(device),
            threads=self._workers.count if device.kind == "cpu" else 0,
            warnings=tuple(warnings),
        )

    def tokenize(self, texts: Sequence[str], kind: PromptKind | None = None) -> TokenizedTexts:
        """The first half of `encode`, for pipelines that overlap the two.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        return self._tokenizer(texts, kind)

    @property
    def batch_tokens(self) -> int:
        """Most tokens of a batch; with padding on a CPU."""
        return self._budget.tokens or self._budget.padded

    @property
    def window(self) -> int:
        """How many texts are best sorted by length and embedded together."""
        return self._window

    @property
    def parallel_batches(self) -> int:
        """How many batches run at a time: one in each worker thread."""
        return self._workers.count

    def prompt(self, kind: PromptKind | None = None) -> str:
        """What the model puts in front of a text of this kind; empty for nothing."""
        return self._prompt(kind)

    def splitter(self, tokens: int, overlap: int, kind: PromptKind | None = None) -> Chunker:
        """What cuts long texts into passages that the model reads whole.

        Args:
            tokens: Most tokens of a passage, special tokens and the prompt of `kind` included.
            overlap: Most tokens that two neighbouring passages share.

        Raises:
            UsageError: the model does not read so many tokens, or rules that leave no room.
        """
        return self._tokenizer.splitter(tokens, overlap, kind)

    def embed(self, tokenized: TokenizedTexts) -> Vectors:
        """The second half of `encode`: run the model. Identical texts run once.

        Returns:
            *Shape:* ``(texts, dimensions)`` float32, in the order of the texts.

        Raises:
            ModelError: a vector is not finite.
        """
        return self.embed_until(tokenized, threading.Event())[0]

    def embed_until(
        self, tokenized: TokenizedTexts, stop: threading.Event, progress: Callable[[float], None] = lambda part: None
    ) -> tuple[Vectors, NDArray[np.bool_]]:
        """As `embed`, until `stop` is set: the batches that run then are finished, and no other is begun.

        Args:
            progress: Told after each batch, in the thread that ran it, which part of all tokens it held; all parts
                sum to 1.

        Returns:
            Vectors of *shape* ``(texts, dimensions)`` float32, and which of them were made, of *shape* ``(texts,)``
            bool; the other rows hold no vector.

        Raises:
            ModelError: a vector is not finite.
        """
        if not len(tokenized):
            return np.empty((0, self._dimensions), dtype=np.float32), np.empty(0, dtype=np.bool_)
        firsts, where = unique_rows(tokenized.ids)
        rows = [tokenized.ids[first] for first in firsts]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))  # (distinct texts,)
        total = max(1, int(lengths.sum()))
        batches = plan_batches(lengths, self._budget)
        # In the order of the batches, so that each is written where it belongs without a copy.
        vectors = np.empty((len(rows), self._dimensions), dtype=np.float32)  # (distinct texts, dimensions)
        made = np.zeros(len(rows), dtype=np.bool_)  # (distinct texts,)
        ends = np.cumsum([len(batch) for batch in batches])  # (batches,)

        def run_batch(session: onnxruntime.InferenceSession, number: int) -> None:
            members, place = batches[number], slice(ends[number] - len(batches[number]), ends[number])
            run_session(session, self._inputs([rows[member] for member in members]), vectors[place])
            # One sum instead of a look at every number: it is finite only if all of them are.
            if not math.isfinite(vectors[place].sum()):
                raise ModelError(
                    f"{self.info.model} gave a vector with infinite or undefined numbers (variant {self.info.variant})",
                    "Numbers of fp16 end at 65,504: use --precision fp32, and report the model.",
                )
            made[place] = True
            progress(int(lengths[members].sum()) / total)

        def is_short(number: int) -> bool:
            return (
                self._inputs.packed and int(lengths[batches[number][0]]) <= SHORT_TEXT_TOKENS
            )  # the first is the longest

        self._workers.run(range(len(batches)), run_batch, stop, is_short)
        places = np.empty(len(rows), dtype=np.int64)  # (distinct texts,)
        places[np.concatenate(batches)] = np.arange(len(rows))
        return vectors[places[where]], made[places[where]]

    def encode(self, texts: Sequence[str], kind: PromptKind | None = None) -> EncodeResult:
        """Sentence vectors of texts.

        Args:
            texts: Any number of texts; all their vectors are held in memory (see `encode_stream`).
            kind: `query` or `document` puts the model's prompt of that kind in front.

        Raises:
            UsageError: a single string in place of a sequence, or a text that is not valid Unicode.
        """
        if isinstance(texts, str):
            # A string is a sequence of strings: it would be encoded letter by letter.
            raise UsageError("encode takes a sequence of texts, not one string", "Write encode([text]).")
        if len(texts) <= self._window:
            tokenized = self.tokenize(texts, kind)
            return EncodeResult(self.embed(tokenized), tokenized.tokens, tokenized.truncated)
        parts = list(self.encode_stream(texts, kind))
        return EncodeResult(
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.truncated for part in parts]),
        )

    def encode_stream(
        self, texts: Iterable[str], kind: PromptKind | None = None, *, window: int | None = None
    ) -> Iterator[EncodeResult]:
        """Vectors of any number of texts in bounded memory, `window` texts at a time, in order.

        While a window is embedded, the next one is read and tokenised.
        """
        stream = iter(texts)
        windows = iter(lambda: list(islice(stream, window or self._window)), [])
        for tokenized in self.tokenize_ahead(windows, kind):
            yield EncodeResult(self.embed(tokenized), tokenized.tokens, tokenized.truncated)

    def tokenize_ahead(
        self, windows: Iterable[Sequence[str]], kind: PromptKind | None = None
    ) -> Iterator[TokenizedTexts]:
        """Tokenise windows of texts; each while the one before it is embedded.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        source = iter(windows)

        def following() -> TokenizedTexts | None:
            texts = next(source, None)
            return None if texts is None else self.tokenize(texts, kind)

        with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as thread:
            ahead = thread.submit(following)
            while (tokenized := ahead.result()) is not None:
                ahead = thread.submit(following)
                yield tokenized
