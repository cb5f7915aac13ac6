"""Servers that several processes of a test run share: one start, one stop, whatever happens to the processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.shared import alone_on_engines, shared

ROOT = Path(__file__).parents[2]


def stop(server: dict[str, Any]) -> None:
    with Path(server["log"]).open("a") as log:
        log.write("stopped\n")


def test_first_user_starts_and_last_user_stops_the_server(tmp_path: Path) -> None:
    log, place = tmp_path / "log", tmp_path / "run" / "server.json"
    place.parent.mkdir()

    def start() -> dict[str, Any]:
        with log.open("a") as written:
            written.write("started\n")
        return {"log": str(log)}

    with shared(place, start, stop) as one, shared(place, start, stop) as two:
        assert one == two
        assert log.read_text() == "started\n"
    with pytest.raises(ZeroDivisionError), shared(place, start, stop):
        _ = 1 // 0
    assert log.read_text() == "started\nstopped\n" * 2
    assert list(place.parent.iterdir()) == []


def test_server_whose_users_are_killed_is_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)  # what waits for the server's end gets it here
    program = f"""
import os, pathlib, signal
from tests.shared import shared
from tests.unit.test_shared_servers import stop
with shared(pathlib.Path({str(tmp_path / "server.json")!r}), lambda: {{"log": {str(log)!r}}}, stop):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert log.read_text() == "stopped\n"


def test_lock_is_held_until_the_last_block_ends(tmp_path: Path) -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(alone_on_engines(tmp_path))
    second.enter_context(alone_on_engines(tmp_path))
    assert not _is_free(tmp_path)
    first.close()
    assert not _is_free(tmp_path)
    second.close()
    assert _is_free(tmp_path)


def _is_free(folder: Path) -> bool:
    """Whether another process would get the lock: the system does not tell who asks, but which file it opened."""
    [lock] = folder.iterdir()
    with lock.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
