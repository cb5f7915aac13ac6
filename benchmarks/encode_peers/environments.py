"""A virtual environment for each peer, from pinned versions, made once and used again."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from es_sbert import NO_TELEMETRY

_COMPLETE = "complete"  # a file in the folder, written last


@dataclass(frozen=True)
class Environment:
    """What pip installs for a peer.

    Attributes:
        name: Of its folder, and in the table of versions.
        requirements: The pinned packages; pip chooses the versions of what they need.
        base: An environment whose packages it also sees, including those of its base, so that PyTorch, 5 GB large, is
            installed once.
    """

    name: str
    requirements: tuple[str, ...]
    base: Environment | None = None

    @property
    def key(self) -> str:
        """Name, Python version and a hash of the pins: another pin is another folder."""
        parts = [*self.requirements, "" if self.base is None else self.base.key]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
        return f"{self.name}-py{sys.version_info.major}{sys.version_info.minor}-{digest}"

    @property
    def bases(self) -> tuple[Environment, ...]:
        """Its base, the base of that, and so on."""
        return () if self.base is None else (self.base, *self.base.bases)


# The package index has no CPU build of PyTorch for Linux: the CUDA build computes the same on a CPU.
_TORCH = Environment("torch", ("torch==2.15.0", "numpy==2.4.6"))
SENTENCE_TRANSFORMERS = Environment(
    "sentence-transformers", ("sentence-transformers==6.2.0", "transformers==5.24.0"), _TORCH
)
# The newest optimum-onnx needs transformers 4, which the newest sentence-transformers does not run with.
SENTENCE_TRANSFORMERS_ONNX = Environment(
    "sentence-transformers-onnx",
    (
        "sentence-transformers==5.7.0",
        "transformers==4.57.6",
        "optimum-onnx==0.1.0",
        "onnx==1.23.2",
        "onnxruntime==1.32.0",
    ),
    _TORCH,
)
SENTENCE_TRANSFORMERS_OPENVINO = Environment(
    "sentence-transformers-openvino",
    (
        "sentence-transformers==6.2.0",
        "transformers==5.5.4",
        "optimum-intel==2.2.0",
        "openvino==2026.4.1",
        "nncf==3.4.0",
        "datasets==5.0.1",
    ),
    _TORCH,
)
FASTEMBED = Environment("fastembed", ("fastembed==0.9.1", "onnxruntime==1.32.0"))
ONNXRUNTIME = Environment("onnxruntime", ("onnxruntime==1.32.0", "tokenizers==0.23.3", "numpy==2.4.6"))


class NotInstalled(Exception):
    """pip could not install an environment; the message says why."""


@dataclass(frozen=True)
class Environments:
    """The folder that holds them.

    Attributes:
        folder: Made if it is missing.
        report: Called with a line before a slow step.
    """

    folder: Path
    report: Callable[[str], None]

    def python(self, environment: Environment) -> Path:
        """The interpreter of an environment, which is installed first if it is missing or incomplete.

        Raises:
            NotInstalled: pip failed.
        """
        place = self.folder / environment.key
        python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if not (place / _COMPLETE).exists():
            self._install(environment, place, python)
            (place / _COMPLETE).touch()
        return python

    def _install(self, environment: Environment, place: Path, python: Path) -> None:
        bases = [self.python(base).parents[1] for base in environment.bases]
        self.report(f"Installing {', '.join(environment.requirements)} …")
        shutil.rmtree(place, ignore_errors=True)
        _run([sys.executable, "-m", "venv", place])
        packages = site_packages(place)
        if bases:
            (packages / "base.pth").write_text("".join(f"{site_packages(base)}\n" for base in bases))
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *environment.requirements])
        # OpenVINO and NNCF ask here whether they may report their use.
        consent = place / "intel" / "openvino_telemetry"
        consent.parent.mkdir()
        consent.write_text("0\n")

    def variables(self, environment: Environment, threads: int) -> dict[str, str]:
        """Environment variables of a process that runs in an environment: its own home, no hub, no telemetry."""
        home = str(self.folder / environment.key)
        return {**os.environ, **shared_variables(threads), "HOME": home, "USERPROFILE": home, "NNCF_CI": "1"}


def shared_variables(threads: int) -> Mapping[str, str]:
    """Environment variables of every contender, ours included."""
    return {
        **NO_TELEMETRY,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONWARNINGS": "ignore",
        "RAYON_NUM_THREADS": str(threads),  # of tokenizers
    }


def site_packages(environment: Path) -> Path:
    """The folder that a virtual environment's packages are in."""
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(environment), "platbase": str(environment)}))


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise NotInstalled(f"pip: {without_addresses(errors[-1])}")


def without_addresses(message: str) -> str:
    """A message that may be published: without addresses and without absolute paths of this machine."""
    message = re.sub(r"\w+://\S+", "…", message)
    return re.sub(r"(?<![\w.])(?:/[\w.@+-]+){2,}/?|\b[A-Za-z]:\\\S+", "…", message)
