"""Run the gateway under uvicorn: parse requests strictly, bind the socket, shut down gracefully, tune the interpreter.

Undocumented parts of uvicorn are used: its protocol for httptools is subclassed, and private attributes of the
protocol and of the request cycle are read, because uvicorn has no settings for these limits. If it stopped calling one
of these methods, a limit would silently disappear. Therefore the gateway starts only with versions that were tested.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any, cast

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from es_sbert.errors import Overloaded, UsageError
from es_sbert.gateway.admission import HEALTH_PATHS, ConnectionLimiter
from es_sbert.gateway.errors import engine_error, error_body, http_status
from es_sbert.gateway.server.app import Gateway
from es_sbert.gateway.settings import GatewaySettings, ListenSettings
from es_sbert.installation import install_command
from es_sbert.messages import log_event, setting, shorten
from es_sbert.stop_signals import unix_stop_signals

logger = logging.getLogger(__name__)

# The last minor version whose internals were tested; pyproject.toml has the same bound.
TESTED_UVICORN = (0, 54)


def check_uvicorn() -> None:
    """Check that the installed uvicorn was tested.

    Raises:
        UsageError: it is newer.
    """
    if tuple(map(int, uvicorn.__version__.split(".")[:2])) > TESTED_UVICORN:
        newest = ".".join(map(str, TESTED_UVICORN))
        raise UsageError(
            f"uvicorn {uvicorn.__version__} is not supported: the gateway's limits rely on internals of uvicorn that "
            "were not tested in this version",
            f"Install a tested version: {install_command(f'uvicorn=={newest}.*')}",
        )


_HEALTH_PAGES = tuple(page.encode() for page in HEALTH_PATHS)
# Engines refuse heads of more than 16 kB themselves.
MAX_HEAD_BYTES = 64 * 1024
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_UPGRADE = re.compile(rb"\r\nUpgrade:[^\r\n]*", re.IGNORECASE)


class RejectedRequestError(Exception):
    """A request is rejected. The parser reports it as an invalid request."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """A client's connection.

    Args:
        head_seconds: Timeout of a request's head, and of the rest of a body after the response.
        connections: Counts and limits the connections of the server.
        allowed_hosts: Names by which the gateway may be called, in lower case; empty for any.
        server: Arguments of uvicorn's protocol.

    Attributes:
        address: The client's IP address.
    """

    def __init__(
        self,
        head_seconds: float,
        connections: ConnectionLimiter,
        allowed_hosts: frozenset[str],
        **server: Any,
    ) -> None:
        super().__init__(**server)
        self._head_seconds = head_seconds
        self._connections = connections
        self._allowed_hosts = allowed_hosts
        # Whether a request has begun, and whether its head is incomplete.
        self._begun = False
        self._in_head = True
        self._head_bytes = 0
        self._held = b""  # the beginning of an incomplete head
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._reject("the request is not valid HTTP, or is ambiguous")
        self.address = ""
        self._surplus: Overloaded | None = None  # the error for any request but a health check

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._start_head_timer()
        self._surplus = self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._head_timer = _cancel(self._head_timer)
        self._rest_timer = _cancel(self._rest_timer)
        super().connection_lost(exc)

    def refuse(self, error: Overloaded) -> None:
        """Respond with an error and close the connection."""
        self._refusal = (HTTPStatus(http_status(error)), error_body(error))
        self.send_400_response("")

    def close_after_response(self) -> None:
        """Close the connection after its response, unless that has started: then it is too late to announce the close.

        An idle connection stays open for one more request.
        """
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def data_received(self, data: bytes) -> None:
        if not self._begun:
            data = self._held + data
            if not _has_complete_head(data) and len(data) <= MAX_HEAD_BYTES:
                self._held = data
                self._unset_keepalive_if_required()
                if self._head_timer is None:
                    self._start_head_timer()
                return
            data, self._held = normalize_head(data), b""
        super().data_received(data)
        if not self._in_head:
            self._head_timer = _cancel(self._head_timer)
            return
        # The parser reports a header only when it is complete, so bytes are counted too.
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._too_long()
            self.send_400_response("")
        elif self._head_timer is None:
            self._start_head_timer()

    def on_message_begin(self) -> None:
        self._begun = self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Headers after the body are trailers. As headers, they would bypass the checks of a proxy before this one.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            raise self._too_long()
        is_health = self.url.partition(b"?")[0] in _HEALTH_PAGES
        self._check_host(is_health=is_health)
        if self._surplus is not None and not is_health:
            self._refusal = HTTPStatus(http_status(self._surplus)), error_body(self._surplus)
            raise RejectedRequestError
        if b"#" in self.url:
            raise self._reject("the path of the request contains #; write it as %23")
        if self.parser.get_method() == b"CONNECT":
            raise self._reject("CONNECT is not supported: this gateway forwards to a single engine")
        if self.parser.should_upgrade():
            # The parser would drop the body. `normalize_head` removes the header only from a head that arrives at once.
            raise self._reject("protocol upgrades are not supported; send the request without the header Upgrade")
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            raise self._reject(
                "the only supported transfer encoding is chunked; compress the body with Content-Encoding"
            )
        self._in_head = False
        super().on_headers_complete()
        if self._surplus is not None or self._connections.draining:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._begun = False
        super().on_message_complete()
        if self._rest_timer is not None:
            # uvicorn drops the timer of idle connections while the rest of the body arrives.
            self._rest_timer = _cancel(self._rest_timer)
            self._start_head_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # After an early response, the rest of the body must not keep the connection open forever.
        if self._begun and not self._in_head and self.cycle.response_complete and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(self._head_seconds, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Respond with an error in the engine's format and close the connection.

        Args:
            msg: uvicorn's message, which has no remedy and is not used.
        """
        if self.transport.is_closing():
            return
        status, body = self._refusal
        head = (
            f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _check_host(self, *, is_health: bool) -> None:
        """Refuse a request without exactly one Host (RFC 9112, 3.2), or with one that is not allowed.

        A health check may name any host: it is often sent to an IP address.

        Raises:
            RejectedRequestError: the request is refused.
        """
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            raise self._reject(f"the request has {len(hosts) or 'no'} Host headers; send exactly one")
        host = host_name(hosts[0]) if hosts else ""
        if self._allowed_hosts and not is_health and host not in self._allowed_hosts:
            reason = f"the host name {shorten(host, 100)!r} is not allowed; the operator sets names with --allowed-host"
            raise self._reject(reason, HTTPStatus.MISDIRECTED_REQUEST)

    def _reject(self, reason: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> RejectedRequestError:
        error = {"error": engine_error("es_sbert_bad_request", reason), "status": status}
        self._refusal = status, orjson.dumps(error)
        return RejectedRequestError()

    def _too_long(self) -> RejectedRequestError:
        reason = f"path and headers are longer than {MAX_HEAD_BYTES:,} bytes"
        return self._reject(reason, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._head_seconds, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._reject(f"no request arrived for {self._head_seconds:g} seconds", HTTPStatus.REQUEST_TIMEOUT)
        self.send_400_response("")


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer; return what to keep in its place."""
    if timer is not None:
        timer.cancel()
    return None


def limited_protocol(
    head_seconds: float,
    connections: ConnectionLimiter,
    allowed_hosts: Iterable[str] = (),
) -> type[asyncio.Protocol]:
    """Create what uvicorn's setting `http` takes; see `LimitedHttpProtocol`."""
    hosts = frozenset(host.lower() for host in allowed_hosts)
    made: Callable[..., LimitedHttpProtocol] = partial(LimitedHttpProtocol, head_seconds, connections, hosts)
    return cast(type[asyncio.Protocol], made)  # uvicorn calls it as a class


def host_name(value: bytes) -> str:
    """Return the host name in a Host header (`search.example:9280`, `[::1]:9280`), in lower case, without the port."""
    host = value.decode("latin-1").strip().lower()
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]


def _has_complete_head(data: bytes) -> bool:
    """Whether the head is complete, or cannot become valid."""
    if b"\r\n\r\n" in data or b"\n\n" in data:
        return True
    start = data.lstrip()[:1]
    return bool(start) and not start.isalpha()


def normalize_head(data: bytes) -> bytes:
    """Change the beginning of a request so that the parser accepts it.

    Non-ASCII bytes in the first line are percent-encoded: curl and others send UTF-8 in paths and queries, which
    engines accept and the parser does not. `Upgrade` is dropped, as a server may (RFC 9110, 7.8): Java's client offers
    HTTP/2 with it, and the parser would drop the request's body.

    Args:
        data: A complete head, and any data after it.
    """
    end = data.find(b"\r\n")
    line = data[: max(end, 0)]
    if not line.isascii():
        data = _NOT_ASCII.sub(lambda match: b"%%%02X" % match[0][0], line) + data[end:]
    if b"pgrade" not in data and b"PGRADE" not in data:
        return data
    head, between, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"", head) + between + rest


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
    logging.getLogger("uvicorn.error").addFilter(
        # For a truncated response, `forward` logs a line with the path instead.
        lambda record: not record.getMessage().startswith("ASGI callable returned without completing response")
    )
    try:
        if listen.certificate is not None:
            # uvicorn would ask for the password of a key, and wait.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(listen.certificate, listen.key, password="")
        config.load()
    except OSError as error:
        raise UsageError(
            f"the TLS certificate {listen.certificate} or its key cannot be used: {error}",
            f"Set {setting('certificate')} and {setting('key')} to PEM files that belong together and that this user "
            "may read. The key must not have a password.",
        ).about("certificate", listen.certificate) from error
    return DrainingServer(config, connections, listen.drain_seconds)


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
            f"Set {setting('host')} to an address of this machine, and {setting('port')} to a free port.",
        ).about("port", listen.port) from error


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
