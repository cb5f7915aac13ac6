"""Commands in messages fit the installation, and builds of onnxruntime that collide are recognized."""

from __future__ import annotations

import ast
import importlib
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from es_sbert import installation
from es_sbert.installation import (
    Installation,
    current_installation,
    extra_requirements,
    find_source,
    has_cuda_build,
    installed_runtimes,
    runtime_collision,
    switch_runtime_command,
)
from es_sbert.runtime.onnx_runtime import runtime_error

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    (folder / "exporters").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "exporters/__init__.py"):
        (folder / name).touch()
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The package's folder in an environment."""
    return tmp_path / "site-packages/es_sbert"


def test_checkout_that_runs_is_installed_in_editable_mode(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another installation on the path came from."""
    assert find_source(checkout / "es_sbert", {}) == (str(checkout), True, checkout)
    monkeypatch.chdir(checkout)
    assert find_source(checkout / "es_sbert", {"url": "file:///elsewhere", "dir_info": {}}) == (".", True, checkout)


def test_origin_that_pip_noted_is_installed_again(checkout: Path, site: Path) -> None:
    plain, editable = ({"url": checkout.as_uri(), "dir_info": info} for info in ({}, {"editable": True}))
    assert find_source(site, plain) == (str(checkout), False, checkout)
    assert find_source(site, editable) == (str(checkout), True, checkout)
    wheel = checkout / "es_sbert-1.0-py3-none-any.whl"
    record: dict[str, Any] = {"url": wheel.as_uri(), "archive_info": {}}
    assert find_source(site, record) == ("", False, None)  # the file is gone
    wheel.touch()
    assert find_source(site, record) == (str(wheel), False, None)
    assert find_source(site, {}) == ("es-sbert", False, None)
    git = {"url": "https://git.example/es-sbert", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
    assert find_source(site, git) == ("es-sbert @ git+https://git.example/es-sbert@c0ffee", False, None)


@pytest.mark.parametrize(
    ("how", "command"),
    [
        (Installation(), "pip install 'es-sbert[analysis,sql]'"),
        (
            Installation(source=".", editable=True, constraints="constraints.txt"),
            "pip install --constraint constraints.txt --editable '.[analysis,sql]'",
        ),
        (
            Installation((".venv/bin/python", "-m", "pip"), source="/a b/es_sbert-1.0.whl"),
            ".venv/bin/python -m pip install '/a b/es_sbert-1.0.whl[analysis,sql]'",
        ),
        (
            Installation(source="es-sbert @ git+https://git.example/es-sbert@main"),
            "pip install 'es-sbert[analysis,sql] @ git+https://git.example/es-sbert@main'",
        ),
        (
            Installation(("uv", "pip"), ("--python", "/env/bin/python")),
            "uv pip install --python /env/bin/python 'es-sbert[analysis,sql]'",
        ),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="the quotes are a Unix shell's")
def test_install_extras(how: Installation, command: str) -> None:
    assert how.install_extras(["analysis", "sql"]) == command


def test_extra_of_lost_source_is_named_by_its_packages() -> None:
    """With the extras that it names, and without itself."""
    packages = extra_requirements(["train"])
    assert {Requirement(package).name for package in packages} >= {"torch", "pyarrow", "scikit-learn"}
    assert shlex.split(Installation(source="").install_extras(["train"])) == ["pip", "install", *packages]
    assert Installation(source="").install_extras(["unknown"]).endswith("'es-sbert[unknown]'")


def test_current_installation_is_this_checkout() -> None:
    how = current_installation()
    assert how.editable
    assert Path(how.source).resolve() == ROOT
    assert (ROOT / "constraints.txt").samefile(how.constraints)


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Let packages appear as installed in folders, in front of the real ones."""

    def install(folder: str, *packages: str) -> None:
        for package in packages:
            metadata = tmp_path / folder / f"{package.replace('-', '_')}-1.31.1.dist-info/METADATA"
            metadata.parent.mkdir(parents=True)
            metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.31.1\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        importlib.invalidate_caches()

    return install


def test_builds_in_one_folder_collide(install: Install) -> None:
    install("site", "onnxruntime", "onnxruntime-gpu")
    collision = runtime_collision(0)
    assert collision is not None
    message, remedy = collision
    assert message.startswith("onnxruntime 1.31.1 and onnxruntime-gpu 1.31.1 are installed together")
    assert "uninstall --yes onnxruntime onnxruntime-gpu && " in remedy
    assert "[cpu]" in remedy
    with_gpu = runtime_collision(1)
    assert with_gpu is not None
    assert ("[cuda]" in with_gpu[1]) == has_cuda_build()
    assert str(runtime_error("any cause")).startswith(message)


def test_build_that_another_folder_hides_does_not_collide(install: Install) -> None:
    """As in a virtual environment with `--system-site-packages`."""
    install("system", "onnxruntime")
    install("environment", "onnxruntime-gpu")
    assert installed_runtimes() == {"onnxruntime-gpu": "1.31.1"}
    assert runtime_collision(0) is None


def test_build_for_other_hardware_collides(install: Install) -> None:
    install("site", "onnxruntime", "onnxruntime-directml")
    assert runtime_collision(0) is not None
    assert "uninstall --yes onnxruntime onnxruntime-directml" in switch_runtime_command("cpu")


def test_broken_build_is_removed_and_installed_again(install: Install) -> None:
    """What pip regards as installed, it would not install."""
    install("site", "onnxruntime-gpu")
    error = runtime_error("its files are gone")
    assert error.message == "onnxruntime-gpu 1.31.1 is installed, but cannot be imported: its files are gone"
    assert "uninstall --yes onnxruntime-gpu && " in error.remedy
    assert "[cuda]" in error.remedy


def test_missing_runtime_names_both_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_distribution", lambda name="": None)
    error = runtime_error("No module named 'onnxruntime'")
    assert "is not installed" in error.message
    assert "uninstall" not in error.remedy
    assert ("[cpu]" in error.remedy, "[cuda]" in error.remedy) == (True, has_cuda_build())


def test_module_without_contents_is_reported(tmp_path: Path) -> None:
    """What is left after one of two packages was removed."""
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime/__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", "from es_sbert import Encoder"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "es_sbert.errors.UsageError: " in done.stderr
    assert "its files are gone" in done.stderr


@pytest.mark.parametrize(
    ("system", "machine", "brought"),
    [
        ("linux", "x86_64", "onnxruntime-gpu"),
        ("win32", "AMD64", "onnxruntime-gpu"),
        ("linux", "aarch64", "onnxruntime"),
        ("win32", "ARM64", "onnxruntime"),
        ("darwin", "arm64", "onnxruntime"),
        ("darwin", "x86_64", "onnxruntime"),
    ],
)
def test_cuda_extra_brings_one_runtime_on_every_system(system: str, machine: str, brought: str) -> None:
    requirements = [Requirement(line) for line in EXTRAS["cuda"]]
    here = {"sys_platform": system, "platform_machine": machine}
    names = [line.name for line in requirements if line.marker is None or line.marker.evaluate(here)]
    assert [name for name in names if name.startswith("onnxruntime")] == [brought]
    assert ("nvidia-cudnn-cu13" in names) == has_cuda_build(system, machine) == (brought == "onnxruntime-gpu")


def test_only_one_module_writes_install_commands() -> None:
    """Others would name a release that there is not, or the wrong pip."""
    for folder in ("es_sbert", "exporters"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name == "installation.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    text = node.value.replace("uv pip install pip", "")  # pip itself is missing
                    assert "pip install" not in text, f"{path}:{node.lineno}"
                    assert "es-sbert[" not in text, f"{path}:{node.lineno}"
