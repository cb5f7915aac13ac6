"""Load an encoder or a reranker by model name or for an index; a model without ONNX files is exported on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from es_sbert.bundle.bundle import EncoderBundle, cached_bundle_folder, is_encoder_bundle, open_encoder_bundle
from es_sbert.bundle.model_lookup import find_index_model, resolve_model
from es_sbert.bundle.sentence_model import Precision, SentenceModel
from es_sbert.bundle.sentence_model_reader import read_sentence_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.device import (
    Device,
    choose_device,
    choose_precision,
    choose_variant,
    cuda_devices,
    has_int8_products,
    no_gpu_notice,
    open_with_cpu_fallback,
    unused_gpu_warning,
)
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.onnx_session import available_providers, worker_count
from es_sbert.encoder.reranker import Reranker
from es_sbert.errors import BundleInvalid, ModelError, OutputError, ParityFailed, UnsupportedArchitecture

StatusCallback = Callable[[str], None]
_reported: set[str] = set()  # what is said once per process


class LoadOptions(TypedDict, total=False):
    """Where and how an encoder runs; see `load_encoder`."""

    device: str
    precision: str
    threads: int | None
    budget: int | None
    report: Callable[[str], None]


def load_encoder(
    model: str | None = None,
    *,
    called: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    budget: int | None = None,
    report: Callable[[str], None] = lambda message: None,
) -> Encoder:
    """Load a model; one that is no bundle yet is exported to the cache on first use.

    Usage:
        with load_encoder("all-MiniLM-L6-v2") as encoder:
            vectors = encoder.encode(["A man plays a guitar."]).vectors  # (1, 384) float32

    Args:
        model: Model folder, bundle, hub id, installed or registered name; `all-MiniLM-L6-v2` by default.
        called: Name to show in place of the model's own, in `info.model` and in messages.
        device: `auto`, `cpu`, `cuda` or `cuda:N`. `cuda` fails rather than run elsewhere; `auto` takes the
            CPU where CUDA does not run, and says so in `info.warnings`; where there is no GPU, it tells `report`,
            once per process.
        precision: `auto`, `fp32`, `int8` or `fp16`.
        threads: CPU threads, the physical cores by default; on CUDA the batches that run side by side, 2 by default.
        budget: Tokens of one batch, with padding on a CPU, without on CUDA; by default what is best for the device.
        report: Told what takes long.

    Raises:
        ModelError: not found, broken, of an unknown architecture, or the cache cannot be written to.
        DeviceError: the device asked for is not the one that would run.
        UsageError: a device and precision that do not go together.
    """
    name = DEFAULT_MODEL if model is None else model

    def open_on(chosen: Device, warnings: Sequence[str] = ()) -> Encoder:
        unused = unused_gpu_warning(device, providers, cards)
        warnings = warnings if unused is None else (unused, *warnings)
        wanted = choose_precision(precision, chosen, has_int8_products())
        prepared = _select_variant(
            name, chosen, wanted, called=called, may_fall_back=precision == "auto", report=report
        )
        return Encoder(
            prepared.bundle,
            prepared.variant,
            chosen,
            threads=worker_count(chosen, threads),
            budget=budget,
            warnings=[*warnings, *prepared.warnings],
        )

    providers, cards = available_providers(), cuda_devices()
    chosen = choose_device(device, providers, cards)
    note = no_gpu_notice(device, providers, cards)
    if note is not None and note not in _reported:
        _reported.add(note)
        report(note)
    return open_with_cpu_fallback(device, chosen, open_on)


def report_warnings(encoder: Encoder, report: StatusCallback) -> None:
    """Tell what an encoder wants said, for commands without a summary that holds it."""
    for warning in encoder.info.warnings:
        report(f"Warning: {warning}")


def load_index_encoder(
    index: str, name: str, fingerprint: str, *, model: str | None = None, **options: Unpack[LoadOptions]
) -> Encoder:
    """Load the model that an index needs, wherever it is on this machine (see `find_index_model`).

    The caller compares `info.fingerprint` with the mapping: a package or the hub may have another model of that name.

    Args:
        index: Name of the index, for messages.
        name: What the mapping calls the model; `info.model` is the same.
        fingerprint: What the mapping says made the vectors.
        model: A model that the user has named in its place, as for `load_encoder`.

    Raises:
        ModelError: not found, broken, of an unknown architecture, or the cache cannot be written to.
        DeviceError: the device asked for is not the one that would run.
        UsageError: a device and precision that do not go together.
    """
    if model is not None:
        return load_encoder(model, **options)
    found = find_index_model(index, name, fingerprint)
    return load_encoder(str(found.folder), called=found.name, **options)


def load_reranker(model: str, *, device: str = "auto", precision: str = "auto", threads: int | None = None) -> Reranker:
    """Load a cross-encoder that was exported; nothing is exported on first use, since that needs torch.

    Args:
        model: Reranker's folder, hub id, installed or registered name.
        device: As for `load_encoder`.
        precision: As for `load_encoder`. A precision that the folder lacks is an error; under `auto` fp32 runs in its
            place, and `warnings` says so on CUDA.
        threads: As for `load_encoder`.

    Raises:
        ModelError: not found, broken, or not exported yet.
        DeviceError: the device asked for is not the one that would run.
        UsageError: a device and precision that do not go together.
    """
    return Reranker.open(resolve_model(model), device, precision, threads)


@dataclass(frozen=True)
class _SelectedVariant:
    """A bundle and the variant of it that runs; `warnings` belong into every summary."""

    bundle: EncoderBundle
    variant: str
    warnings: tuple[str, ...] = ()


def _select_variant(
    name: str,
    device: Device,
    precision: Precision,
    *,
    called: str | None = None,
    may_fall_back: bool,
    report: StatusCallback,
) -> _SelectedVariant:
    """Find the variant of a model for a device and precision.

    Args:
        name: Model folder, bundle, hub id, installed or registered name.
        called: Name to show in place of the model's own.
        may_fall_back: Whether fp32 may stand in where another precision misses its parity bar, is not in the
            bundle or cannot be exported (`--precision auto`); said in the warnings.
        report: Told what takes long.

    Raises:
        ModelError: not found, broken, of an unknown architecture, or without such a variant.
    """
    folder = resolve_model(name)
    if not is_encoder_bundle(folder):
        model = read_sentence_model(folder, called or name)
        prepared = _select_exported_variant(model, device, precision, may_fall_back=may_fall_back, report=report)
        # The cache goes by the fingerprint: a copy of the model may have filled it, in a folder that is gone by now.
        named = prepared.bundle.model.model_copy(update={"name": model.name})
        return replace(prepared, bundle=replace(prepared.bundle, model=named))
    bundle = open_encoder_bundle(folder)
    if called is not None:
        bundle = replace(bundle, model=bundle.model.model_copy(update={"name": called}))
    variant = choose_variant(device, precision, bundle.manifest.variants)
    if variant is not None:
        return _SelectedVariant(bundle, variant, _variant_warnings(bundle, variant))
    fallback = choose_variant(device, Precision.FP32, bundle.manifest.variants)
    if may_fall_back and fallback is not None:
        return _SelectedVariant(bundle, fallback, (f"the bundle has no {precision} variant: {fallback} runs instead",))
    raise ModelError(
        f"the bundle {folder} has no {precision} variant for {device.kind}, only "
        f"{', '.join(bundle.manifest.variants) or 'none at all'}",
        f"Add it: es-sbert export {folder} -o {folder} --precision {precision}",
    )


def _select_exported_variant(
    model: SentenceModel, device: Device, precision: Precision, *, may_fall_back: bool, report: StatusCallback
) -> _SelectedVariant:
    # Imported here: the exporter brings onnx, which an already exported bundle does without.
    from es_sbert.exporters.export import export_bundle

    folder = cached_bundle_folder(model)
    if is_encoder_bundle(folder):
        try:
            bundle = open_encoder_bundle(folder)
        except BundleInvalid as error:
            raise BundleInvalid(error.message, f"It is a cache of es-sbert: remove {folder} and run again.") from error
        variant = choose_variant(device, precision, bundle.manifest.variants)
        if variant is not None:
            return _SelectedVariant(bundle, variant, _variant_warnings(bundle, variant))
    report(f"Exporting {model.name} to ONNX ({precision}), once: {folder}")
    try:
        export_bundle(model, folder, [precision], on_progress=report)
    except OutputError as error:
        raise ModelError(
            error.message,
            "Exported models are kept there: free space, or name a folder of yours in the environment variable "
            "ES_SBERT_CACHE.",
        ) from error
    except (ParityFailed, UnsupportedArchitecture) as error:
        # Traced graphs have no fp16; of an architecture that is not known at all, fp32 says so once more.
        if not may_fall_back or precision is Precision.FP32:
            raise
        prepared = _select_exported_variant(model, device, Precision.FP32, may_fall_back=False, report=report)
        warning = f"there is no {precision} variant ({error.message}): fp32 runs instead"
        return _SelectedVariant(prepared.bundle, prepared.variant, (*prepared.warnings, warning))
    bundle = open_encoder_bundle(folder)
    variant = choose_variant(device, precision, bundle.manifest.variants)
    if variant is None:
        raise ModelError(
            f"the export of {model.name} wrote no {precision} variant", "Report this: it is a bug of es-sbert."
        )
    return _SelectedVariant(bundle, variant, _variant_warnings(bundle, variant))


def _variant_warnings(bundle: EncoderBundle, name: str) -> tuple[str, ...]:
    variant = bundle.manifest.variants[name]
    if variant.forced:
        return (f"variant {name} was written below its parity bar (--force): its vectors are not the model's",)
    if variant.parity is None:
        return (f"variant {name} was never compared with the model: no such device where it was exported",)
    return ()
