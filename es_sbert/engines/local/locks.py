"""Locks between processes, so that two calls of `es-sbert engine` cannot start the same server."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def _is_still_at(handle: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False
