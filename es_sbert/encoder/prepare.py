"""From a model's name to the ONNX variant that is to run; what is no bundle yet is exported on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from es_sbert.bundle.checkpoint import read_model
from es_sbert.bundle.resolve import resolve_model
from es_sbert.bundle.store import Bundle, cached_bundle_folder, is_bundle, open_bundle
from es_sbert.config import Precision
from es_sbert.encoder.device import Device, choose_variant
from es_sbert.errors import BundleInvalid, ModelError, ParityFailed

Report = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """A bundle and the variant of it that runs; `warnings` belong into every summary."""

    bundle: Bundle
    variant: str
    warnings: tuple[str, ...] = ()


def prepare(name: str, device: Device, precision: Precision, *, may_fall_back: bool, report: Report) -> Prepared:
    """Find the variant of a model for a device and precision.

    Args:
        name: Model folder, bundle, hub id or installed name.
        may_fall_back: Whether fp32 may stand in where int8 misses its parity bar or is not in the bundle
            (`--precision auto`); said in the warnings.
        report: Told what takes long.

    Raises:
        ModelError: not found, broken, of an unknown architecture, or without such a variant.
    """
    folder = resolve_model(name)
    bundle = open_bundle(folder) if is_bundle(folder) else None
    if bundle is None:
        return _prepare_exported(name, device, precision, may_fall_back=may_fall_back, report=report)
    variant = choose_variant(device, precision, bundle.manifest.variants)
    if variant is not None:
        return Prepared(bundle, variant, _forced(bundle, variant))
    fallback = choose_variant(device, Precision.FP32, bundle.manifest.variants)
    if may_fall_back and fallback is not None:
        return Prepared(bundle, fallback, (f"the bundle has no {precision} variant: {fallback} runs instead",))
    raise ModelError(
        f"the bundle {folder} has no {precision} variant for {device.kind}, only "
        f"{', '.join(bundle.manifest.variants) or 'none at all'}",
        f"Add it: es-sbert export {folder} -o {folder} --precision {precision}",
    )


def _prepare_exported(
    name: str, device: Device, precision: Precision, *, may_fall_back: bool, report: Report
) -> Prepared:
    # Imported here: the exporter brings onnx, which an already exported bundle does without.
    from es_sbert.exporters.export import export_bundle

    model = read_model(resolve_model(name), name)
    folder = cached_bundle_folder(model)
    if is_bundle(folder):
        try:
            bundle = open_bundle(folder)
        except BundleInvalid as error:
            raise BundleInvalid(error.message, f"It is a cache of es-sbert: remove {folder} and run again.") from error
        variant = choose_variant(device, precision, bundle.manifest.variants)
        if variant is not None:
            return Prepared(bundle, variant, _forced(bundle, variant))
    report(f"Exporting {model.name} to ONNX ({precision}), once: {folder}")
    try:
        export_bundle(model, folder, [precision], on_progress=report)
    except ParityFailed as error:
        if not may_fall_back or precision is Precision.FP32:
            raise
        prepared = _prepare_exported(name, device, Precision.FP32, may_fall_back=False, report=report)
        warning = f"{precision} missed its parity bar ({error.message}): fp32 runs instead"
        return Prepared(prepared.bundle, prepared.variant, (*prepared.warnings, warning))
    bundle = open_bundle(folder)
    variant = choose_variant(device, precision, bundle.manifest.variants)
    if variant is None:
        raise ModelError(f"the export of {name} wrote no {precision} variant", "Report this: it is a bug of es-sbert.")
    return Prepared(bundle, variant, _forced(bundle, variant))


def _forced(bundle: Bundle, name: str) -> tuple[str, ...]:
    variant = bundle.manifest.variants[name]
    if variant.forced:
        return (f"variant {name} was written below its parity bar (--force): its vectors are not the model's",)
    if variant.parity is None:
        return (f"variant {name} was never compared with the model: no such device where it was exported",)
    return ()
