"""Locks between processes of this machine: of one that starts a server, migrates an alias, or moves a file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock while the block runs; the system releases it even if this process is killed.

    Args:
        path: File to lock, created for it and removed afterwards.
        on_wait: Called once if someone else holds the lock, before waiting for it.
    """
    told = False
    while True:
        with path.open("ab") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    on_wait()
                    told = True
                fcntl.flock(handle, fcntl.LOCK_EX)
            if not _is_still_at(handle, path):
                # Whoever held it has removed the file: this lock keeps nobody out, the next file's does.
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


@contextmanager
def moving(path: Path) -> Iterator[None]:
    """Keep out `held_at` while the block moves a file.

    Raises:
        OSError: there is no such file, or it cannot be locked.
    """
    with path.open("rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def held_at(handle: FileIO | BinaryIO, path: Path) -> Iterator[bool]:
    """Whether an open file still stands at a path; while the block runs, nobody moves it by `moving`.

    Raises:
        OSError: the file cannot be locked.
    """
    fcntl.flock(handle, fcntl.LOCK_SH)
    try:
        yield _is_still_at(handle, path)
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def _is_still_at(handle: FileIO | BinaryIO, path: Path) -> bool:
    """Whether an open file is the one that a path leads to."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False
