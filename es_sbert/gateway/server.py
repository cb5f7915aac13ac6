"""Run the gateway under uvicorn: create the server, bind the socket, shut down gracefully, tune the interpreter.

At a shutdown, first readiness fails, requests are still answered for a while, and then the server stops.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from es_sbert.errors import UsageError
from es_sbert.gateway.admission import ConnectionLimiter
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.http_protocol import check_uvicorn, limited_protocol
from es_sbert.gateway.settings import GatewaySettings, ListenSettings
from es_sbert.messages import log_event
from es_sbert.stop_signals import unix_stop_signals

logger = logging.getLogger(__name__)

# Time for requests in progress at shutdown.
SHUTDOWN_SECONDS = 30
_SWITCH_INTERVAL_SECONDS = 0.0005
_GC_THRESHOLDS = (1000, 10, 1000)  # as gc.set_threshold takes them


class DrainingServer(uvicorn.Server):
    """A server that drains on SIGTERM before it shuts down.

    A second SIGTERM ends the draining, and Ctrl-C shuts down at once. The shutdown itself is uvicorn's: it stops
    listening and waits for the requests in progress.

    Args:
        config: Configuration of the server.
        limiter: Told when draining begins.
        drain_seconds: Time from SIGTERM until the server stops listening; 0 to stop at once.
    """

    def __init__(self, config: uvicorn.Config, limiter: ConnectionLimiter, drain_seconds: float) -> None:
        super().__init__(config)
        self._limiter = limiter
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
            if not self._limiter.draining:
                self._start_draining()
            if time.monotonic() >= self._drain_until:
                self.should_exit = True
        should_exit = await super().on_tick(counter)
        if should_exit:
            notify_service_manager("STOPPING=1", "STATUS=waiting for the requests in progress")
        return should_exit

    def _start_draining(self) -> None:
        self._limiter.draining = True
        connections: set[Any] = self.server_state.connections
        for connection in connections:
            connection.close_after_response()
        notify_service_manager("STOPPING=1", "STATUS=answering requests until load balancers have noticed the shutdown")
        message = f"shutting down in {self._drain_seconds:g} seconds: /readyz fails, requests are still answered"
        log_event("draining", message, text=message, seconds=self._drain_seconds)


def create_server(settings: GatewaySettings, on_loaded: Callable[[], None] | None = None) -> DrainingServer:
    """Create a server that is ready to `run()`.

    It adds no Server or Date header to the engine's responses, and logs neither addresses nor queries.

    Args:
        on_loaded: Called once the default model is loaded or has failed to load.

    Raises:
        UsageError: invalid settings, for example a certificate or key that cannot be read; or a version of uvicorn
            that is not supported.
    """
    check_uvicorn()
    listen, connections = settings.listen, ConnectionLimiter(settings.limits)
    config = uvicorn.Config(
        Gateway(settings, connections, on_loaded),
        host=listen.host,
        port=listen.port,
        http=limited_protocol(settings.limits.idle_seconds, connections, listen.allowed_hosts),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(settings.limits.idle_seconds),
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_not_cut_off)
    try:
        if listen.certificate is not None:
            # uvicorn would ask for the password of a key, and wait.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(listen.certificate, listen.key, password="")
        config.load()
    except OSError as error:
        raise UsageError(
            f"the TLS certificate {listen.certificate} or its key cannot be used: {error}",
            "Set `certificate` and `key` to PEM files that belong together and that this user may read. The key must "
            "not have a password.",
        ) from error
    return DrainingServer(config, connections, listen.drain_seconds)


def _is_not_cut_off(record: logging.LogRecord) -> bool:
    """Whether to log a line of uvicorn: for a truncated response, `forward` logs a line with the path instead."""
    return not record.getMessage().startswith("ASGI callable returned without completing response")


def tune_interpreter() -> None:
    """Tune thread switching and garbage collection for low latency, in a process that only serves.

    By default, a thread that parses a large request may hold the interpreter lock for five milliseconds whenever the
    event loop needs it, which is several times per request. And the many objects of a large request trigger full
    collections, which stop every thread for tens of milliseconds and free nothing: JSON has no cycles. Collections of
    young objects stay small, so that each is short.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    gc.set_threshold(*_GC_THRESHOLDS)


def freeze_objects() -> None:
    """Exclude all current objects from garbage collection, in a process that does nothing but serve.

    Modules and models live as long as the process, and a collection over all of them stops every request for tens of
    milliseconds.
    """
    gc.collect()
    gc.freeze()


def bind_socket(listen: ListenSettings) -> socket.socket:
    """Bind the listening socket.

    Raises:
        UsageError: the address is in use, or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # the rest repeats the address
        raise UsageError(
            f"the gateway cannot listen on {listen.host}, port {listen.port}: {reason}",
            "Set `host` to an address of this machine, and `port` to a free port.",
        ) from error


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
