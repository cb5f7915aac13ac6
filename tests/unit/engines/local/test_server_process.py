"""Processes are recognized, stopped, and never mistaken for one another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.engines.local import server_process
from es_sbert.engines.local.server_process import server_account
from es_sbert.errors import LocalEngineError
from tests.raised import raises_as_recorded

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
# Ignores SIGTERM and has a child, as a launcher that hangs has its server.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
# Starts a server, and ends before it.
STARTER = """
import sys
from pathlib import Path
from es_sbert.engines.local import server_process

folder = Path(sys.argv[1])
command = [sys.executable, "-c", "import time; time.sleep(600)"]
pid = server_process.start_process(command, folder=folder, environment={}, console=folder / "log", account=None)
print(pid, server_process.process_identity(pid))
"""


def start(tmp_path: Path, program: str) -> tuple[int, str, str]:
    """Process id, identity and first line printed by a Python program."""
    console = tmp_path / "console.log"
    pid = server_process.start_process(
        [sys.executable, "-c", program], folder=tmp_path, environment={}, console=console, account=None
    )
    until(lambda: console.read_text().endswith("\n"))
    started = server_process.process_identity(pid)
    assert started is not None
    return pid, started, console.read_text().strip()


def until(true: Callable[[], bool]) -> None:
    """Wait for what comes in a moment; the timeout of the test ends a wait for what never comes."""
    while not true():
        time.sleep(0.01)


def test_process_identity_is_stable_and_unique(tmp_path: Path) -> None:
    pid, started, _ = start(tmp_path, SLEEPER)
    assert server_process.process_identity(pid) == started
    assert server_process.process_identity(os.getpid()) not in (None, started)
    server_process.stop_process(pid, started, grace=10)
    assert server_process.process_identity(pid) is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)  # of a zombie, it would succeed


def test_processes_are_identified_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path != Path("/proc/self/stat") and exists(path))
    pid, started, child = start(tmp_path, STUBBORN)
    assert server_process.process_identity(int(child)) is not None
    server_process.stop_process(pid, started, grace=0)
    assert server_process.process_identity(pid) is server_process.process_identity(int(child)) is None


def test_stop_does_not_kill_a_reused_pid(tmp_path: Path) -> None:
    pid, started, _ = start(tmp_path, SLEEPER)
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) as stranger:
        server_process.stop_process(stranger.pid, "the start of a server long gone", grace=0)
        assert stranger.poll() is None
        stranger.terminate()
    server_process.stop_process(pid, started, grace=10)


def test_unresponsive_process_is_killed_with_its_children(tmp_path: Path) -> None:
    pid, started, child = start(tmp_path, STUBBORN)
    child_started = server_process.process_identity(int(child))
    assert child_started is not None
    begin = time.monotonic()
    server_process.stop_process(pid, started, grace=0.2)
    assert 0.2 <= time.monotonic() - begin < 300  # its own end would come after 600
    assert server_process.process_identity(pid) is None
    assert server_process.process_identity(int(child)) != child_started


def test_process_outliving_its_parent_raises_no_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", STARTER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    pid, started = done.stdout.split()
    assert server_process.process_identity(int(pid)) == started
    server_process.stop_process(int(pid), started, grace=10)
    assert server_process.process_identity(int(pid)) is None
    assert (done.returncode, done.stderr) == (0, "")


def test_only_root_starts_servers_as_another_user() -> None:
    account = server_account()
    if os.geteuid() != 0:
        assert account is None
        return
    assert account is not None
    assert account.pw_uid != 0
    with raises_as_recorded(LocalEngineError):
        server_account("no-such-user-here")
