"""Which device, precision and variant follow from what was asked and what is there."""

import pytest

from es_sbert.encoder import model_loading
from es_sbert.errors import DeviceError, EsSbertError, UsageError
from es_sbert.runtime.device import Device, choose_device
from tests.raised import raises_as_recorded

CPU, BOTH = ["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("asked", "providers", "cards", "device"),
    [
        ("auto", BOTH, 0, Device("cpu")),  # the gpu wheel lists CUDA on machines without a card
        ("auto", CPU, 1, Device("cpu")),
        ("auto", BOTH, 1, Device("cuda", 0)),
        ("cpu", BOTH, 1, Device("cpu")),
        ("cuda:3", BOTH, 4, Device("cuda", 3)),
    ],
)
def test_choose_device(asked: str, providers: list[str], cards: int, device: Device) -> None:
    assert choose_device(asked, providers, cards) == device


@pytest.mark.parametrize(
    ("asked", "providers", "cards", "error"),
    [
        ("gpu", BOTH, 1, UsageError),
        ("cuda:x", BOTH, 1, UsageError),
        ("cuda", CPU, 1, DeviceError),
        ("cuda", BOTH, 0, DeviceError),
        ("cuda:1", BOTH, 1, DeviceError),
    ],
)
def test_device_that_is_not_there_is_refused(
    asked: str, providers: list[str], cards: int, error: type[EsSbertError]
) -> None:
    with raises_as_recorded(error):
        choose_device(asked, providers, cards)


@pytest.mark.parametrize(
    ("asked", "providers", "cards", "missing"),
    [
        ("auto", CPU, 1, False),  # whoever has installed the build for CPUs has decided
        ("auto", BOTH, 0, True),
        ("auto", BOTH, 1, False),
        ("cpu", BOTH, 0, False),
    ],
)
def test_no_gpu_notice_only_from_a_build_for_cuda(
    asked: str, providers: list[str], cards: int, missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_loading, "available_providers", lambda: providers)
    monkeypatch.setattr(model_loading, "cuda_devices", lambda: cards)
    monkeypatch.setattr(model_loading, "_reported", set())
    notices: list[str] = []
    assert [model_loading.runtime_warnings(asked, notices.append) for _ in range(2)] == [(), ()]
    assert len(notices) == int(missing)  # once per process


def test_colliding_builds_are_a_warning_on_every_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loading, "runtime_collision", lambda cards: ("Two builds", "Remove them: …"))
    for asked in ("auto", "cpu", "cuda"):
        assert model_loading.runtime_warnings(asked, print) == ("Two builds. Remove them: …",)
