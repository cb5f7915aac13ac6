"""Handle the signals that ask a command to stop: Ctrl-C, `kill`, and the end of the terminal."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# SIGHUP says that the terminal was closed. Windows has no such signals.
_HANGUP: signal.Signals | None = None
_UNIX_SIGNALS: tuple[signal.Signals, ...] = ()
if sys.platform != "win32":
    _HANGUP = signal.SIGHUP
    _UNIX_SIGNALS = (signal.SIGHUP, signal.SIGQUIT)


def unix_stop_signals() -> list[signal.Signals]:
    """SIGHUP and SIGQUIT, except where this process was started to ignore them, as `nohup` does."""
    return [number for number in _UNIX_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def handle_stop_signals(stop: Callable[[bool], None]) -> Iterator[None]:
    """Call a function when the user asks to stop: by SIGINT, SIGTERM, SIGQUIT or SIGHUP.

    SIGHUP never counts as a repetition: the system and the shell both send it when a terminal is closed, and systemd
    sends it along with SIGTERM.

    Args:
        stop: Gets whether the user has asked before.
    """
    is_stopping = has_asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping, has_asked
        by_hangup = number == _HANGUP
        if by_hangup:
            _discard_output_of_lost_terminal()
        before, is_stopping = is_stopping, True
        again, has_asked = has_asked and not by_hangup, has_asked or not by_hangup
        if again or not before:
            stop(again)

    numbers = (signal.SIGINT, signal.SIGTERM, *unix_stop_signals())
    handlers = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _discard_output_of_lost_terminal() -> None:
    """Discard what is printed to a terminal that is gone: it could not be written, and the error would end the work."""
    for descriptor in (1, 2):
        try:
            os.get_terminal_size(descriptor)
        except OSError as error:
            if error.errno == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
