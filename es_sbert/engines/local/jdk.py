"""Find a Java runtime that can run a search engine.

The search order is `ES_JAVA_HOME`, `JAVA_HOME`, the `java` on PATH, then the folders where systems and version
managers install JDKs. Among those folders, the newest release up to `NEWEST_TESTED_JDK` is chosen.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from es_sbert.engines.local.server_process import Account
from es_sbert.errors import LocalEngineError

NEWEST_TESTED_JDK = 25

# Modules that the servers and their jvm.options need. Runtimes made with jlink, such as those in pip packages, lack the
# vector incubator and fail at the start with "Module not found".
REQUIRED_MODULES = frozenset({
    "java.desktop", "java.instrument", "java.logging", "java.management", "java.naming", "java.net.http",
    "java.security.jgss", "java.sql", "jdk.attach", "jdk.incubator.vector", "jdk.management", "jdk.net",
    "jdk.unsupported",
})  # fmt: skip

JDK_FOLDERS = (
    "/usr/lib/jvm/*", "/usr/lib64/jvm/*", "/usr/java/*", "/opt/java/*", "/opt/jdk*", "/opt/*jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*", "~/.jdks/*", "~/.asdf/installs/java/*", "~/.local/share/mise/installs/java/*",
)  # fmt: skip


@dataclass(frozen=True)
class Jdk:
    """A Java runtime.

    Attributes:
        version: Feature release (21, 25).
        modules: Names of its modules.
    """

    home: Path
    version: int
    modules: frozenset[str]


def find_jdk(
    minimum: int,
    environ: Mapping[str, str],
    account: Account | None,
    places: Iterable[str] = JDK_FOLDERS,
    *,
    newest: int | None = None,
) -> Jdk:
    """Find a Java runtime that fits; the module describes the search order.

    Args:
        minimum: Oldest suitable feature release.
        account: The user who will run Java, if not the caller.
        places: Patterns of folders to search after those that the environment names.
        newest: Newest suitable feature release; None for no limit.

    Raises:
        LocalEngineError: no runtime fits; the message lists the folders that were checked and why each was refused.
    """
    refused: dict[Path, str] = {}

    def fitting(homes: Iterable[Path]) -> Iterator[Jdk]:
        for home in homes:
            if home not in refused:
                jdk, refused[home] = _check_home(home, minimum, account, newest)
                if jdk is not None:
                    yield jdk

    chosen = next(fitting(_environment_homes(environ)), None)
    if chosen is not None:
        return chosen
    installed = list(fitting(_installed_homes(places, environ)))
    if installed:
        return max(installed, key=lambda jdk: (jdk.version <= NEWEST_TESTED_JDK, _version_rank(jdk.version)))
    seen = "".join(f"\n    {home}: {reason}" for home, reason in refused.items())
    wanted = f"{minimum} or newer" if newest is None else f"{minimum} to {newest}"
    raise LocalEngineError(
        f"no JDK {wanted} was found" + (f"; looked at:{seen}" if seen else ""),
        "Install one (apt install openjdk-21-jdk, dnf install java-21-openjdk-devel, brew install openjdk@21, "
        "or from adoptium.net), or set ES_JAVA_HOME to its folder.",
    )


def _version_rank(version: int) -> int:
    """Newest first up to the newest tested release, then the oldest of the untested ones."""
    return version if version <= NEWEST_TESTED_JDK else -version


def _environment_homes(environ: Mapping[str, str]) -> Iterable[Path]:
    for name in ("ES_JAVA_HOME", "JAVA_HOME"):
        if environ.get(name):
            yield Path(environ[name])
    if program := shutil.which("java", path=environ.get("PATH", "")):
        # …/bin/java is often a link out of /usr/bin into the JDK.
        yield Path(program).resolve().parent.parent


def _installed_homes(places: Iterable[str], environ: Mapping[str, str]) -> Iterable[Path]:
    user_home = environ.get("HOME") or os.path.expanduser("~")
    for place in places:
        pattern = place.replace("~", user_home, 1) if place.startswith("~") else place
        for found in sorted(glob.glob(pattern)):
            # Distributions link several names to one JDK: follow the links, so that it is checked once.
            home = Path(found).resolve()
            if (home / "bin" / "java").exists():
                yield home


def _check_home(home: Path, minimum: int, account: Account | None, newest: int | None) -> tuple[Jdk | None, str]:
    """Return the runtime if it fits, else the reason why it does not."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None, "no bin/java in it"
    if account is not None and not account.can_enter(java.parent):
        return None, f"the user {account.name}, who will run the server, cannot enter it"
    jdk = read_release(home) or run_java(home)
    if jdk is None:
        return None, "neither its release file nor its java gives a version"
    if jdk.version < minimum:
        return None, f"Java {jdk.version} is too old"
    if newest is not None and jdk.version > newest:
        return None, f"Java {jdk.version} is too new"
    if missing := sorted(REQUIRED_MODULES - jdk.modules):
        return None, f"Java {jdk.version}, but without {', '.join(missing)}: not a full JDK"
    return jdk, ""


def read_release(home: Path) -> Jdk | None:
    """Read the `release` file of a JDK; None if the version or the modules are missing."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    entries = dict(re.findall(r'^(\w+)="?([^"\n]*)"?\s*$', text, flags=re.MULTILINE))
    version = feature_release(entries.get("JAVA_VERSION", ""))
    modules = frozenset(entries.get("MODULES", "").split())
    return Jdk(home, version, modules) if version is not None and modules else None


def run_java(home: Path) -> Jdk | None:
    """Run `java -version` and `java --list-modules`; None if Java does not run or prints no version."""
    java = str(home / "bin" / "java")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
        listed = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    quoted = re.search(r'version "([^"]+)"', said.stderr + said.stdout)
    version = feature_release(quoted[1]) if quoted else None
    modules = frozenset(line.split("@")[0].strip() for line in listed.stdout.splitlines())
    return Jdk(home, version, modules) if version is not None else None


def feature_release(version: str) -> int | None:
    """`25.0.3` → 25, `21-ea` → 21, `1.8.0_412` → 8; None for anything else."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else None
