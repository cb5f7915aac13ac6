"""A command in a pseudo-terminal, and what its screen shows over time."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyte

_POLL_SECONDS = 0.05
# What is written at once may come in several parts.
_SETTLE_SECONDS = 0.01


@dataclass(frozen=True)
class Frame:
    """The screen at a moment: its rows, without the empty ones at its end."""

    rows: tuple[str, ...]


@dataclass(frozen=True)
class TerminalRun:
    """A command that ended."""

    code: int
    frames: list[Frame]


def run_in_terminal(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    columns: int = 80,
    rows: int = 40,
    press: Callable[[Frame], bytes] = lambda frame: b"",
    seconds: float = 300,
) -> TerminalRun:
    """Run a command until it ends."""
    process, terminal = pty.fork()
    if process == 0:
        # Ctrl-C interrupts it even if these tests run in the background of a shell, which has them ignore it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execvpe(arguments[0], list(arguments), {**environment, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    deadline = time.monotonic() + seconds
    frames: list[Frame] = []
    try:
        while (data := _read(terminal, deadline)) is not None:
            stream.feed(data)
            shown = [row.rstrip() for row in screen.display]
            while shown and not shown[-1]:
                shown.pop()
            if not frames or frames[-1].rows != tuple(shown):
                frames.append(Frame(tuple(shown)))
                os.write(terminal, press(frames[-1]))
    except TimeoutError:
        os.kill(process, 9)
        raise
    finally:
        _, status = os.waitpid(process, 0)
        os.close(terminal)
    return TerminalRun(os.waitstatus_to_exitcode(status), frames)


def _read(terminal: int, deadline: float) -> bytes | None:
    """What the command wrote next; None when it has closed the terminal."""
    while not select.select([terminal], [], [], _POLL_SECONDS)[0]:
        if time.monotonic() > deadline:
            raise TimeoutError("the command in the pseudo-terminal did not end")
    data = b""
    try:
        while not data or select.select([terminal], [], [], _SETTLE_SECONDS)[0]:
            part = os.read(terminal, 1 << 16)
            data += part
            if not part:
                break
    except OSError:  # how Linux tells that the other side is closed
        pass
    return data or None
