"""From what a user calls a model to what can be measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from es_sbert.bundle.reranker import is_reranker
from es_sbert.bundle.resolve import resolve_model
from es_sbert.bundle.store import is_bundle
from es_sbert.errors import DeviceError, UsageError
from es_sbert.evaluation.models import Embedder, PairScorer
from es_sbert.extras import require

Backend = Literal["auto", "onnx", "torch"]


def open_model(
    spec: str,
    *,
    backend: Backend = "auto",
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> Embedder | PairScorer:
    """Open a sentence encoder, a cross- or poly-encoder, or a baseline; close it with `close_model`.

    Args:
        spec: Model folder, bundle, hub id, installed or registered name; a folder of a cross- or poly-encoder; or a
            baseline (`glove:FILE`, …, see `es_sbert.evaluation.baselines.open`).
        backend: `onnx` runs what ingest and search run, `torch` the weights themselves. `auto` takes onnx, and
            torch for what onnx does not serve: poly-encoders, cross-encoders that were not exported, and bare
            transformers (mean pooling).
        device: `auto` (the CPU for baselines), `cpu`, `cuda` or `cuda:N`.
        precision: `auto`, `fp32`, `int8` or `fp16`; torch runs fp32 only.
        threads: CPU threads; the physical cores by default.
        report: Told what takes long, and what a summary must repeat.

    Raises:
        ModelError: not found, broken, or of an unknown architecture.
        SourceError: a baseline's file is missing or broken.
        DeviceError: the device asked for is not the one that would run.
        UsageError: a backend, device or precision that does not go with the model, or torch is not installed.
    """
    baseline = _open_baseline(spec, device)
    if baseline is not None:
        if backend == "onnx" or precision not in ("auto", "fp32"):
            raise UsageError(f"{spec} is a baseline: it has no ONNX variants", "Leave --backend and --precision out.")
        return baseline
    folder = resolve_model(spec)
    pair = _is_pair_model(folder)
    if backend == "auto":
        served = is_reranker(folder) if pair else (folder / "modules.json").exists()
        backend = "onnx" if served else "torch"
    if backend == "torch":
        return _open_torch(folder, spec, device=device, precision=precision, pair=pair)
    return _open_onnx(folder, spec, device=device, precision=precision, threads=threads, pair=pair, report=report)


def close_model(model: Embedder | PairScorer) -> None:
    """End the threads of a model that has some."""
    close = getattr(model, "close", None)
    if close is not None:
        close()


def _open_baseline(spec: str, device: str) -> Embedder | PairScorer | None:
    from es_sbert.evaluation.baselines.open import BASELINES, open_baseline

    kinds = {form.partition(":")[0] for form in BASELINES}
    if Path(spec).is_dir() or spec.partition(":")[0] not in kinds:  # a folder's name may well hold a colon
        return None
    return open_baseline(spec, "cpu" if device in ("auto", "cpu") else _torch_device(device))


def _is_pair_model(folder: Path) -> bool:
    if is_bundle(folder) or is_reranker(folder):
        return is_reranker(folder)  # known without torch
    require("train", "torch", "transformers")
    from es_sbert.networks.pair_folder import is_pair_model

    return is_pair_model(folder)


def _open_onnx(folder: Path, spec: str, *, device: str, precision: str, threads: int | None, pair: bool,
               report: Callable[[str], None]) -> Embedder | PairScorer:  # fmt: skip
    # Imported here: they bring onnxruntime.
    from es_sbert.encoder.reranker import Reranker
    from es_sbert.evaluation.onnx import OnnxEmbedder
    from es_sbert.loading import load_encoder

    model: Reranker | OnnxEmbedder
    if pair:
        if not is_reranker(folder):
            raise UsageError(
                f"{spec} scores pairs and was not exported, so onnx cannot run it",
                f"Leave --backend out, or export a cross-encoder first: es-sbert export {spec} -o RERANKER.",
            )
        model = Reranker.open(folder, device, precision, threads)
        warnings = model.warnings
    else:
        model = OnnxEmbedder(load_encoder(spec, device=device, precision=precision, threads=threads, report=report))
        warnings = model.encoder.info.warnings
    for warning in warnings:
        report(f"Warning: {warning}")
    return model


def _open_torch(folder: Path, spec: str, *, device: str, precision: str, pair: bool) -> Embedder | PairScorer:
    if precision not in ("auto", "fp32"):
        raise UsageError(f"torch measures {spec} in fp32, not in {precision}", "Use --backend onnx for variants.")
    require("train", "torch", "transformers")
    from torch import nn

    from es_sbert.networks.folder import open_siamese
    from es_sbert.networks.pair_folder import open_pair_scorer

    place = _torch_device(device)
    network = open_pair_scorer(folder, name=spec) if pair else open_siamese(folder, name=spec)
    if isinstance(network, nn.Module):
        network.to(place)
    return network


def _torch_device(device: str) -> str:
    """The device as torch names it.

    Raises:
        DeviceError: CUDA is asked for and does not run.
        UsageError: there is no such device.
    """
    require("train", "torch")
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not (kind == "cuda" and number.isdigit())):
        raise UsageError(f"there is no device {device!r}", "Use auto, cpu, cuda or cuda:N.")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"torch sees {torch.cuda.device_count()} CUDA devices, not {device}",
            "Use --device cpu, or install a torch that is built for this machine's CUDA.",
        )
    return device
