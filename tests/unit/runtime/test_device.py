"""Which device, precision and variant follow from what was asked and what is there."""

import pytest

from es_sbert.encoder import model_loading
from es_sbert.errors import DeviceError, UsageError
from es_sbert.installation import has_cuda_build, switch_runtime_command
from es_sbert.runtime.device import Device, choose_device

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
    with pytest.raises(UsageError, match="is not a device"):
        choose_device(asked, BOTH, 1)


def test_cuda_without_provider_names_the_package() -> None:
    with pytest.raises(DeviceError, match="has no CUDA provider") as error:
        choose_device("cuda", CPU, 1)
    assert (switch_runtime_command("cuda") in error.value.remedy) == has_cuda_build()
    assert has_cuda_build() or '`device="cpu"`' in error.value.remedy


@pytest.mark.parametrize(
    ("asked", "cards", "message"),
    [("cuda", 0, "there is no NVIDIA driver"), ("cuda:1", 1, "reports only 1 device"), ("cuda:2", 2, "2 devices")],
)
def test_absent_gpu_raises_device_error(asked: str, cards: int, message: str) -> None:
    with pytest.raises(DeviceError, match=message) as error:
        choose_device(asked, BOTH, cards)
    assert '`device="cpu"`' in error.value.remedy


@pytest.mark.parametrize(
    ("asked", "providers", "cards", "missing"),
    [
        ("auto", CPU, 1, False),  # whoever has installed the build for CPUs has decided
        ("auto", BOTH, 0, True),
        ("auto", CPU, 0, False),
        ("auto", BOTH, 1, False),
        ("cpu", CPU, 1, False),
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
