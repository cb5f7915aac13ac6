"""`CompiledModel`: a graph that one runtime has opened on one device, and its sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.runtime.batching import BatchLimits, round_up

# Share for `BatchLimits.similar`. On a CPU, padding takes as long as text; without this limit, it would be half of a
# batch with only a few texts of different lengths.
_SIMILAR = 0.75


class Session(ABC):
    """Runs the batches of a compiled model, one at a time.

    Attributes:
        input_names: Names of the graph's inputs.
        properties: The graph's metadata.
        provider: Provider that executes the graph, as the runtime reports it.
    """

    input_names: tuple[str, ...]
    properties: Mapping[str, str]
    provider: str

    @abstractmethod
    def run(self, inputs: Mapping[str, NDArray[Any]], output: NDArray[np.float32]) -> None:
        """Run one batch.

        Args:
            inputs: The graph's inputs, as `InputBuilder` makes them.
            output: Receives the graph's output: *shape* ``(batch, width)``, contiguous.

        Raises:
            ModelError: the batch failed on a CPU.
            DeviceError: the batch failed on a GPU.
        """


class CompiledModel(ABC):
    """A graph that a runtime has opened on a device.

    Attributes:
        threads: Number of concurrent batches.
        session_threads: For each session, the number of these threads that share it.
        has_short_sessions: Whether batches of short texts have separate sessions.
        batch_tokens: Tokens per batch at which the model is fastest.
        window: Number of texts that are sorted by length and run together.
    """

    threads: int
    session_threads: tuple[int, ...]
    has_short_sessions: bool = False
    batch_tokens: int
    window: int

    @abstractmethod
    def open_session(self, *, short: bool = False) -> Session:
        """Open a session.

        Args:
            short: For texts of at most `SHORT_TEXT_TOKENS` tokens, if there are separate sessions for them.

        Raises:
            DeviceError: the session would run on a different device, in whole or in part, or does not run on this one.
            BundleInvalid: the runtime does not accept the file.
        """

    @classmethod
    def length_multiple(cls, longest: int, texts: int) -> int:
        """Number by which the padded length of a batch should be divisible; see `padded_length`."""
        return 1

    @classmethod
    def padded_length(cls, longest: int, texts: int, most: int) -> int:
        """Compute the padded length of a batch.

        Args:
            longest: Tokens of its longest text.
            texts: Number of its texts.
            most: Maximum tokens that the model reads.
        """
        return min(round_up(longest, cls.length_multiple(longest, texts)), max(longest, most))

    @classmethod
    def batch_limits(cls, tokens: int | None = None) -> BatchLimits:
        """Return the limits of a batch.

        Args:
            tokens: Tokens per batch instead of `batch_tokens`.
        """
        return BatchLimits(tokens or cls.batch_tokens, similar=_SIMILAR)
