"""The commands in messages, and builds of onnxruntime that overwrite each other's files."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from es_sbert.installation import has_cuda_build, installed_runtimes, runtime_collision
from es_sbert.runtime.onnx_runtime import runtime_error

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let packages appear as installed in folders, in front of the real ones."""

    def install(folder: str, *packages: str) -> None:
        for package in packages:
            metadata = tmp_path / folder / f"{package.replace('-', '_')}-1.31.1.dist-info/METADATA"
            metadata.parent.mkdir(parents=True)
            metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.31.1\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        importlib.invalidate_caches()

    return install


def test_builds_in_one_folder_collide(install: Callable[..., None]) -> None:
    install("site", "onnxruntime", "onnxruntime-gpu")
    (message, remedy), (_, with_gpu) = runtime_collision(0) or ("", ""), runtime_collision(1) or ("", "")
    assert message.startswith("onnxruntime 1.31.1 and onnxruntime-gpu 1.31.1 are installed together")
    assert "uninstall --yes onnxruntime onnxruntime-gpu && " in remedy
    assert "[cpu]" in remedy
    assert ("[cuda]" in with_gpu) == has_cuda_build()
    assert str(runtime_error("any cause")).startswith(message)


def test_build_that_another_folder_hides_does_not_collide(install: Callable[..., None]) -> None:
    """As in a virtual environment with `--system-site-packages`."""
    install("system", "onnxruntime")
    install("environment", "onnxruntime-gpu")
    assert installed_runtimes() == {"onnxruntime-gpu": "1.31.1"}
    assert runtime_collision(0) is None


def test_broken_build_is_removed_and_installed_again(install: Callable[..., None]) -> None:
    """What pip regards as installed, it would not install."""
    install("site", "onnxruntime-gpu")
    error = runtime_error("its files are gone")
    assert error.message == "onnxruntime-gpu 1.31.1 is installed, but cannot be imported: its files are gone"
    assert "uninstall --yes onnxruntime-gpu && " in error.remedy
    assert "[cuda]" in error.remedy


@pytest.mark.parametrize(
    ("system", "machine", "brought"),
    [
        ("linux", "x86_64", "onnxruntime-gpu"),
        ("win32", "AMD64", "onnxruntime-gpu"),
        ("linux", "aarch64", "onnxruntime"),
        ("darwin", "arm64", "onnxruntime"),
    ],
)
def test_cuda_extra_brings_one_runtime_on_every_system(system: str, machine: str, brought: str) -> None:
    requirements = [Requirement(line) for line in EXTRAS["cuda"]]
    here = {"sys_platform": system, "platform_machine": machine}
    names = [line.name for line in requirements if line.marker is None or line.marker.evaluate(here)]
    assert [name for name in names if name.startswith("onnxruntime")] == [brought]
    assert ("nvidia-cudnn-cu13" in names) == has_cuda_build(system, machine) == (brought == "onnxruntime-gpu")
