"""Download an engine build with Maven and unpack it once.

Maven knows the user's mirrors, proxies and credentials. A home folder is either complete or absent.
"""

from __future__ import annotations

import shlex
import shutil
import stat
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from es_sbert.engines.local.engine_builds import Artifact, EngineBuild
from es_sbert.engines.local.engine_home import make_folder, storage_errors
from es_sbert.errors import LocalEngineError
from es_sbert.filesystem import file_lock

COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


@dataclass(frozen=True)
class Maven:
    """A Maven installation.

    Attributes:
        program: Path of `mvn`.
        progress: Called with what is fetched.
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
        source, target = f"-Dartifact={artifact.coordinates}", f"-DoutputDirectory={folder}"
        command = [self.program, "-q", "-B", COPY_GOAL, source, target]
        # Not in the user's working directory: a pom.xml there would be read and might fail.
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        path = folder / artifact.file_name
        if done.returncode != 0 or not path.is_file():
            raise LocalEngineError(
                f"Maven cannot fetch {artifact.coordinates}:\n{_error_lines(done.stdout + done.stderr)}",
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


def _error_lines(output: str, most: int = 6) -> str:
    """Maven's first error lines, indented; the rest of its output is advice about switches."""
    lines = [line.removeprefix("[ERROR]").strip() for line in output.splitlines() if line.startswith("[ERROR]")]
    lines = [line for line in lines if line] or [line for line in output.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[:most]) or "    (no output)"


def install(
    build: EngineBuild, dist: Path, fetch: Callable[[Artifact, Path], Path], progress: Callable[[str], None]
) -> Path:
    """The home of an unpacked server, made on the first call.

    Args:
        dist: Folder that holds all homes.
        fetch: Brings an artifact's file into a folder and returns its path.

    Raises:
        LocalEngineError: a file cannot be fetched, is damaged or unsafe, or the disk refuses it.
    """
    home = dist / build.folder_name
    with storage_errors(dist):
        if home.is_dir():
            return home
        waiting = f"Waiting for another es-sbert to install {build.label} …"
        with file_lock(dist / f"{home.name}.lock", lambda: progress(waiting)):
            if not home.is_dir():
                _create_home(build, home, fetch, progress)
        return home


def _create_home(
    build: EngineBuild, home: Path, fetch: Callable[[Artifact, Path], Path], progress: Callable[[str], None]
) -> None:
    staging = home.with_name(f"{home.name}.partial")
    if staging.exists():
        # From a run that was killed: this process holds the lock.
        shutil.rmtree(staging)
    try:
        zips = staging / "zips"
        make_folder(zips)
        for piece in build.pieces:
            archive = fetch(piece.artifact, zips)
            progress(f"Unpacking {archive.name} …")
            unpack(archive, piece.folders, staging / "home")
            archive.unlink()
        for module in build.modules:
            folder = staging / "home" / "modules" / module.name
            make_folder(folder)
            for jar in module.jars:
                fetch(jar, folder).chmod(0o644)
            for name, content in module.files(build.version, build.minimum_jdk).items():
                (folder / name).write_text(content, encoding="utf-8")
                (folder / name).chmod(0o644)
        (staging / "home").rename(home)
    finally:
        if staging.exists():
            shutil.rmtree(staging)


def unpack(archive: Path, folders: tuple[tuple[str, str], ...], target: Path) -> None:
    """Unpack some folders of a zip.

    Files become readable by everyone, and executable where the zip says so. Nothing is ever written outside
    the target.

    Args:
        folders: Pairs (prefix inside the zip, folder inside the target).

    Raises:
        LocalEngineError: the zip is damaged, holds an unsafe name or lacks one of the folders.
    """
    found = dict.fromkeys(folders, 0)
    try:
        with zipfile.ZipFile(archive) as source:
            for member in source.infolist():
                for folder in folders:
                    inside, outside = folder
                    if member.filename.startswith(inside):
                        found[folder] += 1
                        name = outside + member.filename[len(inside) :]
                        _unpack_member(source, member, target / safe_name(name, archive))
    except (zipfile.BadZipFile, EOFError) as error:
        raise LocalEngineError(
            f"{archive.name} is damaged: {error}",
            "Remove it from Maven's local repository (~/.m2/repository) and try again.",
        ) from error
    for (inside, _), members in found.items():
        if not members:
            raise LocalEngineError(
                f"{archive.name} holds no {inside}",
                "It is not the file this version of es-sbert knows: check the mirror that Maven fetches from.",
            )


def safe_name(name: str, archive: Path) -> PurePosixPath:
    """A zip member's name as a relative path.

    Raises:
        LocalEngineError: it is absolute, climbs with `..`, or means something else on another system.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise _unsafe_error(archive.name, f"the unsafe name {name!r}")
    return path


def _unsafe_error(archive: str, what: str) -> LocalEngineError:
    return LocalEngineError(
        f"{archive} holds {what}; nothing of it is used",
        "Remove the file from Maven's local repository and check where Maven fetches from.",
    )


def _unpack_member(source: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    mode = member.external_attr >> 16
    if stat.S_ISLNK(mode):
        raise _unsafe_error(str(source.filename), f"the symbolic link {member.filename!r}")
    make_folder(path if member.is_dir() else path.parent)
    if not member.is_dir():
        with source.open(member) as data, path.open("wb") as copy:
            shutil.copyfileobj(data, copy, 1 << 20)
        path.chmod(0o755 if mode & 0o111 else 0o644)
