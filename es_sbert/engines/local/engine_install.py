"""Download an engine build and unpack it once. A home folder is either complete or absent."""

from __future__ import annotations

import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from es_sbert.engines.local.engine_builds import EngineBuild
from es_sbert.engines.local.engine_home import make_folder, storage_errors
from es_sbert.errors import LocalEngineError
from es_sbert.filesystem import file_lock
from es_sbert.io.maven import Artifact

Fetch = Callable[[Artifact, Path], Path]
_REMEDY = (
    "Remove the file from Maven's local repository (~/.m2/repository), and check the mirror that Maven downloads from."
)


def install(build: EngineBuild, dist: Path, fetch: Fetch, progress: Callable[[str], None]) -> Path:
    """Return the home of an unpacked server; download and unpack it if it does not exist.

    Args:
        dist: Folder that holds all homes.
        fetch: Fetches an artifact into a folder and returns the path of its file.

    Raises:
        LocalEngineError: a file cannot be fetched or written, or is damaged or unsafe.
    """
    home = dist / build.folder_name
    waiting = f"Waiting for another es-sbert to install {build.label} …"
    with storage_errors(dist), file_lock(dist / f"{home.name}.lock", lambda: progress(waiting)):
        if home.is_dir():
            return home
        staging = home.with_name(f"{home.name}.partial")
        if staging.exists():
            # Remove what a killed run has left: no other run can use it, because this process holds the lock.
            shutil.rmtree(staging)
        make_folder(staging)
        try:
            for piece in build.pieces:
                archive = fetch(piece.artifact, staging)
                progress(f"Unpacking {archive.name} …")
                unpack(archive, piece.folders, staging / "home")
                archive.unlink()
            (staging / "home").rename(home)
        finally:
            shutil.rmtree(staging)
        return home


def unpack(archive: Path, folders: tuple[tuple[str, str], ...], target: Path) -> None:
    """Unpack some folders of a zip.

    Files become world-readable and keep their executable bit. Nothing is ever written outside the target.

    Args:
        folders: Pairs (prefix inside the zip, folder inside the target).

    Raises:
        LocalEngineError: the zip is damaged, contains an unsafe name or lacks one of the folders.
    """
    missing = {inside for inside, _ in folders}
    try:
        with zipfile.ZipFile(archive) as source:
            for member in source.infolist():
                for inside, outside in folders:
                    if member.filename.startswith(inside):
                        missing.discard(inside)
                        name = outside + member.filename[len(inside) :]
                        _unpack_member(source, member, target / safe_name(name, archive))
    except (zipfile.BadZipFile, EOFError) as error:
        raise LocalEngineError(f"{archive.name} is damaged: {error}", _REMEDY) from error
    if missing:
        raise LocalEngineError(f"{archive.name} does not contain {', '.join(sorted(missing))}", _REMEDY)


def safe_name(name: str, archive: Path) -> PurePosixPath:
    """Check a zip member's name, and return it as a relative path.

    Raises:
        LocalEngineError: the name is absolute, contains `..`, or means something else on another system.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise LocalEngineError(f"{archive.name} contains the unsafe name {name!r}, so it is not used", _REMEDY)
    return path


def _unpack_member(source: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    mode = member.external_attr >> 16
    if stat.S_ISLNK(mode):
        what = f"the symbolic link {member.filename!r}"
        raise LocalEngineError(f"{source.filename} contains {what}, so it is not used", _REMEDY)
    make_folder(path if member.is_dir() else path.parent)
    if not member.is_dir():
        with source.open(member) as data, path.open("wb") as copy:
            shutil.copyfileobj(data, copy, 1 << 20)
        path.chmod(0o755 if mode & 0o111 else 0o644)
