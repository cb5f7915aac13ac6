"""Locks between processes of this machine: of one that starts a server, migrates an alias, or moves a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout, lock_descriptor, unlock_descriptor

# Seconds between two attempts to lock a file that others lock for no longer than a write takes.
_POLL_SECONDS = 0.005


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock while the block runs; the system releases it even if this process is killed.

    Args:
        path: File to lock, created for it and removed afterwards.
        on_wait: Called once if someone else holds the lock, before waiting for it.

    Raises:
        OSError: the file cannot be created or locked.
    """
    lock = FileLock(path, thread_local=False)
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        on_wait()
        held = lock.acquire()
    with held:
        try:
            yield
        finally:
            # A process that waits for the removed file notices, and tries the next one. On Windows nobody can remove a
            # file that is open; there the release does.
            if sys.platform != "win32":
                path.unlink(missing_ok=True)


@contextmanager
def moving(path: Path) -> Iterator[None]:
    """Keep out `held_at` while the block moves a file.

    On Windows the system refuses to move a file that a process has open, so that no lock is needed.

    Raises:
        OSError: there is no such file, or it cannot be locked.
    """
    if sys.platform == "win32":
        path.stat()
        yield
    else:
        with path.open("rb") as handle:
            lock_descriptor(handle.fileno(), poll_interval=_POLL_SECONDS)
            yield


@contextmanager
def held_at(handle: FileIO | BinaryIO, path: Path) -> Iterator[bool]:
    """Lock an open file while the block runs, and tell whether it is still the one at a path.

    Meanwhile nobody moves it by `moving`, and no other process enters such a block with the same file.

    Raises:
        OSError: the file cannot be locked.
    """
    lock_descriptor(handle.fileno(), poll_interval=_POLL_SECONDS)
    try:
        yield _is_still_at(handle, path)
    finally:
        unlock_descriptor(handle.fileno())


def _is_still_at(handle: FileIO | BinaryIO, path: Path) -> bool:
    """Whether an open file is the one that a path leads to."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False
