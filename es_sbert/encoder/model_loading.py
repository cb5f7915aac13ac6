"""Select the bundle and variant to run for a model, and open its sessions.

A sentence encoder without ONNX files is exported to the cache on first use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from es_sbert.bundle.bundle import (
    EncoderBundle,
    RerankerBundle,
    cached_bundle_path,
    is_encoder_bundle,
    open_encoder_bundle,
    open_reranker_bundle,
    rename_bundle,
)
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.errors import BundleInvalid, DeviceError, ModelError, OutputError, ParityFailed, UnsupportedArchitecture
from es_sbert.filesystem import open_output
from es_sbert.installation import runtime_collision
from es_sbert.runtime.device import NO_GPU_FOUND, Device, choose_device, cuda_devices
from es_sbert.runtime.inference_pool import InferencePool
from es_sbert.runtime.machine import describe_machine
from es_sbert.runtime.onnx_session import available_providers
from es_sbert.runtime.runtimes import compile_model
from es_sbert.runtime.variant_candidates import contenders, first_exports, openvino_warnings, variant_order

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
        threads: Number of concurrent batches that was measured to be the fastest; None for the usual number.
        batch_tokens: Tokens of a batch that were measured to be the fastest; None for the runtime's own number.
        alternatives: Variants to run if this one cannot be opened, best first.
        prepared_seconds: Time to export and measure the model; 0 if neither was necessary.
    """

    bundle: BundleT
    variant: str
    device: Device
    warnings: tuple[str, ...] = ()
    threads: int | None = None
    batch_tokens: int | None = None
    alternatives: tuple[str, ...] = ()
    prepared_seconds: float = 0.0

    def open(self, threads: int | None = None) -> InferencePool:
        """Open the sessions of the variant.

        Args:
            threads: Number of concurrent batches; by default the measured number, else one for each physical core, or
                two on CUDA.

        Raises:
            DeviceError: the session would run on a different device, or the runtime does not support the model on it.
            BundleInvalid: the variant's file is broken.
        """
        threads = threads or self.threads
        graph, path = self.bundle.manifest.variants[self.variant], self.bundle.variant_file(self.variant)
        return InferencePool(compile_model(path, graph.runtime, graph.precision, self.device, threads=threads))


def open_variant(
    select: Callable[[Device], SelectedVariant[BundleT]], requested: str, threads: int | None
) -> tuple[SelectedVariant[BundleT], InferencePool]:
    """Select a variant for the requested device and open its sessions; `auto` falls back to the CPU if CUDA fails.

    Args:
        select: Selects a variant for a device.
        requested: `auto`, `cpu`, `cuda` or `cuda:N`.
        threads: As for `SelectedVariant.open`.

    Raises:
        DeviceError: the requested device cannot be used.
        UsageError: the device is invalid.
    """
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
            selected = SelectedVariant(
                selected.bundle,
                variant,
                selected.device,
                (*selected.warnings, warning),
                alternatives=tuple(others),
                prepared_seconds=selected.prepared_seconds,
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

    With precision and runtime `auto`, variants that may be the fastest are measured once per machine, if there are
    several. A variant that fails its parity check, is not in the bundle or cannot be exported is left out, with a
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
    order = variant_order(device, runtime, precision)
    is_free = precision == runtime == "auto"
    candidates = contenders(device, source.model.architecture) if is_free else order[:1]
    exported = first_exports(device, candidates) if is_free else candidates
    begun, slow_steps = time.perf_counter(), list[str]()

    def report_step(message: str) -> None:
        slow_steps.append(message)
        report(message)

    bundle, refused = open_or_export(source, exported, may_fall_back=is_free, report=report_step)
    if len(exported) == len(refused) < len(candidates):
        rest = [variant for variant in candidates if variant not in exported]
        bundle, also_refused = open_or_export(source, rest, may_fall_back=is_free, report=report_step)
        refused |= also_refused
    candidates = tuple(variant for variant in candidates if variant not in refused)
    present = [variant for variant in order if variant in bundle.manifest.variants]
    if not present:
        raise _missing_variant(bundle, device, order[:1])
    rivals = [variant for variant in candidates if variant in present] or present[:1]
    checked = [variant for variant in rivals if _passed_parity(bundle, variant)]
    selected = _select_fastest(bundle, checked or rivals, device, report_step)
    if slow_steps:
        selected = replace(selected, prepared_seconds=time.perf_counter() - begun)
    warnings = tuple(
        f"there is no {variant} variant ({reason}): {selected.variant} runs instead"
        for variant, reason in refused.items()
    )
    if is_free:
        others = tuple(variant for variant in present if variant != selected.variant)
        selected = replace(selected, alternatives=others)
        warnings += openvino_warnings(device)
    if candidates and candidates[0] not in present:
        command = f"es-sbert export {bundle.folder} -o {bundle.folder} --precision {candidates[0]}"
        warnings += (
            f"the bundle has no {candidates[0]} variant: {selected.variant} runs instead. Add it: `{command}`",
        )
    return replace(selected, warnings=(*warnings, *selected.warnings))


def open_or_export(
    source: EncoderSource, variants: Sequence[Variant], *, may_fall_back: bool, report: StatusCallback
) -> tuple[EncoderBundle, dict[Variant, str]]:
    """Return the bundle of a model; a model without ONNX files is first exported to the cache.

    Args:
        source: The model.
        variants: Variants that an export must have; an existing bundle may lack them.
        may_fall_back: Leave out variants that cannot be exported; if none can be, export fp32 instead.
        report: Called before slow steps.

    Returns:
        The bundle, and for each variant that could not be exported the reason.

    Raises:
        ModelError: the model cannot be exported, or the cache cannot be written.
    """
    if source.bundle is not None:
        return source.bundle, {}
    bundle, refused = _open_cached_bundle(source.model, variants, may_fall_back=may_fall_back, report=report)
    # The cache is keyed by fingerprint: its bundle may have been exported from a copy with another name.
    return rename_bundle(bundle, source.model.name), refused


def _select_fastest(
    bundle: EncoderBundle, variants: Sequence[Variant], device: Device, report: StatusCallback
) -> SelectedVariant[EncoderBundle]:
    """Select the fastest of some variants, which are in order of preference."""
    chosen, threads, batch_tokens = variants[0], None, None
    if len(variants) > 1:
        # Imported here: a single variant needs no measuring.
        from es_sbert.encoder.tuning import fastest_variant

        fastest = fastest_variant(bundle, variants, report)
        if fastest is not None:
            chosen, threads, batch_tokens = Variant(fastest.variant), fastest.threads, fastest.batch_tokens
    if _passed_parity(bundle, chosen):
        return SelectedVariant(bundle, chosen, device, threads=threads, batch_tokens=batch_tokens)
    warning = f"variant {chosen} was never compared with the model: the machine that exported it lacked the device"
    if bundle.manifest.variants[chosen].forced:
        warning = (
            f"variant {chosen} was exported below its parity threshold (`force`): its vectors differ from the model's"
        )
    return SelectedVariant(bundle, chosen, device, (warning,), threads, batch_tokens)


def _passed_parity(bundle: EncoderBundle, variant: Variant) -> bool:
    graph = bundle.manifest.variants[variant]
    return graph.parity is not None and not graph.forced


def select_reranker_variant(
    model: str | Path, device: Device, precision: str = "auto", runtime: str = "auto"
) -> SelectedVariant[RerankerBundle]:
    """Find the variant of an exported cross-encoder for a device and precision. Nothing is exported.

    Args:
        model: Folder, hub id, installed or registered name of the reranker.
        precision, runtime: As for `select_encoder_variant`. `auto` takes the variant of the bundle that is usually the
            fastest on this kind of processor.

    Raises:
        ModelError: the model was not found, is broken, was not exported or has no variant for these settings.
        UsageError: the precision or runtime is invalid, or does not run on the device.
        DeviceError: the requested runtime or precision cannot run here.
    """
    return choose_reranker_variant(open_reranker_bundle(_find_folder(model)), device, precision, runtime)


def choose_reranker_variant(
    bundle: RerankerBundle, device: Device, precision: str = "auto", runtime: str = "auto"
) -> SelectedVariant[RerankerBundle]:
    """Choose the best variant of an opened reranker; see `select_reranker_variant`."""
    order = variant_order(device, runtime, precision)
    for variant in order:
        if variant in bundle.manifest.variants:
            slower = variant is not order[0] and device.kind == "cuda"
            warning = f"the reranker has no {order[0]} variant: {variant} runs instead"
            return SelectedVariant(bundle, variant, device, (warning,) if slower else ())
    raise _missing_variant(bundle, device, order)


def _find_folder(model: str | Path) -> Path:
    """The folder of a model; a `Path` is never looked up as a name."""
    return model if isinstance(model, Path) else resolve_model(model)


def _missing_variant(bundle: EncoderBundle | RerankerBundle, device: Device, variants: Sequence[Variant]) -> ModelError:
    folder, present = bundle.folder, bundle.manifest.variants
    return ModelError(
        f"{folder} has no {' or '.join(variants)} variant for {device.kind}, only {', '.join(present) or 'none'}",
        f"Add it: `es-sbert export {folder} -o {folder} --precision {variants[0]}`",
    )


def _open_cached_bundle(
    model: SentenceModel, variants: Sequence[Variant], *, may_fall_back: bool, report: StatusCallback
) -> tuple[EncoderBundle, dict[Variant, str]]:
    """Open a model's bundle in the cache; missing variants are exported first. See `open_or_export`."""
    folder = cached_bundle_path(model.fingerprint)
    present: Collection[str] = ()
    if is_encoder_bundle(folder):
        try:
            bundle = open_encoder_bundle(folder)
        except BundleInvalid as error:
            raise BundleInvalid(error.message, f"It is in es-sbert's cache: remove {folder} and run again.") from error
        present = bundle.manifest.variants
        if all(variant in present for variant in variants):
            return bundle, {}
    missing = [variant for variant in variants if variant not in present]
    earlier = _read_refused(folder) if may_fall_back else {}
    refused = {variant: earlier[variant] for variant in missing if variant in earlier}
    missing = [variant for variant in missing if variant not in refused]
    if missing:
        found = _export_to_cache(model, folder, missing, may_fall_back=may_fall_back, report=report)
        refused |= found
        if found:
            _write_refused(folder, _read_refused(folder) | refused, report)
    if len(refused) == len(variants) and not is_encoder_bundle(folder):
        _export_to_cache(model, folder, [Variant.FP32], may_fall_back=False, report=report)
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


def _export_to_cache(
    model: SentenceModel, folder: Path, variants: Sequence[Variant], *, may_fall_back: bool, report: StatusCallback
) -> dict[Variant, str]:
    """Export variants to the cache; with `may_fall_back`, return the reason for each that cannot be exported."""
    # Imported here: the exporter imports onnx, which a bundle does not need.
    from es_sbert.exporters.export_bundle import export_bundle

    report(f"Exporting {model.name} to ONNX ({', '.join(variants)}), once")
    begun = time.perf_counter()
    try:
        export_bundle(model, folder, variants, reference="auto", on_progress=report)
    except OutputError as error:
        raise ModelError(
            error.message,
            "Exported models are cached there: free space, or set the environment variable ES_SBERT_CACHE to another "
            "folder.",
        ) from error
    except (ParityFailed, UnsupportedArchitecture, BundleInvalid) as error:
        # Not every graph has fp16, and OpenVINO does not accept every graph. If the architecture is unknown or files
        # are broken, the export of fp32 raises the error again.
        if not may_fall_back or list(variants) == [Variant.FP32]:
            raise
        if len(variants) == 1:
            return {variants[0]: error.message}
        refused: dict[Variant, str] = {}
        for variant in variants:
            refused |= _export_to_cache(model, folder, [variant], may_fall_back=True, report=report)
        return refused
    report(f"Exported {model.name} in {time.perf_counter() - begun:.1f} s; kept in {folder}")
    return {}
