"""Fetch a file with Maven, which knows the user's mirrors, proxies and credentials."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from es_sbert.engines.local.catalogue import Artifact
from es_sbert.errors import LocalEngineError

COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


@dataclass(frozen=True)
class Maven:
    """A Maven installation.

    Attributes:
        program: Path of `mvn`.
        progress: Told what is fetched.
    """

    program: str
    progress: Callable[[str], None]

    def fetch(self, artifact: Artifact, folder: Path) -> Path:
        """Copy an artifact into a folder, from the local repository or else from the network.

        Maven's `copy` is used rather than `get` and a look into the local repository: where that repository
        lies depends on settings that only Maven resolves.

        Raises:
            LocalEngineError: Maven failed.
        """
        self.progress(f"Fetching {artifact.coordinates} with Maven (about {artifact.megabytes} MB, once) …")
        command = [self.program, "-q", "-B", COPY_GOAL, f"-Dartifact={artifact.coordinates}",
                   f"-DoutputDirectory={folder}"]  # fmt: skip
        # A working directory of its own: a pom.xml in the user's would be read and might fail.
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        path = folder / artifact.file_name
        if done.returncode != 0 or not path.is_file():
            raise LocalEngineError(
                f"Maven cannot fetch {artifact.coordinates}:\n{_reasons(done.stdout + done.stderr)}",
                "Check that Maven reaches its repository (a proxy or mirror belongs into ~/.m2/settings.xml); "
                f"to see more, run: {shlex.join(command)}",
            )
        return path


def find_maven(environ: Mapping[str, str], progress: Callable[[str], None]) -> Maven:
    """`mvn` from MAVEN_HOME, M2_HOME or PATH.

    Raises:
        LocalEngineError: there is none.
    """
    homes = [environ[name] for name in ("MAVEN_HOME", "M2_HOME") if environ.get(name)]
    places = [str(Path(home, "bin")) for home in homes]
    program = shutil.which("mvn", path=":".join([*places, environ.get("PATH", "")]))
    if program is None:
        raise LocalEngineError(
            "Maven (mvn) is not on PATH; it fetches the search engine",
            "Install it (apt install maven, dnf install maven, brew install maven), or use docker-compose.yml.",
        )
    return Maven(program, progress)


def _reasons(output: str, most: int = 6) -> str:
    """Maven's first error lines, indented; the rest of its output is advice about switches."""
    lines = [line.removeprefix("[ERROR]").strip() for line in output.splitlines() if line.startswith("[ERROR]")]
    lines = [line for line in lines if line] or [line for line in output.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[:most]) or "    (it said nothing)"
