"""Find a Java runtime that can run a search engine.

The search order is `ES_JAVA_HOME`, `JAVA_HOME`, the `java` on PATH, then the folders where systems and version
managers install JDKs. Among those folders, the newest release up to `NEWEST_TESTED_JDK` is chosen.
"""

from __future__ import annotations

import glob
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from es_sbert.config import expand_home
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
    """A Java runtime, and its feature release (21, 25)."""

    home: Path
    version: int


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
            try:
                yield _read_jdk(home, minimum, newest, account)
            except ValueError as error:
                refused[home] = str(error)

    chosen = next(fitting(_environment_homes(environ)), None)
    if chosen is not None:
        return chosen
    installed = list(fitting(_installed_homes(places)))
    if installed:
        # The newest tested release, else the oldest of those that are not tested.
        return max(installed, key=lambda jdk: (jdk.version <= NEWEST_TESTED_JDK, -abs(jdk.version - NEWEST_TESTED_JDK)))
    seen = "".join(f"\n    {home}: {reason}" for home, reason in refused.items())
    wanted = f"{minimum} or newer" if newest is None else f"{minimum} to {newest}"
    raise LocalEngineError(
        f"no JDK {wanted} was found" + (f"; looked at:{seen}" if seen else ""),
        "Install one (apt install openjdk-21-jdk, dnf install java-21-openjdk-devel, brew install openjdk@21, "
        "or from adoptium.net), or set ES_JAVA_HOME to its folder.",
    )


def _environment_homes(environ: Mapping[str, str]) -> Iterator[Path]:
    for name in ("ES_JAVA_HOME", "JAVA_HOME"):
        if environ.get(name):
            yield Path(environ[name])
    if program := shutil.which("java", path=environ.get("PATH", "")):
        # …/bin/java is often a link out of /usr/bin into the JDK.
        yield Path(program).resolve().parent.parent


def _installed_homes(places: Iterable[str]) -> Iterable[Path]:
    """Folders with a `java`. Distributions link several names to one JDK: the links are followed."""
    found = [Path(folder).resolve() for place in places for folder in sorted(glob.glob(str(expand_home(place))))]
    return dict.fromkeys(home for home in found if (home / "bin" / "java").exists())


def _read_jdk(home: Path, minimum: int, newest: int | None, account: Account | None) -> Jdk:
    """Read the version and the modules of a JDK.

    Raises:
        ValueError: it does not fit; the message says why.
    """
    if not (home / "bin" / "java").exists():
        raise ValueError("no bin/java in it")
    if account is not None and not account.can_enter(home / "bin"):
        raise ValueError(f"the user {account.name}, who will run the server, cannot enter it")
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"its file release cannot be read: {error.strerror}") from error
    entries = dict(re.findall(r'^(\w+)="?([^"\n]*)"?\s*$', text, flags=re.MULTILINE))
    # `25.0.3` is 25, `21-ea` is 21, `1.8.0_412` is 8.
    number = re.match(r"(?:1\.)?(\d+)", entries.get("JAVA_VERSION", ""))
    if number is None:
        raise ValueError("its file release has no version")
    version = int(number[1])
    if version < minimum or version > (newest or version):
        raise ValueError(f"Java {version} is too {'old' if version < minimum else 'new'}")
    if missing := REQUIRED_MODULES - set(entries.get("MODULES", "").split()):
        raise ValueError(f"Java {version}, but without {', '.join(sorted(missing))}: not a full JDK")
    return Jdk(home, version)
