"""Checkpoints of a run: which of them were written whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

_MARKER = "complete"


def mark_complete(checkpoint: Path) -> None:
    """Say that a checkpoint was written whole: every file is on the disk before the marker is.

    Raises:
        OSError: the disk is full.
    """
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file():
            _flush(path)
    marker = checkpoint / _MARKER
    marker.touch()
    _flush(marker)
    _flush(checkpoint)


def _flush(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows flushes files alone, and only through a handle that may write
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def last_complete(folder: Path) -> Path | None:
    """The newest checkpoint that was written whole; None where there is none."""
    complete = [path for path in _checkpoints(folder) if (path / _MARKER).exists()]
    return complete[-1] if complete else None


def remove_incomplete(folder: Path) -> None:
    """Remove what an interrupted save left."""
    for path in _checkpoints(folder):
        if not (path / _MARKER).exists():
            shutil.rmtree(path)


def remove_all(folder: Path) -> None:
    """Remove every checkpoint: the trained model has been written."""
    for path in _checkpoints(folder):
        shutil.rmtree(path)


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders by their step."""
    found = []
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = path.name.rpartition("-")[2]
        if path.is_dir() and step.isdigit():
            found.append((int(step), path))
    return [path for _, path in sorted(found)]
