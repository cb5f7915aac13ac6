"""The graceful shutdown of the server.

At a shutdown, first readiness fails, requests are still answered for a while, and then the server stops.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn

from es_sbert.messages import log_event
from es_sbert.stop_signals import unix_stop_signals

logger = logging.getLogger(__name__)


def notify_service_manager(*assignments: str) -> None:
    """Send a notification to systemd; without it (no `NOTIFY_SOCKET`), do nothing.

    A notification that cannot be sent is logged: systemd then ends the service by its own timeout.

    Args:
        assignments: `READY=1`, `STOPPING=1`, `STATUS=…`.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or sys.platform == "win32":  # Windows has neither systemd nor such sockets
        return
    if address.startswith("@"):  # in Linux's abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(assignments).encode(), address)
    except OSError as error:
        logger.warning(
            "cannot send %s to systemd: %s. Use Type=exec if notifications are not possible.", assignments[0], error
        )


@dataclass
class ShutdownState:
    """The state of the server's shutdown, for the application and its connections.

    Attributes:
        draining: Whether the server is about to end. Requests are still answered, but `/readyz` fails, and each
            response closes its connection, so that clients open the next one to another gateway.
    """

    draining: bool = False


class DrainingServer(uvicorn.Server):
    """A server that drains on SIGTERM before it shuts down.

    A second SIGTERM ends the draining, and Ctrl-C shuts down at once. The shutdown itself is uvicorn's: it stops
    listening and waits for the requests in progress.

    Args:
        config: Configuration of the server.
        state: Updated when draining begins.
        drain_seconds: Time from SIGTERM until the server stops listening; 0 to stop at once.
    """

    def __init__(self, config: uvicorn.Config, state: ShutdownState, drain_seconds: float) -> None:
        super().__init__(config)
        self._state = state
        self._drain_seconds = drain_seconds
        self._drain_until: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGTERM and SIGINT. Called by the interpreter between any two instructions."""
        if sig == signal.SIGTERM and self._drain_seconds and self._drain_until is None and self.started:
            self._drain_until = time.monotonic() + self._drain_seconds
        else:
            super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGHUP and SIGQUIT, which uvicorn does not handle, like SIGTERM."""

        def terminate(number: int, frame: FrameType | None) -> None:
            self.handle_exit(signal.SIGTERM, frame)

        is_main = threading.current_thread() is threading.main_thread()
        with super().capture_signals():
            before = {number: signal.signal(number, terminate) for number in unix_stop_signals() if is_main}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    async def on_tick(self, counter: int) -> bool:
        """Begin and end draining; called by uvicorn ten times a second.

        Returns:
            Whether the server shuts down.
        """
        if self._drain_until is not None:
            if not self._state.draining:
                self._start_draining()
            if time.monotonic() >= self._drain_until:
                self.should_exit = True
        should_exit = await super().on_tick(counter)
        if should_exit:
            notify_service_manager("STOPPING=1", "STATUS=waiting for the requests in progress")
        return should_exit

    def _start_draining(self) -> None:
        self._state.draining = True
        connections: set[Any] = self.server_state.connections
        for connection in connections:
            connection.close_after_response()
        notify_service_manager("STOPPING=1", "STATUS=answering requests until load balancers have noticed the shutdown")
        message = f"shutting down in {self._drain_seconds:g} seconds: /readyz fails, requests are still answered"
        log_event("draining", message, text=message, seconds=self._drain_seconds)
