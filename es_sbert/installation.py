"""Find out how this copy of es-sbert was installed, and build the commands that add packages to it.

Every message about a package or an extra to install gets its command from here. es-sbert may be a checkout, a wheel, or
a release from an index; its pip may not be the one on PATH; and onnxruntime has a build for CPUs and one for CUDA,
which overwrite each other's files.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from es_sbert.errors import UsageError

_NAME = "es-sbert"
_CHECKOUT_FILES = ("pyproject.toml", "exporters/__init__.py")
_CONSTRAINTS = "constraints.txt"

# Extras with a build of onnxruntime. No other requirement may include one, so that two are never installed by accident.
CPU_EXTRA, CUDA_EXTRA = "cpu", "cuda"
# Packages that install the module onnxruntime.
RUNTIME_PACKAGES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-azure",
    "onnxruntime-cann",
    "onnxruntime-directml",
    "onnxruntime-migraphx",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-training",
)


@dataclass(frozen=True)
class Installation:
    """The installer for the environment of this process, and the origin of es-sbert.

    Attributes:
        pip: The installer: `pip`, `/opt/python -m pip`, `pip --python /opt/python` or `uv pip`.
        arguments: Arguments of every command of the installer.
        source: Argument of `install` for es-sbert: a name, a folder, a file or an address. Empty if its origin no
            longer exists; the packages of an extra are then listed one by one.
        editable: Whether es-sbert is installed in editable mode.
        constraints: File with the versions that were tested together; empty if there is none.
    """

    pip: tuple[str, ...] = ("pip",)
    arguments: tuple[str, ...] = ()
    source: str = _NAME
    editable: bool = False
    constraints: str = ""

    def install_extras(self, extras: Iterable[str]) -> str:
        """The command that installs extras of es-sbert."""
        extras = list(extras)
        packages = [] if self.source else extra_requirements(extras)
        if packages:
            return self.install(*packages)
        constraint = ("--constraint", self.constraints) if self.constraints else ()
        # `NAME @ ADDRESS` has the extras after the name.
        name, at, address = (self.source or _NAME).partition(" @ ")
        requirement = f"{name}[{','.join(extras)}]{at}{address}"
        return self.install(*constraint, *(("--editable",) if self.editable else ()), requirement)

    def install(self, *arguments: str) -> str:
        """The command that installs packages; the arguments may include options."""
        return _command(*self.pip, "install", *self.arguments, *arguments)

    def uninstall(self, *packages: str) -> str:
        """The command that removes packages without asking."""
        confirmed = () if "uv" in self.pip else ("--yes",)
        return _command(*self.pip, "uninstall", *confirmed, *self.arguments, *packages)


def install_extra_command(*extras: str) -> str:
    """The command that installs extras of this copy of es-sbert."""
    return current_installation().install_extras(extras)


def install_command(*arguments: str) -> str:
    """The command that installs packages into this environment; options such as `--upgrade` may precede them."""
    return current_installation().install(*arguments)


def switch_runtime_command(extra: str) -> str:
    """The commands that leave a single build of onnxruntime installed: that of an extra, `cpu` or `cuda`.

    The builds write the same files, so removing one breaks the other, which pip still regards as installed. Therefore,
    all builds are removed first.
    """
    installation, installed = current_installation(), installed_runtimes()
    install = installation.install_extras([extra])
    return f"{installation.uninstall(*installed)} && {install}" if installed else install


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


def extra_requirements(extras: Iterable[str]) -> list[str]:
    """Return the packages that extras install on this system, sorted; read from the metadata of es-sbert."""
    from packaging.requirements import Requirement

    installed = _distribution()
    lines = [Requirement(line) for line in (installed and installed.requires) or ()]
    waiting, seen, found = list(extras), set[str](), set[str]()
    while waiting:
        extra = waiting.pop()
        seen.add(extra)
        for line in lines:
            marker = line.marker
            if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
                continue
            if line.name == _NAME:
                waiting += line.extras - seen
            else:
                options = f"[{','.join(sorted(line.extras))}]" if line.extras else ""
                found.add(f"{line.name}{options}{line.specifier}")
    return sorted(found)


def unsupported_version(package: str, detail: str) -> UsageError:
    """Create the error for an installed package version without a private name that es-sbert uses.

    Args:
        package: Name of the package in the metadata of es-sbert.
        detail: The missing name.
    """
    from packaging.requirements import Requirement

    installed, es_sbert = _distribution(package), _distribution()
    lines = [Requirement(line) for line in (es_sbert and es_sbert.requires) or ()]
    tested = next((f"{line.name}{line.specifier}" for line in lines if line.name == package), package)
    version = f" {installed.version}" if installed is not None else ""
    return UsageError(
        f"{package}{version} is not supported: {detail}",
        f"Install a tested version: {install_command(tested)}",
    )


@cache
def current_installation() -> Installation:
    """Find out how this copy of es-sbert was installed, and the installer of this environment. Cached."""
    pip, arguments = _find_installer()
    package = Path(__file__).resolve().parent
    installed = _distribution()
    record = (installed and installed.read_text("direct_url.json")) or "{}"
    source, editable, folder = find_source(package, json.loads(record))
    constraints = ""
    if folder is not None and (folder / _CONSTRAINTS).is_file():
        constraints = _CONSTRAINTS if source == "." else str(folder / _CONSTRAINTS)
    return Installation(pip, arguments, source, editable, constraints)


def find_source(package: Path, record: Mapping[str, Any]) -> tuple[str, bool, Path | None]:
    """Find the origin from which es-sbert can be installed again.

    Args:
        package: The folder `es_sbert` that runs.
        record: pip's record of the origin (`direct_url.json`); empty for a release from an index.

    Returns:
        `source` and `editable` of `Installation`, and the folder of the checkout; None for any other origin.
    """
    if all((package.parent / name).is_file() for name in _CHECKOUT_FILES):
        return _shown(package.parent), True, package.parent
    url = str(record.get("url", ""))
    if "vcs_info" in record:
        version = record["vcs_info"]
        revision = version.get("requested_revision") or version["commit_id"]
        return f"{_NAME} @ {version['vcs']}+{url}@{revision}", False, None
    if not url.startswith("file:"):
        return (f"{_NAME} @ {url}" if url else _NAME), False, None
    path = Path(url2pathname(urlsplit(url).path))
    if "dir_info" in record and (path / _CHECKOUT_FILES[0]).is_file():
        return _shown(path), bool(record["dir_info"].get("editable")), path
    return (str(path) if path.is_file() else ""), False, None


def _shown(folder: Path) -> str:
    """A folder as the user would write it: a dot for the current one."""
    return "." if folder == Path.cwd().resolve() else str(folder)


def _find_installer() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find the installer of this environment, and the arguments of every command of it."""
    found = shutil.which("pip")
    # `find_spec("pip")` would replace setuptools' distutils with the standard library's (Python 3.11).
    if _distribution("pip") is None and sys.executable:
        if shutil.which("uv"):
            active = os.environ.get("VIRTUAL_ENV") == sys.prefix
            return ("uv", "pip"), () if active else ("--python", sys.executable)
        if found:
            return ("pip", "--python", sys.executable), ()
    if not sys.executable or (found and Path(found).parent == Path(sys.executable).parent):
        return ("pip",), ()
    python = Path(sys.executable)
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    return (str(shown), "-m", "pip"), ()


def _distribution(name: str = _NAME) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:  # es-sbert runs from a checkout
        return None


def _command(*words: str) -> str:
    """Quote the words of a command for the system's shell."""
    if os.name != "nt":
        return shlex.join(words)
    return " ".join(word if re.fullmatch(r"[\w@%+=:,.\[\]/\\-]+", word) else f'"{word}"' for word in words)
