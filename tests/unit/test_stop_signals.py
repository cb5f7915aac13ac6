"""SIGHUP and SIGQUIT stop a command as Ctrl-C does, also when the terminal is gone, and not under `nohup`."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from es_sbert.stop_signals import handle_stop_signals

_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Waits for a stop, then reports to a terminal, and does its last work after that.
_PROGRAM = """
import sys, time
from pathlib import Path
from es_sbert.cli.interrupts import handle_signals
from es_sbert.cli.output import print_message
from es_sbert.ingest.load_threads import LoadControl

control = LoadControl()
with handle_signals(control, print_message):
    Path(sys.argv[1], "started").touch()
    while not control.stop_reading.wait(0.05):
        pass
    time.sleep(0.3)
    print_message("the writes are accepted again")
    Path(sys.argv[1], "released").touch()
"""


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """The tests, and the processes that they start, ignore no signal, even if they run under `nohup`."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _ALL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("sent", "calls"),
    [
        ([signal.SIGQUIT, signal.SIGINT], [False, True]),
        ([signal.SIGHUP, signal.SIGHUP], [False]),  # of the system and of the shell
        ([signal.SIGTERM, signal.SIGHUP], [False]),  # of systemd
        ([signal.SIGHUP, signal.SIGTERM, signal.SIGTERM], [False, True]),
    ],
)
def test_hangup_is_never_a_repetition(sent: list[signal.Signals], calls: list[bool]) -> None:
    seen: list[bool] = []
    with handle_stop_signals(seen.append):
        for number in sent:
            signal.raise_signal(number)
    assert seen == calls
    assert signal.getsignal(signal.SIGHUP) is signal.default_int_handler


def test_ignored_hangup_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    seen: list[bool] = []
    with handle_stop_signals(seen.append):
        signal.raise_signal(signal.SIGHUP)
        assert not seen
        signal.raise_signal(signal.SIGTERM)
    assert seen == [False]


def test_closed_terminal_stops_a_command_that_then_reports(tmp_path: Path) -> None:
    process, terminal = pty.fork()
    if process == 0:
        for number in _ALL:
            signal.signal(number, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, "-c", _PROGRAM, str(tmp_path)])
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.close(terminal)
        _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (tmp_path / "released").exists()
