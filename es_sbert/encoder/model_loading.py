"""Select the bundle and variant to run for a model, and open its sessions.

A sentence encoder without ONNX files is exported to the cache on first use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from es_sbert.arguments import with_defaults
from es_sbert.bundle.bundle import (
    EncoderBundle,
    EncoderManifest,
    RerankerBundle,
    cached_bundle_path,
    is_encoder_bundle,
    open_encoder_bundle,
    open_reranker_bundle,
    rename_bundle,
)
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.modules import STATIC_ARCHITECTURE
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.errors import BundleInvalid, DeviceError, ModelError, OutputError, ParityFailed, UnsupportedArchitecture
from es_sbert.filesystem import open_output
from es_sbert.installation import runtime_collision
from es_sbert.messages import setting
from es_sbert.runtime.device import NO_GPU_FOUND, Device, choose_device, cuda_devices, describe_machine
from es_sbert.runtime.inference_pool import InferencePool, compile_model
from es_sbert.runtime.onnx_session import available_providers
from es_sbert.runtime.openvino_session import inherited_problem
from es_sbert.runtime.variant_candidates import openvino_warnings, variant_order
from es_sbert.settings import RunOptions

StatusCallback = Callable[[str], None]
BundleT = TypeVar("BundleT", bound=EncoderBundle | RerankerBundle)

_reported: set[str] = set()  # notices that were reported in this process


@dataclass(frozen=True)
class SelectedVariant(Generic[BundleT]):
    """A variant of a bundle, and the device to run it on.

    Attributes:
        bundle: The opened bundle.
        variant: Name of the variant.
        device: Device on which it runs.
        warnings: Warnings to repeat in every summary.
        alternatives: Variants to run if this one cannot be opened, best first.
        prepared_seconds: Time to export the model; 0 if that was not necessary.
    """

    bundle: BundleT
    variant: str
    device: Device
    warnings: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    prepared_seconds: float = 0.0

    def open(self, threads: int | None = None) -> InferencePool:
        """Open the sessions of the variant.

        Args:
            threads: Number of concurrent batches; by default one for each physical core, or two on CUDA.

        Raises:
            DeviceError: the session would run on a different device, or the runtime does not support the model on it.
            BundleInvalid: the variant's file is broken.
        """
        graph, path = self.bundle.manifest.variants[self.variant], self.bundle.variant_file(self.variant)
        return InferencePool(compile_model(path, graph.runtime, graph.precision, self.device, threads=threads))


def open_variant(
    select: Callable[..., SelectedVariant[BundleT]], options: RunOptions
) -> tuple[SelectedVariant[BundleT], InferencePool]:
    """Select a variant for the requested device and open its sessions; `auto` falls back to the CPU if CUDA fails.

    Args:
        select: Selects a variant for a device, a precision and a runtime.
        options: How the model is to run.

    Raises:
        DeviceError: the requested device cannot be used.
        UsageError: the device is invalid.
    """
    settings: Any = with_defaults(RunOptions, options)
    requested, threads = settings["device"], settings["threads"]
    select = partial(select, precision=settings["precision"], runtime=settings["runtime"])
    device = choose_device(requested, available_providers(), cuda_devices())
    if device.kind == "cpu":
        return _open_first(select(device), threads)
    try:
        selected = select(device)
        return selected, selected.open(threads)
    except DeviceError as error:
        if requested != "auto":
            raise
        # `auto` chose CUDA because there is a GPU, but its libraries do not work: use the CPU.
        warning = f"CUDA does not work here: {error.message}. {error.remedy}"
    on_cpu, pool = _open_first(select(Device("cpu")), threads)
    return replace(on_cpu, warnings=(warning, *on_cpu.warnings)), pool


def _open_first(
    selected: SelectedVariant[BundleT], threads: int | None
) -> tuple[SelectedVariant[BundleT], InferencePool]:
    """Open a variant, or the first of its alternatives that can be opened."""
    while True:
        try:
            return selected, selected.open(threads)
        except (DeviceError, BundleInvalid) as error:
            if not selected.alternatives:
                raise
            variant, *others = selected.alternatives
            warning = f"{selected.variant} cannot be opened ({error.message}): {variant} runs instead"
            selected = replace(
                selected, variant=variant, warnings=(*selected.warnings, warning), alternatives=tuple(others)
            )


def runtime_warnings(requested: str, report: StatusCallback) -> tuple[str, ...]:
    """Return a warning if several builds of onnxruntime have overwritten each other's files.

    If `auto` is requested and the build for CUDA is installed, this also reports, once per process, that there is no
    GPU. With the build for CPUs, nothing is reported about GPUs, since the user has chosen it.
    """
    gpus = cuda_devices()
    if (
        requested == "auto"
        and not gpus
        and "CUDAExecutionProvider" in available_providers()
        and NO_GPU_FOUND not in _reported
    ):
        _reported.add(NO_GPU_FOUND)
        report(NO_GPU_FOUND)
    collision = runtime_collision(gpus)
    return () if collision is None else (". ".join(collision),)


@dataclass(frozen=True)
class EncoderSource:
    """A sentence encoder on this machine: a bundle, or a model whose variants are exported to the cache.

    Attributes:
        model: The model's settings, read from its folder.
        bundle: The bundle; None for a folder without ONNX files.
    """

    model: SentenceModel
    bundle: EncoderBundle | None = None


def find_encoder(model: str | Path, called: str | None = None) -> EncoderSource:
    """Find a sentence encoder.

    Args:
        model: Model folder, bundle, hub id, installed or registered name.
        called: Name to show instead of the model's own name.

    Raises:
        ModelError: the model was not found, is broken or has an unknown architecture.
    """
    folder = _find_folder(model)
    if not is_encoder_bundle(folder):
        return EncoderSource(read_sentence_model(folder, called or str(model)))
    bundle = open_encoder_bundle(folder)
    bundle = bundle if called is None else rename_bundle(bundle, called)
    return EncoderSource(bundle.model, bundle)


def select_encoder_variant(
    source: EncoderSource, device: Device, precision: str = "auto", runtime: str = "auto", *, report: StatusCallback
) -> SelectedVariant[EncoderBundle]:
    """Find the variant of a sentence encoder to run on a device. A model without ONNX files is exported.

    With precision and runtime `auto`, the variant that is usually the fastest on this kind of processor runs
    (`variant_order`). On a CPU, a variant that was exported below its parity threshold or never compared with the model
    runs only if there is no other. A variant that is not in the bundle or cannot be exported is left out. Each is a
    warning in `warnings`.

    Args:
        source: The model.
        device: Device on which to run it.
        precision: `auto`, `fp32`, `bf16`, `int8` or `fp16`.
        runtime: `auto`, `onnxruntime` or `openvino`.
        report: Called with a message before slow steps, and with the time after them.

    Raises:
        ModelError: the model cannot be exported, or its bundle has no variant for these settings.
        UsageError: the precision or runtime is invalid, or does not run on the device.
        DeviceError: the requested runtime or precision cannot run here.
    """
    is_free = precision == runtime == "auto"
    order = variant_order(device, runtime, precision)
    if is_free and source.model.architecture == STATIC_ARCHITECTURE:
        order = (Variant.FP32,)  # it has no products that another variant would compute faster
    begun, slow_steps = time.perf_counter(), list[str]()

    def report_step(message: str) -> None:
        slow_steps.append(message)
        report(message)

    bundle, refused = source.bundle, dict[Variant, str]()
    if bundle is None:
        bundle, refused = _open_cached_bundle(source.model, order, may_fall_back=is_free, report=report_step)
        # The cache is keyed by fingerprint: its bundle may have been exported from a copy with another name.
        bundle = rename_bundle(bundle, source.model.name)
    present = [variant for variant in order if variant in bundle.manifest.variants]
    if not present:
        raise _missing_variant(bundle, device, order[:1], precision)
    chosen, parity_warnings = _choose_checked(bundle, present, may_choose=is_free and device.kind == "cpu")
    wanted = next(variant for variant in order if variant not in refused)
    warnings = [
        f"there is no {variant} variant ({reason}): {chosen} runs instead" for variant, reason in refused.items()
    ]
    if is_free:
        warnings += openvino_warnings(device)
    if wanted not in present:
        command = f"es-sbert export {bundle.folder} -o {bundle.folder} --precision {wanted}"
        warnings.append(f"the bundle has no {wanted} variant: {chosen} runs instead. Add it: `{command}`")
    return SelectedVariant(
        bundle,
        chosen,
        device,
        (*warnings, *parity_warnings),
        tuple(variant for variant in present if is_free and variant != chosen),
        time.perf_counter() - begun if slow_steps else 0.0,
    )


def _choose_checked(
    bundle: EncoderBundle | RerankerBundle, present: Sequence[Variant], *, may_choose: bool
) -> tuple[Variant, tuple[str, ...]]:
    """Choose the first variant, or if that is free the first one that passed its comparison with the model.

    Returns:
        The variant, and a warning if the first one was not compared or did not pass.
    """
    first, warning = present[0], parity_warning(bundle, present[0])
    if warning is None:
        return first, ()
    passed = (variant for variant in present if parity_warning(bundle, variant) is None)
    chosen = next(passed, first) if may_choose else first
    return chosen, (warning if chosen is first else f"{warning}: {chosen} runs instead",)


def parity_warning(bundle: EncoderBundle | RerankerBundle, variant: str) -> str | None:
    """Return a warning if a variant was not compared with the model, or failed the comparison; None if it passed."""
    graph = bundle.manifest.variants[variant]
    results = "vectors" if isinstance(bundle.manifest, EncoderManifest) else "scores"
    if graph.forced:
        return (
            f"variant {variant} was exported below its parity threshold ({setting('force')}): its {results} differ "
            "from the model's"
        )
    if graph.parity is None:
        return f"variant {variant} was never compared with the model: the machine that exported it lacked the device"
    return None


def open_reranker(model: str | Path) -> RerankerBundle:
    """Open an exported cross-encoder: its folder, hub id, installed or registered name. Nothing is exported.

    Raises:
        ModelError: the model was not found, is broken or was not exported.
    """
    return open_reranker_bundle(_find_folder(model))


def select_reranker_variant(
    bundle: RerankerBundle, device: Device, precision: str = "auto", runtime: str = "auto"
) -> SelectedVariant[RerankerBundle]:
    """Select the variant of an exported cross-encoder for a device and precision.

    Args:
        precision, runtime: As for `select_encoder_variant`. `auto` takes the variant of the bundle that is usually the
            fastest on this kind of processor.

    Raises:
        ModelError: the bundle has no variant for these settings.
        UsageError: the precision or runtime is invalid, or does not run on the device.
        DeviceError: the requested runtime or precision cannot run here.
    """
    order = variant_order(device, runtime, precision)
    present = [variant for variant in order if variant in bundle.manifest.variants]
    if not present:
        raise _missing_variant(bundle, device, order, precision)
    is_free = precision == runtime == "auto"
    chosen, warnings = _choose_checked(bundle, present, may_choose=is_free and device.kind == "cpu")
    if present[0] is not order[0] and device.kind == "cuda":
        warnings = (f"the reranker has no {order[0]} variant: {chosen} runs instead", *warnings)
    others = tuple(variant for variant in present if is_free and variant != chosen)
    return SelectedVariant(bundle, chosen, device, warnings, others)


def _find_folder(model: str | Path) -> Path:
    """The folder of a model; a `Path` is never looked up as a name."""
    return model if isinstance(model, Path) else resolve_model(model)


def _missing_variant(
    bundle: EncoderBundle | RerankerBundle, device: Device, variants: Sequence[Variant], precision: str
) -> ModelError:
    folder, present = bundle.folder, bundle.manifest.variants
    return ModelError(
        f"{folder} has no {' or '.join(variants)} variant for {device.kind}, only {', '.join(present) or 'none'}",
        f"Add it: `es-sbert export {folder} -o {folder} --precision {variants[0]}`",
    ).about(None if precision == "auto" else "precision", precision)


def _open_cached_bundle(
    model: SentenceModel, order: Sequence[Variant], *, may_fall_back: bool, report: StatusCallback
) -> tuple[EncoderBundle, dict[Variant, str]]:
    """Open a model's bundle in the cache, and export the first variant of `order` to it if it is missing.

    Args:
        may_fall_back: If a variant cannot be exported, take the next one.

    Returns:
        The bundle, and for each variant that could not be exported the reason.

    Raises:
        ModelError: the model cannot be exported, or the cache cannot be written.
    """
    folder = cached_bundle_path(model.fingerprint)
    present: Collection[str] = ()
    if is_encoder_bundle(folder):
        try:
            bundle = open_encoder_bundle(folder)
        except BundleInvalid as error:
            raise BundleInvalid(error.message, f"It is in es-sbert's cache: remove {folder} and run again.") from error
        present = bundle.manifest.variants
        if order[0] in present:
            return bundle, {}
    if inherited_problem() is not None:
        # The libraries of the exporter, such as torch, would wait for threads of the parent, too.
        if not set(order) & set(present):
            raise DeviceError(
                f"{model.name} has no {' or '.join(order)} variant yet, and nothing can be exported in a process that "
                "was forked after OpenVINO was loaded",
                "Open models after the fork (gunicorn without preloading), start processes with `spawn`, or open a "
                f"folder with several variants, as `es-sbert export {model.folder} -o FOLDER` writes it.",
            )
        return bundle, {}
    known = _read_refused(folder) if may_fall_back else {}
    refused: dict[Variant, str] = {}
    for variant in order:
        if variant in present:
            break
        if variant in known:
            refused[variant] = known[variant]
            continue
        try:
            _export_to_cache(model, folder, variant, report)
            break
        except (ParityFailed, UnsupportedArchitecture, BundleInvalid) as error:
            # Not every graph has fp16, and OpenVINO does not accept every graph. If the architecture is unknown or
            # files are broken, the export of fp32 raises the error again.
            if not may_fall_back or variant is Variant.FP32:
                raise
            refused[variant] = error.message
            _write_refused(folder, known | refused, report)
    return open_encoder_bundle(folder), refused


def _refused_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.refused.json")


def _read_refused(folder: Path) -> dict[Variant, str]:
    """Read why variants of a cached bundle cannot be exported on this machine, so that they are not tried again."""
    try:
        kept = json.loads(_refused_path(folder).read_text(encoding="utf-8"))
        if kept["machine"] != describe_machine():
            return {}
        return {Variant(name): reason for name, reason in kept["variants"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # the variants are tried again
        return {}


def _write_refused(folder: Path, refused: Mapping[Variant, str], report: StatusCallback) -> None:
    path = _refused_path(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_output(path) as file:
            file.write(json.dumps({"machine": describe_machine(), "variants": refused}, indent=2).encode())
    except OSError as error:
        report(f"{path} cannot be written ({error.strerror}): the export is tried again next time")


def _export_to_cache(model: SentenceModel, folder: Path, variant: Variant, report: StatusCallback) -> None:
    # Imported here: the exporter imports onnx, which a bundle does not need.
    from es_sbert.exporters.export_bundle import export_bundle

    report(f"Exporting {model.name} to ONNX ({variant}), once")
    begun = time.perf_counter()
    try:
        export_bundle(model, folder, [variant], reference="auto", on_progress=report)
    except OutputError as error:
        raise ModelError(
            error.message,
            "Exported models are cached there: free space, or set the environment variable ES_SBERT_CACHE to another "
            "folder.",
        ) from error
    report(f"Exported {model.name} in {time.perf_counter() - begun:.1f} s; kept in {folder}")
