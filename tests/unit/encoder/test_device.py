"""Which device, precision and variant follow from what was asked and what is there."""

import pytest

from es_sbert.encoder import model_loading
from es_sbert.encoder.device import (
    Device,
    choose_device,
)
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
def test_choose_device(asked: str, providers: list[str], cards: int, device: Device) -> None:
    assert choose_device(asked, providers, cards) == device


@pytest.mark.parametrize("asked", ["gpu", "cuda:", "cuda:x", "", "cpu:1", "CUDA"])
def test_unknown_device_names_are_rejected(asked: str) -> None:
    with pytest.raises(UsageError, match="none of auto, cpu, cuda"):
        choose_device(asked, BOTH, 1)


def test_cuda_without_provider_names_the_package() -> None:
    with pytest.raises(DeviceError, match="onnxruntime-gpu in place of onnxruntime"):
        choose_device("cuda", CPU, 1)


@pytest.mark.parametrize(
    ("asked", "cards", "message"),
    [("cuda", 0, "no NVIDIA driver offers a GPU"), ("cuda:1", 1, "offers 1 device here"), ("cuda:2", 2, "2 devices")],
)
def test_absent_gpu_raises_device_error(asked: str, cards: int, message: str) -> None:
    with pytest.raises(DeviceError, match=message) as error:
        choose_device(asked, BOTH, cards)
    assert "--device cpu" in error.value.remedy


@pytest.mark.parametrize(
    ("asked", "providers", "cards", "unused", "missing"),
    [
        ("auto", CPU, 1, True, False),  # a GPU that the wrong package leaves unused
        ("auto", BOTH, 0, False, True),
        ("auto", CPU, 0, False, False),
        ("auto", BOTH, 1, False, False),
        ("cpu", CPU, 1, False, False),
        ("cpu", BOTH, 0, False, False),
    ],
)
def test_unused_gpu_warning_and_no_gpu_notice(
    asked: str, providers: list[str], cards: int, unused: bool, missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_loading, "available_providers", lambda: providers)
    monkeypatch.setattr(model_loading, "cuda_devices", lambda: cards)
    monkeypatch.setattr(model_loading, "_reported", set())
    notices: list[str] = []
    warnings = [model_loading.gpu_warnings(asked, notices.append) for _ in range(2)]
    assert (bool(warnings[0]), len(notices)) == (unused, int(missing))  # the notice comes once per process
    assert warnings[0] == warnings[1]
    assert all("pip install 'es-sbert[cuda]'" in warning for warning in warnings[0])
