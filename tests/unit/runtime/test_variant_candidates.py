"""Which variants are tried on which processor and device."""

import pytest

from es_sbert.errors import DeviceError, UsageError
from es_sbert.runtime import openvino_session, variant_candidates
from es_sbert.runtime.device import Device
from es_sbert.runtime.variant_candidates import default_exports, variant_order
from tests.raised import raises_as_recorded

CPU, CUDA = Device("cpu"), Device("cuda")


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A processor with some of `amx`, `bf16`, `vnni` and `int8` products, and `openvino` if that is installed."""
    features = request.param.split()
    flags = frozenset({"avx512_vnni", "avx2"} if "vnni" in features else {"avx2"})
    monkeypatch.setattr(variant_candidates, "processor_flags", lambda: flags)
    monkeypatch.setattr(variant_candidates, "has_amx", lambda: "amx" in features)
    for module in (variant_candidates, openvino_session):
        monkeypatch.setattr(module, "has_bf16_products", lambda: "bf16" in features)
        monkeypatch.setattr(module, "has_openvino", lambda: "openvino" in features)
    openvino_session._load_core.cache_clear()
    if "openvino" in features:
        monkeypatch.setattr(openvino_session, "_load_core", lambda: (None, "2026.4.1"))
    for module in (variant_candidates, openvino_session):
        monkeypatch.setattr(module, "has_int8_products", lambda: "int8" in features)


@pytest.mark.parametrize(
    ("processor", "order"),
    [
        ("amx bf16 int8 openvino", ["openvino-bf16", "openvino-int8", "int8", "openvino-fp32", "fp32"]),
        ("bf16 int8 openvino", ["openvino-int8", "openvino-bf16", "int8", "openvino-fp32", "fp32"]),
        ("bf16 int8", ["int8", "fp32"]),
        ("vnni int8 openvino", ["openvino-int8", "int8", "openvino-fp32", "fp32"]),
        ("int8 openvino", ["int8", "openvino-int8", "openvino-fp32", "fp32"]),
        ("openvino", ["openvino-fp32", "fp32", "int8"]),
        ("", ["fp32", "int8"]),
    ],
    indirect=["processor"],
)
def test_automatic_order_by_processor(processor: None, order: list[str]) -> None:
    assert list(variant_order(CPU)) == order
    assert list(variant_order(CUDA)) == ["fp16", "fp32"]


@pytest.mark.parametrize("processor", ["bf16 int8 openvino"], indirect=True)
@pytest.mark.parametrize(
    ("runtime", "precision", "order"),
    [
        ("onnxruntime", "auto", ["int8", "fp32"]),
        ("openvino", "auto", ["openvino-int8", "openvino-bf16", "openvino-fp32"]),
        ("auto", "bf16", ["openvino-bf16"]),
        ("auto", "int8", ["int8", "openvino-int8"]),
    ],
)
def test_requested_runtime_or_precision(processor: None, runtime: str, precision: str, order: list[str]) -> None:
    assert list(variant_order(CPU, runtime, precision)) == order


@pytest.mark.parametrize("processor", ["bf16 int8 openvino"], indirect=True)
@pytest.mark.parametrize(
    ("device", "runtime", "precision"),
    [(CUDA, "auto", "int8"), (CUDA, "openvino", "auto"), (CPU, "onnxruntime", "bf16"), (CPU, "auto", "bf8")],
)
def test_variant_that_does_not_exist_is_rejected(processor: None, device: Device, runtime: str, precision: str) -> None:
    with raises_as_recorded(UsageError):
        variant_order(device, runtime, precision)


@pytest.mark.parametrize(
    ("processor", "runtime", "precision"),
    [("bf16 int8", "openvino", "auto"), ("int8 openvino", "auto", "bf16"), ("bf16 openvino", "openvino", "int8")],
    indirect=["processor"],
)
def test_requested_variant_that_cannot_run_here_is_a_device_error(
    processor: None, runtime: str, precision: str
) -> None:
    with raises_as_recorded(DeviceError):
        variant_order(CPU, runtime, precision)


@pytest.mark.parametrize(
    ("processor", "variants"),
    [
        ("bf16 int8 openvino", ["fp32", "int8", "openvino-fp32", "openvino-bf16", "openvino-int8"]),
        ("int8", ["fp32", "int8"]),
    ],
    indirect=["processor"],
)
def test_default_exports_are_those_this_machine_can_check(processor: None, variants: list[str]) -> None:
    assert list(default_exports()) == variants
