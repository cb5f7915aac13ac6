"""`Encoder`: texts in, sentence vectors out, in the same order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from es_sbert.bundle.model import PromptKind
from es_sbert.bundle.store import Bundle
from es_sbert.encoder.batches import distinct, pad, plan_batches
from es_sbert.encoder.device import Device
from es_sbert.encoder.embeddings import EmbedsTexts
from es_sbert.encoder.passages import PassageSplitter
from es_sbert.encoder.session import run
from es_sbert.encoder.tokenizer import SentenceTokenizer
from es_sbert.encoder.types import Encoded, EncoderInfo, TokenizedTexts, Vectors
from es_sbert.encoder.workers import OwnsWorkers, Workers
from es_sbert.errors import UsageError

# Padded tokens of one batch. On a CPU small batches stay in its caches; a GPU wants to be filled.
# Measured by benchmarks/encode.py --budgets.
BUDGET = {"cpu": 512, "cuda": 32_768}

# Texts sorted together. Larger windows pad less and delay the first vector; beyond this little is gained.
WINDOW = 4096


class Encoder(EmbedsTexts, OwnsWorkers):
    """Sentence encoder on onnxruntime, and an embedding object for LangChain and the like (see `EmbedsTexts`).

    `es_sbert.loading.load_encoder` opens one by the model's name. Thread-safe. Close it, or use it as a context
    manager, to end its threads.

    Args:
        bundle: An opened bundle.
        variant: Name of the variant to run.
        device: Where to run it.
        threads: CPU threads; CUDA takes one.
        budget: Padded tokens of one batch; by default what was measured best for the device.
        warnings: What every summary must repeat.

    Raises:
        DeviceError: the session would run elsewhere than asked.
        BundleInvalid: the variant's file or the tokenizer is broken.
    """

    def __init__(
        self,
        bundle: Bundle,
        variant: str,
        device: Device,
        *,
        threads: int,
        budget: int | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self._workers = Workers(bundle.variant_file(variant), device, threads)
        self._tokenizer = SentenceTokenizer(bundle.model)
        self._prompt = bundle.model.prompt
        self._budget = budget or BUDGET[device.kind]
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
        """Most padded tokens of a batch."""
        return self._budget

    @property
    def parallel_batches(self) -> int:
        """How many batches run at a time: one in each worker thread."""
        return self._workers.count

    def prompt(self, kind: PromptKind | None = None) -> str:
        """What the model puts in front of a text of this kind; empty for nothing."""
        return self._prompt(kind)

    def splitter(self, tokens: int, overlap: int, kind: PromptKind | None = None) -> PassageSplitter:
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
        """
        if not len(tokenized):
            return np.empty((0, self._dimensions), dtype=np.float32), np.empty(0, dtype=np.bool_)
        firsts, where = distinct(tokenized.ids)
        rows = [tokenized.ids[first] for first in firsts]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))  # (distinct texts,)
        kinds = np.empty((len(rows), self._dimensions), dtype=np.float32)  # (distinct texts, dimensions)
        made = np.zeros(len(rows), dtype=np.bool_)  # (distinct texts,)
        total = max(1, int(lengths.sum()))

        def run_batch(session: onnxruntime.InferenceSession, members: NDArray[np.int64]) -> None:
            kinds[members] = run(session, *pad([rows[member] for member in members]))
            made[members] = True
            progress(int(lengths[members].sum()) / total)

        self._workers.run(plan_batches(lengths, self._budget), run_batch, stop)
        return kinds[where], made[where]

    def encode(self, texts: Sequence[str], kind: PromptKind | None = None) -> Encoded:
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
        parts = list(self.encode_stream(texts, kind))
        if not parts:
            none = np.empty(0, dtype=np.int64)  # (0,)
            return Encoded(np.empty((0, self._dimensions), dtype=np.float32), none, none.astype(np.bool_))
        return Encoded(
            np.concatenate([part.vectors for part in parts]),
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.truncated for part in parts]),
        )

    def encode_stream(
        self, texts: Iterable[str], kind: PromptKind | None = None, *, window: int = WINDOW
    ) -> Iterator[Encoded]:
        """Vectors of any number of texts in bounded memory, `window` texts at a time, in order."""
        stream = iter(texts)
        while chunk := list(islice(stream, window)):
            tokenized = self.tokenize(chunk, kind)
            yield Encoded(self.embed(tokenized), tokenized.tokens, tokenized.truncated)
