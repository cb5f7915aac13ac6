"""`EncoderRoute`: the tokenizer and the sessions of one sentence encoder, which compute batches of its texts.

An `Encoder` has one. For a model with a Router, it has one for each route, opened when a text first uses it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.bundle import EncoderBundle
from es_sbert.bundle.modules import Pooling
from es_sbert.encoder.model_loading import SelectedVariant
from es_sbert.errors import ModelError
from es_sbert.runtime.batching import InputBuilder, plan_batches, unique_rows
from es_sbert.runtime.compiled_model import Session
from es_sbert.runtime.inference_pool import InferencePool
from es_sbert.runtime.onnx_session import SHORT_TEXT_TOKENS
from es_sbert.runtime.tokenizer import SentenceTokenizer, TokenizedTexts
from es_sbert.vectors import Vectors

# Poolings that give the zero vector for a text without tokens.
_POOLINGS_WITHOUT_TOKENS = frozenset({Pooling.MEAN, Pooling.MEAN_SQRT_LEN, Pooling.WEIGHTEDMEAN, Pooling.LASTTOKEN})

# Tokens per batch of a static model. It is large because looking up a token costs far less than a session call.
_STATIC_BATCH_TOKENS = 16_384


class EncoderRoute:
    """An opened sentence encoder. Thread-safe.

    Args:
        selected: The variant that runs.
        pool: Its sessions.
        budget: Tokens of one batch; by default the best for the device.

    Attributes:
        selected: The variant that runs.
        pool: Its sessions.
        tokenizer: The tokenizer of its texts.
        limits: Maximum size of a batch.
    """

    def __init__(self, selected: SelectedVariant[EncoderBundle], pool: InferencePool, budget: int | None) -> None:
        self.selected, self.pool = selected, pool
        self._model = model = selected.bundle.model
        with pool.session() as session:
            padded_length = partial(pool.model.padded_length, most=model.longest_input)
            self._inputs = InputBuilder(session.input_names, session.properties, padded_length)
        self.tokenizer = SentenceTokenizer(model)
        # Zeros are written for a text without tokens (`run_batch`) if the graph takes packed texts, or if the pooling
        # needs a first vector or a largest value, which such a text lacks.
        self._tokenless_is_zero = self._inputs.packed or not _POOLINGS_WITHOUT_TOKENS.issuperset(model.pooling)
        tokens = budget or selected.batch_tokens
        if tokens is None and model.architecture == "static":
            tokens = max(pool.model.batch_tokens, _STATIC_BATCH_TOKENS)
        self.limits = pool.model.batch_limits(tokens)

    def embed(
        self, tokenized: TokenizedTexts, stop: threading.Event | None, progress: Callable[[float], None]
    ) -> tuple[Vectors, NDArray[np.bool_]]:
        """Run the model; see `Encoder.embed_until`."""
        run = _BatchRun(self, tokenized, progress)
        self.pool.run(range(len(run.batches)), run.run_batch, stop, run.is_short)
        return run.in_input_order()


class _BatchRun:
    """The batches of one call of `EncoderRoute.embed`, and their vectors.

    Attributes:
        batches: For each batch, the indices of its texts among the distinct texts.
    """

    def __init__(self, route: EncoderRoute, tokenized: TokenizedTexts, progress: Callable[[float], None]) -> None:
        self._inputs, self._selected, self._progress = route._inputs, route.selected, progress
        self._tokenless_is_zero = route._tokenless_is_zero
        unique, self._unique_index = unique_rows(tokenized.ids)
        self._rows = [tokenized.ids[number] for number in unique]
        self._lengths = np.fromiter(map(len, self._rows), dtype=np.int64, count=len(unique))  # (distinct texts,)
        self._total_tokens = max(1, int(self._lengths.sum()))
        self.batches = plan_batches(self._lengths, route.limits)
        # Rows are in the order of the batches, so that each batch is written without a copy.
        dimensions = self._selected.bundle.model.dimensions
        self._vectors = np.empty((len(unique), dimensions), dtype=np.float32)  # (distinct texts, dimensions)
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
            name, variant = self._selected.bundle.model.name, self._selected.variant
            raise ModelError(
                f"{name} gave a vector with infinite or undefined numbers (variant {variant})",
                'The largest fp16 number is 65,504: use `precision="fp32"`, and report the model.',
            )
        self._computed[output] = True
        self._progress(int(self._lengths[batch].sum()) / self._total_tokens)

    def in_input_order(self) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return the vectors of all texts in input order, and a mask of those that were computed."""
        positions = np.empty(len(self._rows), dtype=np.int64)  # (distinct texts,), rows in the order of the batches
        positions[np.concatenate(self.batches)] = np.arange(len(self._rows))
        order = positions[self._unique_index]  # (texts,)
        return self._vectors[order], self._computed[order]
