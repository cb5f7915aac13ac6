"""Select the bundle and variant to run for a model, and open its sessions.

A sentence encoder without ONNX files is exported to the cache on first use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Self, TypeVar

from es_sbert.bundle.bundle import (
    EncoderBundle,
    RerankerBundle,
    cached_bundle_path,
    is_encoder_bundle,
    open_encoder_bundle,
    open_reranker_bundle,
)
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import Precision, SentenceModel, read_sentence_model
from es_sbert.encoder.device import (
    NO_GPU_FOUND,
    UNUSED_GPU,
    Device,
    choose_device,
    choose_variant,
    cuda_devices,
    has_int8_products,
    precision_order,
)
from es_sbert.encoder.onnx_session import InferencePool, available_providers
from es_sbert.errors import BundleInvalid, DeviceError, ModelError, OutputError, ParityFailed, UnsupportedArchitecture

StatusCallback = Callable[[str], None]
BundleT = TypeVar("BundleT", bound=EncoderBundle | RerankerBundle)

_reported: set[str] = set()  # notices that were reported in this process


@dataclass(frozen=True)
class SelectedVariant(Generic[BundleT]):
    """A variant of a bundle, and the device to run it on.

    Attributes:
        bundle: The opened bundle.
        variant: Name of the variant.
        device: Where it runs.
        warnings: Repeated in every summary.
    """

    bundle: BundleT
    variant: str
    device: Device
    warnings: tuple[str, ...] = ()

    def open(self, threads: int | None = None) -> InferencePool:
        """Open its sessions.

        Args:
            threads: As for `InferencePool`.

        Raises:
            DeviceError: the session would run on another device.
            BundleInvalid: the variant's file is broken.
        """
        return InferencePool(self.bundle.variant_file(self.variant), self.device, threads)


class OnnxModel(ABC, Generic[BundleT]):
    """A model that runs on an `InferencePool`: closed by `close`, or as a context manager."""

    _pool: InferencePool

    @classmethod
    def from_bundle(
        cls, bundle: BundleT, variant: str, device: Device, *, threads: int | None = None, budget: int | None = None
    ) -> Self:
        """Open a variant of an opened bundle.

        Args:
            bundle: The bundle.
            variant: `fp32`, `int8` or `fp16`.
            device: Where to run it.
            threads, budget: As for the class.

        Raises:
            DeviceError: the session would run on another device.
            BundleInvalid: the variant's file or the tokenizer is broken.
        """
        selected = SelectedVariant(bundle, variant, device)
        model = cls.__new__(cls)
        model._start(selected, selected.open(threads), budget)
        return model

    @abstractmethod
    def _start(self, selected: SelectedVariant[BundleT], pool: InferencePool, budget: int | None) -> None:
        """Set the model up on its sessions."""

    def close(self) -> None:
        """End the worker threads."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_variant(
    select: Callable[[Device], SelectedVariant[BundleT]], requested: str, threads: int | None
) -> tuple[SelectedVariant[BundleT], InferencePool]:
    """Select a variant for the requested device and open its sessions; `auto` falls back to the CPU if CUDA fails.

    Args:
        select: Selects a variant for a device.
        requested: `auto`, `cpu`, `cuda` or `cuda:N`.
        threads: As for `InferencePool`.

    Raises:
        DeviceError: the requested device cannot be used.
        UsageError: an invalid device.
    """
    device = choose_device(requested, available_providers(), cuda_devices())
    try:
        selected = select(device)
        return selected, selected.open(threads)
    except DeviceError as error:
        if requested != "auto" or device.kind == "cpu":
            raise
        # There is a GPU, but its libraries do not work.
        warning = f"CUDA does not run here: {error.message}. {error.remedy}"
    on_cpu = select(Device("cpu"))
    return replace(on_cpu, warnings=(warning, *on_cpu.warnings)), on_cpu.open(threads)


def gpu_warnings(requested: str, report: StatusCallback) -> tuple[str, ...]:
    """Warnings about a GPU that `auto` leaves unused. A machine without a GPU is reported once per process."""
    built, gpus = "CUDAExecutionProvider" in available_providers(), cuda_devices()
    if requested == "auto" and built and not gpus and NO_GPU_FOUND not in _reported:
        _reported.add(NO_GPU_FOUND)
        report(NO_GPU_FOUND)
    return (UNUSED_GPU,) if requested == "auto" and gpus and not built else ()


def select_encoder_variant(
    model: str | Path, device: Device, precision: str, *, called: str | None = None, report: StatusCallback
) -> SelectedVariant[EncoderBundle]:
    """Find the variant of a sentence encoder for a device and precision, and export it if the model has no ONNX files.

    Args:
        model: Model folder, bundle, hub id, installed or registered name.
        precision: `auto`, `fp32`, `int8` or `fp16`. With `auto`, fp32 is the fallback if the best precision for the
            device fails its parity check, is not in the bundle or cannot be exported; `warnings` then says so.
        called: Name to show instead of the model's own.
        report: Called before slow steps.

    Raises:
        ModelError: the model was not found, is broken, has an unknown architecture or no such variant.
        UsageError: the precision does not run on the device.
    """
    first = precision_order(precision, device, has_int8_products())[0]
    may_fall_back = precision == "auto"
    folder = _find_folder(model)
    if not is_encoder_bundle(folder):
        plain = read_sentence_model(folder, called or str(model))
        selected = _select_exported_variant(plain, device, first, may_fall_back=may_fall_back, report=report)
        # The cache goes by the fingerprint: its bundle may have been exported from a copy with another name.
        return replace(selected, bundle=selected.bundle.renamed(plain.name))
    bundle = open_encoder_bundle(folder)
    if called is not None:
        bundle = bundle.renamed(called)
    found = _find_variant(bundle, device, first)
    if found is not None:
        return found
    fallback = choose_variant(device, Precision.FP32, bundle.manifest.variants)
    if may_fall_back and fallback is not None:
        warning = f"the bundle has no {first} variant: {fallback} runs instead"
        return SelectedVariant(bundle, fallback, device, (warning,))
    raise _missing_variant(bundle, device, [first])


def select_reranker_variant(model: str | Path, device: Device, precision: str) -> SelectedVariant[RerankerBundle]:
    """Find the variant of an exported cross-encoder for a device and precision. Nothing is exported.

    Args:
        model: Folder, hub id, installed or registered name of the reranker.
        precision: As for `select_encoder_variant`. `auto` takes the best precision for the device that the bundle has.

    Raises:
        ModelError: the model was not found, is broken, was not exported or has no such variant.
        UsageError: the precision does not run on the device.
    """
    return choose_reranker_variant(open_reranker_bundle(_find_folder(model)), device, precision)


def choose_reranker_variant(bundle: RerankerBundle, device: Device, precision: str) -> SelectedVariant[RerankerBundle]:
    """The best variant of an opened reranker; see `select_reranker_variant`."""
    precisions = precision_order(precision, device, has_int8_products())
    for name in precisions:
        if name in bundle.manifest.variants:
            slower = device.kind == "cuda" and name != precisions[0]
            warning = f"the reranker has no {precisions[0]} variant: {name} runs instead"
            return SelectedVariant(bundle, name, device, (warning,) if slower else ())
    raise _missing_variant(bundle, device, precisions)


def _find_folder(model: str | Path) -> Path:
    """The folder of a model; a `Path` is never looked up as a name."""
    return model if isinstance(model, Path) else resolve_model(model)


def _missing_variant(
    bundle: EncoderBundle | RerankerBundle, device: Device, precisions: Sequence[Precision]
) -> ModelError:
    folder, present = bundle.folder, bundle.manifest.variants
    return ModelError(
        f"{folder} has no {' or '.join(precisions)} variant for {device.kind}, only {', '.join(present) or 'none'}",
        f"Add it: es-sbert export {folder} -o {folder} --precision {precisions[0]}",
    )


def _select_exported_variant(
    model: SentenceModel, device: Device, precision: Precision, *, may_fall_back: bool, report: StatusCallback
) -> SelectedVariant[EncoderBundle]:
    """The variant of a model in the cache, exported if it is not there."""
    # Imported here: the exporter imports onnx, which a bundle does not need.
    from es_sbert.exporters.export_bundle import export_bundle

    folder = cached_bundle_path(model.fingerprint)
    if is_encoder_bundle(folder):
        try:
            bundle = open_encoder_bundle(folder)
        except BundleInvalid as error:
            raise BundleInvalid(error.message, f"It is a cache of es-sbert: remove {folder} and run again.") from error
        present = _find_variant(bundle, device, precision)
        if present is not None:
            return present
    report(f"Exporting {model.name} to ONNX ({precision}), once: {folder}")
    try:
        export_bundle(model, folder, [precision], reference="auto", on_progress=report)
    except OutputError as error:
        raise ModelError(
            error.message,
            "Exported models are cached there: free space, or set the environment variable ES_SBERT_CACHE to another "
            "folder.",
        ) from error
    except (ParityFailed, UnsupportedArchitecture) as error:
        # Not every graph has fp16. For an unknown architecture, the export of fp32 raises again.
        if not may_fall_back or precision is Precision.FP32:
            raise
        selected = _select_exported_variant(model, device, Precision.FP32, may_fall_back=False, report=report)
        warning = f"there is no {precision} variant ({error.message}): fp32 runs instead"
        return replace(selected, warnings=(*selected.warnings, warning))
    exported = _find_variant(open_encoder_bundle(folder), device, precision)
    assert exported is not None, "the export has written it"
    return exported


def _find_variant(bundle: EncoderBundle, device: Device, precision: Precision) -> SelectedVariant[EncoderBundle] | None:
    """The best variant that a bundle has for this device and precision; None if it has none."""
    variant = choose_variant(device, precision, bundle.manifest.variants)
    if variant is None:
        return None
    warning, graph = f"variant {variant} was ", bundle.manifest.variants[variant]
    if graph.forced:
        warning += "exported below its parity threshold (--force): its vectors differ from the model's"
    elif graph.parity is None:
        warning += "never compared with the model: the exporting machine lacked the device"
    else:
        return SelectedVariant(bundle, variant, device)
    return SelectedVariant(bundle, variant, device, (warning,))
