"""Servers that the processes of one test run use together: started by the first, stopped by the last.

Their tests keep to names of their own. What changes or compares the whole of an engine does so inside
`alone_on_engines`.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from es_sbert.filesystem import file_lock

Json = dict[str, Any]

_ROOT = Path(__file__).parents[1]


def folder_of_run(factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run have in common, and no other run."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def shared(place: Path, start: Callable[[], Json], stop: Callable[[Json], None]) -> Iterator[Json]:
    """A server while the block runs.

    If all processes that use it are killed, it is stopped by a process that watches them (`server_watcher.py`).
    """
    lock, users = place.with_suffix(".lock"), place.with_suffix(".users")
    with file_lock(lock, lambda: None):
        # Held by every process that uses the server, until it ends in whatever way.
        held = os.open(users, os.O_RDWR | os.O_CREAT)
        fcntl.flock(held, fcntl.LOCK_SH)
        try:
            if place.exists():
                note = json.loads(place.read_text())
            else:
                note = {"users": 0, "server": start(), "stop": f"{stop.__module__}:{stop.__qualname__}"}
            note["users"] += 1
            place.write_text(json.dumps(note))
            if note["users"] == 1:
                _watch(place)
        except BaseException:
            os.close(held)
            raise
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
                users.unlink()
                stop(server)
        os.close(held)


def _watch(place: Path) -> None:
    """Start the process that stops a server whose users were killed. It outlives this one, in a session of its own."""
    from es_sbert.engines.local.server_process import start_process

    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environment.get("PYTHONPATH")]))
    start_process(
        [sys.executable, "-S", str(Path(__file__).with_name("server_watcher.py")), str(place)],
        folder=_ROOT,
        environment=environment,
        console=Path(os.devnull),
        account=None,
    )


def stop_forsaken(place: Path) -> None:
    """Stop a server whose users have ended without stopping it."""
    note = json.loads(place.read_text())
    module, _, function = note["stop"].partition(":")
    getattr(importlib.import_module(module), function)(note["server"])
    place.unlink()


_alone: list[int] = []  # how many blocks hold the lock, as copies of its descriptor


@contextmanager
def alone_on_engines(folder: Path) -> Iterator[None]:
    """While the block runs, no other process of the run is in such a block.

    For what changes something of an engine that is no index of the test's own, makes its health red, or looks at
    either. Blocks of one process may overlap.
    """
    if _alone:
        descriptor = os.dup(_alone[0])
    else:
        descriptor = os.open(folder / "alone.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    _alone.append(descriptor)
    try:
        yield
    finally:
        _alone.remove(descriptor)
        os.close(descriptor)  # the system releases the lock with the last copy
