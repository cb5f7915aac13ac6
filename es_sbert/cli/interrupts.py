"""Handle Ctrl-C and other stop signals: the first one stops a command gracefully, the second one immediately."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from es_sbert.stop_signals import handle_stop_signals

if TYPE_CHECKING:
    from es_sbert.ingest.load_threads import LoadControl


# Seconds that the last line may take: another thread may hold the lock, or the pipe may be full.
_LAST_MESSAGE_SECONDS = 1.0
_STOP_MESSAGE = (
    "Stopping: finished vectors are sent, the rest is left for the next run. Interrupt again to end at once."
)
EXIT_INTERRUPTED = 130  # exit code of a command that the user stopped


@contextmanager
def handle_signals(
    control: LoadControl, say: Callable[[str], None], exit_warning: Callable[[], str] = str
) -> Iterator[None]:
    """Stop the command gracefully at the first signal, and end the process at the second.

    The second signal is as safe as `kill -9`: files and the index are consistent at any time. No thread is waited for,
    not even one that hangs in a request.

    Args:
        say: Shows a line.
        exit_warning: Returns a sentence to print if the process ends at once; empty for nothing.
    """

    def interrupt(again: bool) -> None:
        if again:
            line = f"Stopped at once: the same command resumes where it stopped. {exit_warning()}".rstrip()
            last = threading.Thread(target=say, args=(line,), daemon=True)
            last.start()
            last.join(_LAST_MESSAGE_SECONDS)
            os._exit(EXIT_INTERRUPTED)
        control.interrupt()
        say(_STOP_MESSAGE)

    with handle_stop_signals(interrupt):
        yield


@contextmanager
def interrupt_by_any_signal() -> Iterator[None]:
    """Raise KeyboardInterrupt for every stop signal, not only for Ctrl-C, so that temporary indices are deleted."""

    def interrupt(again: bool) -> None:
        raise KeyboardInterrupt

    with handle_stop_signals(interrupt):
        yield
