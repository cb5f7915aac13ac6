"""File locks between processes, output files and folders that are replaced atomically, and safe names of files."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout, lock_descriptor, unlock_descriptor

from es_sbert.errors import OutputError

# Seconds between two attempts to lock a file that others lock only for the duration of a write.
_POLL_SECONDS = 0.005


@contextmanager
def file_lock(
    path: Path, on_wait: Callable[[], object] | Exception = lambda: None, *, timeout: float | None = None
) -> Iterator[None]:
    """Hold a lock while the block runs; the system releases it even if this process is killed.

    Args:
        path: Lock file, which is created for the lock and removed afterwards.
        on_wait: Called once if someone else holds the lock, before waiting for it; or an error to raise then.
        timeout: Maximum wait in seconds; None for no limit.

    Raises:
        TimeoutError: someone else has held the lock for longer than the timeout.
        OSError: the file cannot be created or locked.
    """
    lock = FileLock(path, thread_local=False)
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        if isinstance(on_wait, Exception):
            raise on_wait from None
        on_wait()
        held = lock.acquire(timeout=-1 if timeout is None else timeout)
    with held:
        try:
            yield
        finally:
            # A process that waits for the removed file notices this and tries the next one. On Windows, an open file
            # cannot be removed; there the release removes it.
            if sys.platform != "win32":
                path.unlink(missing_ok=True)


def cached_folder(target: Path, write: Callable[[Path], None]) -> Path:
    """Return a folder in the cache, written on the first call; other processes see it complete or not at all.

    Args:
        target: The folder.
        write: Writes it to the given path, which does not exist yet.

    Raises:
        OutputError: the cache cannot be written.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(target.with_suffix(".lock")):
            if not target.is_dir():
                partial = target.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)  # left by a killed process, since this one holds the lock
                write(partial)
                partial.rename(target)
    except OSError as error:
        raise OutputError(
            f"{target.parent} cannot be written: {error.strerror}", "Free disk space there, or set ES_SBERT_CACHE."
        ) from error
    return target


@contextmanager
def rename_lock(path: Path) -> Iterator[None]:
    """Block `append_lock` while the block moves a file.

    Windows refuses to move an open file, so no lock is needed there.

    Raises:
        OSError: the file does not exist, or cannot be locked.
    """
    if sys.platform == "win32":
        path.stat()
        yield
    else:
        with path.open("rb") as handle:
            lock_descriptor(handle.fileno(), poll_interval=_POLL_SECONDS)
            yield


@contextmanager
def append_lock(handle: FileIO | BinaryIO, path: Path) -> Iterator[bool]:
    """Lock an open file while the block runs, and yield whether the path still refers to this file.

    While the block runs, no other process can hold this lock on the file, or move the file under `rename_lock`.

    Raises:
        OSError: the file cannot be locked.
    """
    lock_descriptor(handle.fileno(), poll_interval=_POLL_SECONDS)
    try:
        yield _is_same_file(handle, path)
    finally:
        unlock_descriptor(handle.fileno())


def _is_same_file(handle: FileIO | BinaryIO, path: Path) -> bool:
    """Whether a path refers to an open file."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


# The usual name for stdout on command lines.
STDOUT_PATH = Path("-")


def is_stream(path: Path) -> bool:
    """Whether a path is stdout (`-`), a pipe or a device, which is written to directly."""
    return path == STDOUT_PATH or (path.exists() and not path.is_file())


def open_output(path: Path) -> AbstractContextManager[BinaryIO]:
    """Open an output: a file that gets its name when it is complete, or an existing pipe or device.

    Raises:
        OSError: the output cannot be written; no part of the file remains.
    """
    if path == STDOUT_PATH:
        return _flush_at_end(sys.stdout.buffer)
    if is_stream(path):
        return path.open("wb")
    return _replace_when_complete(path.resolve())  # the target of a link is written, and the link remains


@contextmanager
def _flush_at_end(stream: BinaryIO) -> Iterator[BinaryIO]:
    yield stream
    stream.flush()


@contextmanager
def _replace_when_complete(path: Path) -> Iterator[BinaryIO]:
    """Write to a temporary file in the same folder, and rename it at the end, or remove it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
        # mkstemp makes files private; an output file gets the usual permissions.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def is_vacant(path: Path) -> bool:
    """Whether a new folder can be written here: there is nothing, or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


@contextmanager
def staged_folder(output: Path) -> Iterator[Path]:
    """Yield a folder next to `output` that replaces it if the block succeeds, and is removed otherwise.

    A reader sees the old folder, for an instant none, then the new one, but never an incomplete one.

    Raises:
        OutputError: the folder cannot be written: no permission, a full disk.
    """
    output = output.resolve()  # the target of a link is replaced, not the link
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{output.name}.", suffix=".partial", dir=output.parent, ignore_cleanup_errors=True
        ) as name:
            staging = Path(name)
            staging.chmod(0o755)  # it is private, but others must be able to read a bundle
            yield staging
            _replace_folder(staging, output)
    except OSError as error:
        raise OutputError(
            f"{output} cannot be written: {error}",
            "Free disk space there, or export to a folder that you can write to.",
        ) from error


def _replace_folder(staging: Path, output: Path) -> None:
    if not output.exists():
        staging.rename(output)
        return
    old = staging.with_suffix(".old")
    output.rename(old)
    try:
        staging.rename(output)
    except OSError:
        old.rename(output)
        raise
    shutil.rmtree(old)


def safe_file_name(index: str) -> str:
    """Encode the name of an index for a file name, unique per index.

    Characters that are not allowed in file names, and a leading dot, are percent-encoded.
    """
    return re.sub(r"[^\w.-]|^\.", _percent_encoded, index) or "%"


def _percent_encoded(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))
