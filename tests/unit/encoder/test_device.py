"""Which device, precision and variant follow from what was asked and what is there."""

import pytest

from es_sbert.bundle.model import Precision
from es_sbert.encoder.device import Device, choose_device, choose_precision, choose_variant
from es_sbert.errors import DeviceError, UsageError

CPU, BOTH = ["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("asked", "providers", "cards", "device"),
    [
        ("auto", CPU, 0, Device("cpu")),
        ("auto", BOTH, 0, Device("cpu")),  # the gpu wheel lists CUDA on machines without a card
        ("auto", CPU, 1, Device("cpu")),
        ("auto", BOTH, 1, Device("cuda", 0)),
        ("cpu", BOTH, 1, Device("cpu")),
        ("cuda", BOTH, 1, Device("cuda", 0)),
        ("cuda:3", BOTH, 4, Device("cuda", 3)),
    ],
)
def test_device(asked: str, providers: list[str], cards: int, device: Device) -> None:
    assert choose_device(asked, providers, cards) == device


@pytest.mark.parametrize("asked", ["gpu", "cuda:", "cuda:x", "", "cpu:1", "CUDA"])
def test_words_that_are_no_device(asked: str) -> None:
    with pytest.raises(UsageError, match="none of auto, cpu, cuda"):
        choose_device(asked, BOTH, 1)


def test_cuda_without_the_provider_says_which_package() -> None:
    with pytest.raises(DeviceError, match="onnxruntime-gpu in place of onnxruntime"):
        choose_device("cuda", CPU, 1)


@pytest.mark.parametrize(("asked", "cards"), [("cuda", 0), ("cuda:1", 1)])
def test_a_card_that_is_not_there(asked: str, cards: int) -> None:
    with pytest.raises(DeviceError, match="NVIDIA driver offers"):
        choose_device(asked, BOTH, cards)


@pytest.mark.parametrize(
    ("device", "vnni", "precision"),
    [("cuda", False, "fp16"), ("cuda", True, "fp16"), ("cpu", True, "int8"), ("cpu", False, "fp32")],
)
def test_automatic_precision(device: str, vnni: bool, precision: str) -> None:
    assert choose_precision("auto", Device(device), vnni) == precision


@pytest.mark.parametrize(("device", "precision"), [("cpu", "fp16"), ("cuda", "int8")])
def test_precisions_without_kernels(device: str, precision: str) -> None:
    with pytest.raises(UsageError, match="does not run on"):
        choose_precision(precision, Device(device), True)


def test_packed_attention_is_preferred() -> None:
    assert choose_variant(Device("cuda"), Precision.FP16, ["fp16-fused", "fp16-packed"]) == "fp16-packed"
    assert choose_variant(Device("cuda"), Precision.FP16, ["fp16-fused", "fp32"]) == "fp16-fused"
    assert choose_variant(Device("cpu"), Precision.INT8, ["fp32"]) is None
