"""Open models for evaluation, as a `SentenceEmbedder` or a `PairScorer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.bundle import is_encoder_bundle, is_reranker_bundle
from es_sbert.bundle.cross_encoder_model import is_cross_encoder
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.errors import DeviceError, ModelError, ModelNotFound, UsageError, require_extra

if TYPE_CHECKING:
    from es_sbert.encoder.encoder import Encoder


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

        Raises:
            UsageError: a text is not valid Unicode.
        """
        return self.encoder.encode(texts, kind)

    def close(self) -> None:
        """Stop the encoder's threads."""
        self.encoder.close()


def check_finite(*values: NDArray[np.float64] | NDArray[np.float32]) -> None:
    """Reject NaN and infinite values.

    Raises:
        ModelError: a value is NaN or infinite.
    """
    if not all(np.isfinite(array).all() for array in values):
        raise ModelError(
            "the model returned NaN or infinite values", "Use another checkpoint, or fp32 instead of fp16."
        )


Backend = Literal["auto", "onnx", "torch"]
# Names that `open_model` accepted before baselines moved to benchmarks/baselines.
_BASELINE_PREFIXES = ("glove:", "fasttext:", "word2vec:", "tfidf:", "average:", "cls:", "infersent:")


def open_model(
    spec: str,
    *,
    backend: Backend = "auto",
    device: str = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    threads: int | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> SentenceEmbedder | PairScorer:
    """Open a sentence encoder or cross-encoder; close it with `close_model`.

    Args:
        spec: Folder, bundle, hub id, installed or registered name of a model.
        backend: `onnx` runs the ONNX model, as ingest and search do; `torch` runs the original weights. `auto` prefers
            onnx, and uses torch for cross-encoders that were not exported, and bare transformers (mean pooling).
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: `auto`, `fp32`, `bf16`, `int8` or `fp16`; torch runs fp32 only.
        runtime: `auto`, `onnxruntime` or `openvino`, for `onnx`.
        threads: CPU threads; the physical cores by default.
        report: Called with progress messages and warnings.

    Raises:
        ModelError: the model is not found, broken, or of an unknown architecture.
        DeviceError: the device is not available.
        UsageError: the model does not support the backend, device or precision, or torch is not installed.
    """
    if not Path(spec).is_dir() and (spec == "tfidf" or spec.startswith(_BASELINE_PREFIXES)):
        raise ModelNotFound(
            f"{spec} is a baseline, and `es-sbert evaluate` no longer takes baselines",
            f"Run this in a checkout of the repository: python -m benchmarks.baselines evaluate {spec}",
        )
    folder = resolve_model(spec)
    pair = _is_pair_model(folder)
    if backend == "auto":
        served = is_reranker_bundle(folder) if pair else (folder / "modules.json").exists()
        backend = "onnx" if served else "torch"
    if backend == "torch":
        return _open_torch(folder, spec, device=device, precision=precision, runtime=runtime, pair=pair)
    options = {"device": device, "precision": precision, "runtime": runtime, "threads": threads}
    return _open_onnx(folder, spec, pair, report, **options)


def close_model(model: SentenceEmbedder | PairScorer) -> None:
    """Stop the threads of a model, if it has any."""
    close = getattr(model, "close", None)
    if close is not None:
        close()


def _is_pair_model(folder: Path) -> bool:
    if is_encoder_bundle(folder) or is_reranker_bundle(folder):
        return is_reranker_bundle(folder)  # known without torch
    return is_cross_encoder(folder)


def _open_onnx(
    folder: Path, spec: str, pair: bool, report: Callable[[str], None], **options: Any
) -> SentenceEmbedder | PairScorer:
    # Import these only here: they import onnxruntime.
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.encoder.reranker import Reranker

    model: Reranker | OnnxEmbedder
    if pair:
        if not is_reranker_bundle(folder):
            raise UsageError(
                f"{spec} scores pairs and was not exported, so onnx cannot run it",
                f"Omit `backend`, or export it first: `es-sbert export {spec} -o RERANKER`.",
            )
        model = Reranker(folder, **options)
        warnings = model.warnings
    else:
        model = OnnxEmbedder(Encoder(spec, report=report, **options))
        warnings = model.encoder.info.warnings
    for warning in warnings:
        report(f"Warning: {warning}")
    return model


def _open_torch(
    folder: Path, spec: str, *, device: str, precision: str, runtime: str, pair: bool
) -> SentenceEmbedder | PairScorer:
    if runtime != "auto":
        raise UsageError(f"{spec} runs on torch, not on {runtime}", 'Use `backend="onnx"` to choose a runtime.')
    if precision not in ("auto", "fp32"):
        raise UsageError(
            f"{spec} runs on torch in fp32, not in {precision}", 'Use `backend="onnx"` for other precisions.'
        )
    require_extra("train", "torch", "transformers")
    from es_sbert.networks.cross_encoder import open_cross_encoder
    from es_sbert.networks.siamese_encoder import open_siamese_encoder

    torch_device = _torch_device(device)
    return (open_cross_encoder if pair else open_siamese_encoder)(folder, name=spec).to(torch_device)


def _torch_device(device: str) -> str:
    """Convert a device to torch's name for it.

    Raises:
        DeviceError: the CUDA device is not available.
        UsageError: the name of the device is unknown.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdigit())):
        raise UsageError(f"unknown device {device!r}", "Use auto, cpu, cuda or cuda:N.")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"{device} does not exist: torch sees {torch.cuda.device_count()} CUDA devices",
            'Use `device="cpu"`, or install a torch that is built for this machine\'s CUDA.',
        )
    return device
