"""Open models for evaluation, as a `SentenceEmbedder` or a `PairScorer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, Unpack, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.bundle import is_encoder_bundle, is_reranker_bundle
from es_sbert.bundle.cross_encoder_model import is_cross_encoder
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.modules import PromptKind
from es_sbert.errors import ModelError, UsageError
from es_sbert.settings import RunOptions

if TYPE_CHECKING:
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.encoder.reranker import Reranker


@runtime_checkable
class SentenceEmbedder(Protocol):
    """A model that returns one vector per text, for example a sentence encoder in torch or ONNX.

    Attributes:
        name: Name for tables, with precision or backend if they matter.
    """

    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Embed texts: *shape* ``(texts, dimensions)``, in the order of the texts, not necessarily of unit length.

        Args:
            texts: Any number of texts.
            kind: `query` or `document` if a model has prompts for them (retrieval).
        """


@runtime_checkable
class PairScorer(Protocol):
    """A model that returns one score per pair of texts, such as a cross-encoder; a higher score is more similar.

    Attributes:
        name: Name for tables.
    """

    @property
    def name(self) -> str: ...

    def score(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Score pairs, *shape* ``(pairs,)``; `first` and `second` have the same length."""


class OnnxEmbedder:
    """A `SentenceEmbedder` on onnxruntime, with the vectors that ingest and search use.

    Args:
        encoder: A loaded encoder.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    @property
    def name(self) -> str:
        """The model with its variant: `all-MiniLM-L6-v2 (int8)`."""
        return f"{self.encoder.info.model} ({self.encoder.info.variant})"

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Embed texts: *shape* ``(texts, dimensions)``.

        Texts without a kind, such as sentences to compare, get the prompt for queries if the model has prompts for
        queries and documents: it has never seen a text without one.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        if kind is None and all(self.encoder.prompts.values()):
            kind = "query"
        return self.encoder.encode(texts, kind)

    def close(self) -> None:
        """Stop the encoder's threads."""
        self.encoder.close()


def embed_columns(
    model: SentenceEmbedder, *columns: Sequence[str], kind: PromptKind | None = None
) -> list[NDArray[np.float32]]:
    """Embed columns of texts, *shape* ``(texts, dimensions)`` each; equal texts are embedded only once."""
    places = {text: place for place, text in enumerate(dict.fromkeys(text for column in columns for text in column))}
    vectors = model.embed(list(places), kind)  # (different texts, dimensions)
    return [vectors[[places[text] for text in column]] for column in columns]


def check_finite(*values: NDArray[np.float64] | NDArray[np.float32]) -> None:
    """Reject NaN and infinite values.

    Raises:
        ModelError: a value is NaN or infinite.
    """
    if not all(np.isfinite(array).all() for array in values):
        raise ModelError(
            "the model returned NaN or infinite values", "Use another checkpoint, or fp32 instead of fp16."
        )


def open_model(
    spec: str, *, report: Callable[[str], None] = lambda message: None, **options: Unpack[RunOptions]
) -> OnnxEmbedder | Reranker:
    """Open a sentence encoder or an exported cross-encoder as ingest and search run it; close it with `close_model`.

    Args:
        spec: Folder, bundle, hub id, installed or registered name of a model.
        report: Called with progress messages and warnings.
        options: How it runs.

    Raises:
        ModelError: the model is not found, broken, or of an unknown architecture.
        DeviceError: the device is not available.
        UsageError: the model does not support the device or precision, or a cross-encoder was not exported.
    """
    # Import these only here: they import onnxruntime.
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.encoder.reranker import Reranker

    folder = resolve_model(spec)
    model: OnnxEmbedder | Reranker
    if is_reranker_bundle(folder):
        model = Reranker(folder, **options)
        warnings = model.warnings
    elif not is_encoder_bundle(folder) and is_cross_encoder(folder):
        raise UsageError(
            f"{spec} is a cross-encoder that was not exported",
            f"Export it first: `es-sbert export {spec} -o RERANKER`.",
        ).about("model", spec)
    else:
        model = OnnxEmbedder(Encoder(spec, report=report, **options))
        warnings = model.encoder.info.warnings
    for warning in warnings:
        report(f"Warning: {warning}")
    return model


def close_model(model: SentenceEmbedder | PairScorer) -> None:
    """Stop the threads of a model, if it has any."""
    close = getattr(model, "close", None)
    if close is not None:
        close()
