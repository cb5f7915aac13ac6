"""An encoder whose vectors say which text they are of, and which runs when the test lets it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from es_sbert.bundle.modules import PromptKind
from es_sbert.encoder.text_pipeline import EncoderInfo
from es_sbert.runtime.tokenizer import TokenizedTexts
from es_sbert.vectors import Vectors

POISON = "poison"


class TellingEncoder:
    """In place of an `Encoder`: the vector of a text is its kind's number and its letters.

    Attributes:
        batches: Size of each batch that ran, and -1 for each that failed.
        lengths: Tokens of the texts of each batch that ran.
        running: How many batches run.
        started: Set when a batch runs.
        may_run: Cleared, batches wait for it.
        closed: Whether it was closed.
    """

    KINDS: tuple[PromptKind | None, ...] = (None, "query", "document")
    DIMENSIONS = 12

    def __init__(self, fingerprint: str = "f" * 32) -> None:
        self.info = EncoderInfo("telling", fingerprint, self.DIMENSIONS, 8, "fp32", "fp32", "CPU", "cpu", 1)
        self.batches: list[int] = []
        self.lengths: list[list[int]] = []
        self.pipeline = self
        self.batch_tokens = 512
        self.parallel_batches = 1
        self.running = 0
        self._lock = threading.Lock()  # several batches run at a time
        self.started = threading.Event()
        self.may_run = threading.Event()
        self.may_run.set()
        self.closed = threading.Event()

    def tokenize(self, texts: Sequence[str], kind: PromptKind | None = None) -> TokenizedTexts:
        ids = [np.array([self.KINDS.index(kind), *text.encode()], dtype=np.int64) for text in texts]
        return TokenizedTexts(ids, np.array([len(row) for row in ids]), self.info.max_tokens)

    def input_limit(self, kind: PromptKind | None = None) -> int:
        return self.info.max_tokens

    def embed(self, tokenized: TokenizedTexts) -> Vectors:
        with self._lock:
            self.running += 1
        self.started.set()
        try:
            assert self.may_run.wait(60)
            with self._lock:
                return self._embed(tokenized)
        finally:
            with self._lock:
                self.running -= 1

    def _embed(self, tokenized: TokenizedTexts) -> Vectors:
        vectors = np.zeros((len(tokenized), self.DIMENSIONS), np.float32)  # (texts, dimensions)
        for row, ids in zip(vectors, tokenized.ids, strict=True):
            if bytes(ids[1:].astype(np.uint8)) == POISON.encode():
                self.batches.append(-1)
                raise MemoryError("poison")
            row[: len(ids)] = ids[: self.DIMENSIONS]
        self.batches.append(len(tokenized))
        self.lengths.append(tokenized.tokens.tolist())
        return vectors

    def expected(self, texts: Sequence[str], kind: PromptKind | None) -> Vectors:
        """What `embed` must give for these texts, *shape* ``(texts, dimensions)``."""
        rows = [[self.KINDS.index(kind), *text.encode()] for text in texts]
        padded = [[*row, *[0] * self.DIMENSIONS][: self.DIMENSIONS] for row in rows]
        return np.array(padded, np.float32).reshape(len(texts), self.DIMENSIONS)

    def close(self) -> None:
        self.closed.set()
