"""Servers that the processes of one test run use together: started by the first, stopped by the last.

For servers whose tests keep to names of their own. What compares the whole of an engine with itself, or changes it, has
one for its process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from es_sbert.filesystem import file_lock

Json = dict[str, Any]


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run have in common, and no other run."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def shared(place: Path, start: Callable[[], Json], stop: Callable[[Json], None]) -> Iterator[Json]:
    """A server while the block runs.

    Args:
        place: File of the note that says what runs, and how many use it.
        start: Starts the server, and describes it so that any process can stop it.
        stop: Stops what `start` has described.
    """
    lock = place.with_suffix(".lock")
    with file_lock(lock, lambda: None):
        note = json.loads(place.read_text()) if place.exists() else {"users": 0, "server": start()}
        note["users"] += 1
        place.write_text(json.dumps(note))
    server: Json = note["server"]
    try:
        yield server
    finally:
        with file_lock(lock, lambda: None):
            note = json.loads(place.read_text())
            note["users"] -= 1
            place.write_text(json.dumps(note))
            if not note["users"]:
                place.unlink()
                stop(server)
