"""Hashes of files, cached for as long as the files do not change.

Hashing a model's weights takes longer than reading them. Every command needs the hash of the weights, for the
fingerprint, and of the ONNX file, to verify that it is the exported one.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from es_sbert.config import cache_folder
from es_sbert.errors import UsageError
from es_sbert.filesystem import open_output

# A file that has just been written may be written again within the same tick of the file system's clock, so its hash is
# not cached yet.
_SETTLED_SECONDS = 2.0


def remembered_hash(kind: str, paths: Sequence[Path], compute: Callable[[], str]) -> str:
    """Return the hash of some files, from the cache if none of them has changed; else compute and cache it.

    A change is detected by the size, the time of the last write, or the time of the last change of any property, which
    programs cannot set. Windows has no such time, so nothing is cached there.

    Args:
        kind: Name of the hash: the same files may have several.
        paths: The files.
        compute: Computes the hash of the files.
    """
    before = _states(paths)
    if not before:
        return compute()
    key = "\0".join([kind, *(str(path.absolute()) for path in paths)])
    cached = _read()
    if (entry := cached.get(key)) is not None and entry["files"] == before:
        return str(entry["hash"])
    computed = compute()
    last_change = max(state[2] for state in before) / 1e9
    if _states(paths) == before and time.time() - last_change > _SETTLED_SECONDS:
        _write({**cached, key: {"hash": computed, "files": before}})
    return computed


def forget_hashes() -> None:
    """Clear the cached hashes."""
    with contextlib.suppress(OSError, UsageError):  # hashes are only a cache
        _place().unlink(missing_ok=True)


def _place() -> Path:
    return cache_folder() / "file-hashes.json"


def _states(paths: Sequence[Path]) -> list[list[int]] | None:
    """Size, times of the last write and the last change in ns, inode and device of each file; None if unknown."""
    if os.name == "nt":
        return None
    try:
        return [
            [one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino, one.st_dev] for one in map(Path.stat, paths)
        ]
    except OSError:
        return None


def _read() -> dict[str, Any]:
    """Read the cached hashes; empty if the file is unreadable, since hashes can be computed again."""
    try:
        return {
            key: {"hash": str(entry["hash"]), "files": entry["files"]}
            for key, entry in json.loads(_place().read_bytes()).items()
        }
    except (OSError, UsageError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(hashes: dict[str, Any]) -> None:
    """Store the hashes of files that still exist. Hashes that another process adds at the same time may be lost."""
    present = {key: entry for key, entry in hashes.items() if all(map(os.path.exists, key.split("\0")[1:]))}
    with contextlib.suppress(OSError, UsageError):  # without a writable cache, hashes are computed each time
        _place().parent.mkdir(parents=True, exist_ok=True)
        with open_output(_place()) as file:
            file.write(json.dumps(present).encode())
