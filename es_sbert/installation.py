"""The `pip` commands in messages, and the builds of onnxruntime, which overwrite each other's files."""

from __future__ import annotations

import platform
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

_NAME = "es-sbert"

# Extras with a build of onnxruntime. No other requirement may include one, so that two are never installed by accident.
CPU_EXTRA, CUDA_EXTRA = "cpu", "cuda"
# Packages that install the module onnxruntime.
_BUILDS = ("gpu", "azure", "cann", "directml", "migraphx", "openvino", "qnn", "rocm", "training")
RUNTIME_PACKAGES = ("onnxruntime", *(f"onnxruntime-{build}" for build in _BUILDS))


def install_command(*arguments: str) -> str:
    """The command that installs packages; options such as `--upgrade` may precede them."""
    # Double quotes work in every system's shell.
    return " ".join(["pip install", *(word if re.fullmatch(r"[\w.-]+", word) else f'"{word}"' for word in arguments)])


def install_extra_command(extra: str) -> str:
    """The command that installs an extra of es-sbert."""
    return install_command(f"{_NAME}[{extra}]")


def switch_runtime_command(extra: str) -> str:
    """The commands that leave a single build of onnxruntime installed: that of an extra, `cpu` or `cuda`.

    The builds write the same files, so removing one breaks the other, which pip still regards as installed. Therefore,
    all builds are removed first.
    """
    installed = installed_runtimes()
    removal = f"pip uninstall --yes {' '.join(installed)} && " if installed else ""
    return removal + install_extra_command(extra)


def has_cuda_build(system: str = sys.platform, machine: str | None = None) -> bool:
    """Whether the extra `cuda` installs CUDA on this system; elsewhere it installs the build for CPUs."""
    return system in ("linux", "win32") and (machine or platform.machine()) in ("x86_64", "AMD64")


def installed_runtimes() -> dict[str, str]:
    """Return the packages that installed the `onnxruntime` module which Python would import, with their versions.

    If there are several, they have overwritten each other's files. A package in a later folder of Python's path is
    hidden and does no harm.
    """
    entries = {name: entry for name in RUNTIME_PACKAGES if (entry := _distribution(name)) is not None}
    folders = {name: Path(str(entry.locate_file(""))) for name, entry in entries.items()}
    path = [Path(folder) for folder in sys.path]
    first = min(folders.values(), key=lambda folder: path.index(folder) if folder in path else len(path), default=None)
    return {name: entry.version for name, entry in entries.items() if folders[name] == first}


def runtime_collision(cards: int) -> tuple[str, str] | None:
    """Return an error message and its remedy if several builds of onnxruntime are installed; else None.

    Args:
        cards: Number of NVIDIA GPUs; the remedy keeps the build for CUDA if there are any.
    """
    installed = installed_runtimes()
    if len(installed) < 2:
        return None
    names = " and ".join(f"{name} {version}" for name, version in sorted(installed.items()))
    extra = CUDA_EXTRA if cards and has_cuda_build() else CPU_EXTRA
    return (
        f"{names} are installed together and have overwritten each other's files",
        f"Remove them and install one: {switch_runtime_command(extra)}",
    )


def _distribution(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:  # also if es-sbert runs from a checkout
        return None
