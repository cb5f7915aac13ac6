"""What loading a model says of the device, besides loading it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from es_sbert.encoder import model_loading
from es_sbert.encoder.encoder import Encoder
from es_sbert.runtime.device import NO_GPU_FOUND
from tests.tiny import write_tiny_bert

CPU, BOTH = ["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("loading") / "tiny")


@pytest.fixture(autouse=True)
def _first_load(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr(model_loading, "_reported", set())
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.getbasetemp() / "loading-cache"))


def load(
    folder: Path, monkeypatch: pytest.MonkeyPatch, device: str, providers: Sequence[str], cards: int
) -> tuple[list[str], tuple[str, ...]]:
    """What is told, and the warnings of the encoder."""
    monkeypatch.setattr(model_loading, "available_providers", lambda: providers)
    monkeypatch.setattr(model_loading, "cuda_devices", lambda: cards)
    told: list[str] = []
    with Encoder(str(folder), device=device, precision="fp32", threads=1, report=told.append) as encoder:
        return [message for message in told if not message.startswith("Exporting")], encoder.info.warnings


def test_auto_without_gpu_reports_it_once_without_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, warnings = load(folder, monkeypatch, "auto", BOTH, 0)
    assert NO_GPU_FOUND in told
    assert warnings == ()
    assert NO_GPU_FOUND not in load(folder, monkeypatch, "auto", BOTH, 0)[0]


@pytest.mark.parametrize(
    ("device", "providers", "cards"), [("auto", CPU, 0), ("auto", CPU, 1), ("cpu", BOTH, 0), ("cpu", CPU, 1)]
)
def test_no_notice_when_no_gpu_is_missed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, device: str, providers: list[str], cards: int
) -> None:
    told, warnings = load(folder, monkeypatch, device, providers, cards)
    assert NO_GPU_FOUND not in told
    assert warnings == ()


def test_search_does_not_print_the_no_gpu_notice(capfd: pytest.CaptureFixture[str]) -> None:
    from es_sbert.cli.search import _print_message

    _print_message(NO_GPU_FOUND)
    _print_message("Exporting model to ONNX, once")
    assert capfd.readouterr() == ("", "Exporting model to ONNX, once\n")
