"""Cache of compiled OpenVINO models: opening one takes a fraction of the time of compiling it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.bundle import remembered_file_hash
from es_sbert.bundle.file_hashes import remembered_hash
from es_sbert.config import cache_folder
from es_sbert.errors import UsageError
from es_sbert.filesystem import open_output
from es_sbert.runtime.machine import describe_machine

# Maximum bytes of all compiled models together; each is as large as its weights.
_MAX_BYTES = 2 << 30
_DIGEST_BYTES = hashlib.sha256().digest_size


def compiled_path(path: Path, settings: str) -> Path | None:
    """Return the path in the cache for a model compiled with these settings, on this machine and these releases.

    Args:
        path: The model's file.
        settings: The settings that it is compiled with.

    Returns:
        The path; None if there is no cache.
    """
    try:
        folder = cache_folder() / "compiled"
    except UsageError:
        return None
    decisive = json.dumps([remembered_file_hash(path), settings, describe_machine()], sort_keys=True)
    return folder / f"{hashlib.sha256(decisive.encode()).hexdigest()[:32]}.blob"


def read_compiled(place: Path) -> NDArray[np.uint8] | None:
    """Map a compiled model into memory; None if the file is missing, incomplete or damaged."""
    try:
        content = np.memmap(place, dtype=np.uint8, mode="c")  # "c": OpenVINO takes no read-only memory
    except (OSError, ValueError):  # an empty file cannot be mapped
        return None
    kept = content[-_DIGEST_BYTES:].tobytes().hex()
    blob = content[:-_DIGEST_BYTES]
    actual = remembered_hash("compiled", [place], lambda: hashlib.sha256(blob.data).hexdigest())
    return blob if kept == actual else None


def keep_compiled(place: Path, compiled: memoryview) -> None:
    """Write a compiled model to the cache, and remove the oldest ones beyond 2 GiB in total.

    A model of more than 1 GiB is not kept. If the cache cannot be written, the error is ignored.

    Args:
        place: Path from `compiled_path`.
        compiled: The model's bytes.
    """
    if len(compiled) > _MAX_BYTES // 2:
        return
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with open_output(place) as file:
            file.write(compiled)
            file.write(hashlib.sha256(compiled).digest())
        newest_first = sorted(place.parent.glob("*.blob"), key=lambda blob: blob.stat().st_mtime, reverse=True)
        total = 0
        for blob in newest_first:
            total += blob.stat().st_size
            if total > _MAX_BYTES:
                blob.unlink(missing_ok=True)
