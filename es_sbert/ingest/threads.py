"""Stages as threads: the first that fails ends all, and its error comes out where the load was started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from es_sbert.ingest.channel import Aborted, Channel
from es_sbert.ingest.control import Control

_TICK_SECONDS = 0.2
_FAREWELL_SECONDS = 1.0


class Stages:
    """Threads joined by channels.

    Usage:
        stages = Stages(control)
        lines: Channel[str] = stages.channel(8)
        stages.start("read", lambda: read_into(lines), closes=[lines])
        stages.start("write", lambda: write_from(lines))
        stages.wait()
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._channels: list[Channel[Any]] = []
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def channel(self, capacity: int, producers: int = 1) -> Channel[Any]:
        """A channel that is aborted with the stages."""
        made: Channel[Any] = Channel(capacity, producers)
        self._channels.append(made)
        return made

    def start(self, name: str, work: Callable[[], None], closes: list[Channel[Any]] | None = None) -> None:
        """Run `work` in a thread of its own; when it ends, it counts as one producer less of `closes`."""

        def body() -> None:
            try:
                work()
            except Aborted:
                pass  # another stage failed and has left its error
            except BaseException as error:
                self._fail(error)
            else:
                for channel in closes or []:
                    channel.close()

        # Daemons: a thread that hangs in a request must not keep a process alive that was told twice to end.
        thread = threading.Thread(target=body, name=f"ingest-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._abort()

    def _abort(self) -> None:
        self._control.abort()
        for channel in self._channels:
            channel.abort()

    def wait(self, tick: Callable[[], None] = lambda: None) -> None:
        """Wait for all stages, calling `tick` several times a second in this thread and once when all have ended well.

        Raises:
            BaseException: the first error of any stage, or one that reached this thread (KeyboardInterrupt);
                all stages are told to end.
        """
        try:
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(_TICK_SECONDS)
                    tick()
        except BaseException:
            self._abort()
            for thread in self._threads:
                # Time to let go of files; one that hangs in a request is not waited for.
                thread.join(_FAREWELL_SECONDS)
            raise
        if self._error is not None:
            raise self._error
        # The end is shown too, also of work that was done before anyone looked.
        tick()
