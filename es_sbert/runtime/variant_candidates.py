"""The variants of a model to try on a device, best first."""

from __future__ import annotations

from es_sbert.bundle.modules import STATIC_ARCHITECTURE
from es_sbert.bundle.variants import Precision, Runtime, Variant
from es_sbert.errors import UsageError
from es_sbert.installation import install_command
from es_sbert.messages import setting
from es_sbert.runtime.device import Device, has_amx, has_bf16_products, has_int8_products, processor_flags
from es_sbert.runtime.openvino_session import has_openvino, openvino_problem

# The fastest variants on each kind of processor (docs/results.md, Encoding), best first.
_ORDERS = {
    "amx": (Variant.OPENVINO_BF16, Variant.OPENVINO_INT8, Variant.INT8, Variant.OPENVINO_FP32, Variant.FP32),
    "bf16": (Variant.OPENVINO_INT8, Variant.OPENVINO_BF16, Variant.INT8, Variant.OPENVINO_FP32, Variant.FP32),
    "vnni": (Variant.OPENVINO_INT8, Variant.INT8, Variant.OPENVINO_FP32, Variant.FP32),
    "int8": (Variant.INT8, Variant.OPENVINO_INT8, Variant.OPENVINO_FP32, Variant.FP32),
    "other": (Variant.OPENVINO_FP32, Variant.FP32, Variant.INT8),
}
_CUDA_ORDER = (Variant.FP16, Variant.FP32)


def variant_order(device: Device, runtime: str = "auto", precision: str = "auto") -> tuple[Variant, ...]:
    """Return the variants to try on a device, best first.

    With a precision and no runtime, onnxruntime comes first, if it has that precision.

    Args:
        device: Device on which to run.
        runtime: `auto`, `onnxruntime` or `openvino`.
        precision: `auto`, `fp32`, `bf16`, `int8` or `fp16`.

    Raises:
        UsageError: the runtime or precision is unknown, or does not run on the device.
        DeviceError: the requested runtime or precision cannot run here.
    """
    _check_name("runtime", runtime, tuple(Runtime))
    _check_name("precision", precision, tuple(Precision))
    matching = [
        variant
        for variant in (_CUDA_ORDER if device.kind == "cuda" else _cpu_order(runtime, precision))
        if runtime in ("auto", variant.runtime) and precision in ("auto", variant.precision)
    ]
    if not matching:
        given = [(name, value) for name, value in _named(runtime, precision) if value != "auto"]
        error = UsageError(
            f"{' '.join(setting(*each) for each in given)} does not run on {device.kind}",
            "Use fp32, int8 or bf16 (OpenVINO) on a CPU, fp32 or fp16 (onnxruntime) on CUDA, or leave "
            f"{setting('precision')} and {setting('runtime')} at auto.",
        )
        raise error.about(*given[0]) if len(given) == 1 else error
    problems = {variant: _problem(variant) for variant in matching}
    runnable = tuple(variant for variant, problem in problems.items() if problem is None)
    if not runnable:
        raise next(problem for problem in problems.values() if problem is not None)
    return runnable


def openvino_warnings(device: Device) -> tuple[str, ...]:
    """Return warnings if OpenVINO is installed but cannot run, or is missing on a processor with bf16 products."""
    if device.kind == "cuda" or not (has_openvino() or has_bf16_products()):
        return ()
    problem = openvino_problem(Precision.FP32)
    if problem is None:
        return ()
    gain = "" if has_openvino() else f", which is usually faster on this processor: {install_command('openvino')}"
    return (f"{problem.message}{gain}",)


def default_exports(architecture: str = "") -> tuple[Variant, ...]:
    """Return the variants that an export writes by default: fp32, int8, and those that OpenVINO runs on this machine.

    For a static model only fp32: it has no products that another variant would compute faster.

    Args:
        architecture: Architecture of the model (`SentenceModel.architecture`).
    """
    if architecture == STATIC_ARCHITECTURE:
        return (Variant.FP32,)
    openvino = (variant for variant in Variant if variant.runtime is Runtime.OPENVINO)
    return (Variant.FP32, Variant.INT8, *(variant for variant in openvino if _problem(variant) is None))


def _cpu_order(runtime: str, precision: str) -> tuple[Variant, ...]:
    if runtime == precision == "auto":
        return _ORDERS[_processor_kind()]
    order = [variant for variant in Variant if variant.precision.device == "cpu"]
    ranks = [*_ORDERS[_processor_kind()], *order]
    # For a requested precision, onnxruntime's variant comes first; for a requested runtime, the processor's best.
    return tuple(order) if precision != "auto" else tuple(sorted(order, key=ranks.index))


def _processor_kind() -> str:
    if has_bf16_products() and has_openvino():
        return "amx" if has_amx() else "bf16"
    if has_openvino() and "avx512_vnni" in processor_flags():
        return "vnni"
    return "int8" if has_int8_products() else "other"


def _problem(variant: Variant) -> Exception | None:
    return openvino_problem(variant.precision) if variant.runtime is Runtime.OPENVINO else None


def _check_name(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in ("auto", *known):
        raise UsageError(f"{setting(what, name)} is unknown", f"Use auto, {', '.join(known)}.").about(what, name)


def _named(runtime: str, precision: str) -> tuple[tuple[str, str], ...]:
    return ("runtime", runtime), ("precision", precision)
