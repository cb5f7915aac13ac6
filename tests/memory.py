"""Folders in memory for the data of servers that tests run: nothing of it is kept, and no disk is waited for."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from es_sbert.engines.local.server_process import server_account

_MEMORY = Path("/dev/shm")
# Containers often have a few megabytes of it, which is too little for anything.
_ENOUGH = 4 << 30  # bytes


def make_folder_in_memory() -> Path | None:
    """A new folder that servers may write to; None where the system has no place for it."""
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ENOUGH:
        return None
    folder = Path(tempfile.mkdtemp(prefix="es-sbert-test-", dir=_MEMORY))
    account = server_account()
    if account is not None:
        os.chown(folder, account.pw_uid, account.pw_gid)
    return folder


@contextmanager
def folder_in_memory() -> Iterator[Path | None]:
    """Such a folder, removed at the end."""
    folder = make_folder_in_memory()
    try:
        yield folder
    finally:
        if folder is not None:
            shutil.rmtree(folder)
