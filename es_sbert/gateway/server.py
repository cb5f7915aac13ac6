"""Run the gateway under uvicorn, with stricter HTTP parsing, size limits and timeouts, as a proxy needs them."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import sys
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from es_sbert.errors import Overloaded, UsageError
from es_sbert.gateway.admission import ConnectionLimiter
from es_sbert.gateway.app import HEALTH_PATHS, create_app
from es_sbert.gateway.errors import error_body, http_status
from es_sbert.gateway.settings import GatewaySettings, Limits, ListenSettings

# Callers get this long to receive their answers when the gateway is told to end.
_SHUTDOWN_SECONDS = 30
_SWITCH_INTERVAL_SECONDS = 0.0005
_GC_THRESHOLDS = (1000, 10, 1000)  # as gc.set_threshold takes them


def create_server(settings: GatewaySettings, on_loaded: Callable[[], None] | None = None) -> uvicorn.Server:
    """A server that is ready to `run()`.

    It adds nothing to the engine's answers: no Server header, no date. What it logs holds no addresses and no queries.

    Args:
        on_loaded: Called once the default model is in memory.

    Raises:
        UsageError: settings that cannot be used, among them a certificate or key.
    """
    listen, connections = settings.listen, ConnectionLimiter(settings.limits)
    pages = [listen.path_prefix + page for page in HEALTH_PATHS]
    config = uvicorn.Config(
        create_app(settings, connections, on_loaded),
        host=listen.host,
        port=listen.port,
        http=limited_protocol(settings.limits.idle_seconds, connections, pages),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(settings.limits.idle_seconds),
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
    )
    try:
        config.load()
    except OSError as error:
        raise UsageError(
            f"the TLS certificate {listen.certificate} or its key cannot be used: {error}",
            "Give PEM files that belong together, which this user may read: --tls-certificate and --tls-key.",
        ) from error
    return uvicorn.Server(config)


def tune_interpreter() -> None:
    """Tune thread switching and garbage collection for low latency, in a process that does nothing but serve.

    By default, a thread that parses a large request may hold the interpreter lock for five milliseconds whenever the
    event loop needs it, which is several times per request. And the many objects of a large request trigger full
    collections, which stop every thread for tens of milliseconds and free nothing: JSON has no cycles. Collections of
    young objects stay small, so that each is short.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    gc.set_threshold(*_GC_THRESHOLDS)


def freeze_objects() -> None:
    """Leave what is in memory now out of later garbage collections, for a process that does nothing but serve.

    Modules and models live as long as the process, and a collection that looks at all of them stops every request for
    tens of milliseconds.
    """
    gc.collect()
    gc.freeze()


def bind_socket(listen: ListenSettings) -> socket.socket:
    """The socket that callers find the server at.

    Raises:
        UsageError: the address is not one of this machine, or is taken.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # the rest says the address again
        raise UsageError(
            f"nothing can listen on {listen.host}, port {listen.port}: {why}",
            "Give an address of this machine and a port that is free: --host and --port.",
        ) from error


# Engines refuse heads of more than 16 kB themselves.
MAX_HEAD_BYTES = 64 * 1024
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_UPGRADE = re.compile(rb"\r\nUpgrade:[^\r\n]*", re.IGNORECASE)


class RejectedRequestError(Exception):
    """A request that is not taken, and why; the parser hands it on as a request it cannot read."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection of a caller.

    Attributes:
        head_seconds: How long a request's head may take to arrive, and the rest of a body that was answered before its
            end.
        counted: All connections of the server.
        health_pages: Paths that are answered when there are too many.
        address: The caller's.
    """

    head_seconds = 75.0
    counted = ConnectionLimiter(Limits())
    health_pages: frozenset[bytes] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Whether a request is under way on the connection, and whether the rest of its head is still awaited.
        self._begun = False
        self._in_head = True
        self._head_bytes = 0
        self._held = b""  # of a head that has not arrived whole
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._refusal = _error_response(
            HTTPStatus.BAD_REQUEST, "what arrived is no HTTP request that can be read in one way only"
        )
        self.address = ""
        self._surplus: Overloaded | None = None  # why only the health pages are answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._await_head()
        self._surplus = self.counted.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.counted.remove(self)
        self._stop_waiting()
        self._stop_waiting_for_rest()
        super().connection_lost(exc)

    def refuse(self, error: Overloaded) -> None:
        """Answer with this error and close."""
        self._refusal = (HTTPStatus(http_status(error)), error_body(error))
        self.send_400_response("")

    def data_received(self, data: bytes) -> None:
        if not self._begun:
            data = self._held + data
            if not _has_complete_head(data) and len(data) <= MAX_HEAD_BYTES:
                self._held = data
                self._unset_keepalive_if_required()
                if self._head_timer is None:
                    self._await_head()
                return
            data, self._held = normalize_head(data), b""
        super().data_received(data)
        if not self._in_head:
            self._stop_waiting()
            return
        # One header that never ends is not told of until it does, so what arrives is counted as well.
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._too_long()
            self.send_400_response("")
        elif self._head_timer is None:
            self._await_head()

    def on_message_begin(self) -> None:
        self._begun = self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # What follows the body are trailers: as headers they would get past whatever looked at the head before us.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            raise self._too_long()
        if self._surplus is not None and self.url.partition(b"?")[0] not in self.health_pages:
            self._refusal = (HTTPStatus(http_status(self._surplus)), error_body(self._surplus))
            raise RejectedRequestError
        if b"#" in self.url:
            raise self._bad("the request's path holds a #, which is to be written %23")
        if self.parser.get_method() == b"CONNECT":
            raise self._bad("this is no proxy to other hosts: it stands in front of one engine")
        if self.parser.should_upgrade():
            # The parser would take the body for the other protocol. `prepared` has not seen what came behind a body.
            raise self._bad("an offer to change the protocol; send it without the header Upgrade")
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            raise self._bad("the body has a transfer encoding other than chunked; compress it by Content-Encoding")
        self._in_head = False
        super().on_headers_complete()
        if self._surplus is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._begun = False
        super().on_message_complete()
        if self._rest_timer is not None:
            # uvicorn has forgotten the timer of idle connections while the rest of the body came.
            self._stop_waiting_for_rest()
            self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Of a request whose answer did not wait for its body, the rest must not keep the connection open for ever.
        if self._begun and not self._in_head and self.cycle.response_complete and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Answer in the engine's error shape what never becomes a request, and close the connection.

        Args:
            msg: uvicorn's words, which do not say what to do.
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

    def _bad(self, reason: str) -> RejectedRequestError:
        self._refusal = _error_response(HTTPStatus.BAD_REQUEST, reason)
        return RejectedRequestError()

    def _too_long(self) -> RejectedRequestError:
        self._refusal = _error_response(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"path and headers are longer than {MAX_HEAD_BYTES:,} bytes"
        )
        return RejectedRequestError()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_waiting_for_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _head_is_late(self) -> None:
        self._refusal = _error_response(
            HTTPStatus.REQUEST_TIMEOUT, f"no request came for {self.head_seconds:g} seconds"
        )
        self.send_400_response("")


def limited_protocol(
    head_seconds: float, connections: ConnectionLimiter, health_pages: Iterable[str] = ()
) -> type[asyncio.Protocol]:
    """The class of connections, as uvicorn's setting `http` takes it.

    Args:
        head_seconds: How long a request's head may take to arrive.
        connections: Counts them.
        health_pages: Paths that are answered when there are too many.
    """
    pages = frozenset(page.encode() for page in health_pages)
    settings = {"head_seconds": head_seconds, "counted": connections, "health_pages": pages}
    return type("LimitedRequestProtocol", (LimitedHttpProtocol,), settings)


def _error_response(status: HTTPStatus, reason: str) -> tuple[HTTPStatus, bytes]:
    """An answer in the engine's error shape."""
    cause = {"type": "es_sbert_bad_request", "reason": reason}
    return status, orjson.dumps({"error": {"root_cause": [cause], **cause}, "status": status})


def _has_complete_head(data: bytes) -> bool:
    """Whether a whole head has arrived, or what will never be one."""
    if b"\r\n\r\n" in data or b"\n\n" in data:
        return True
    start = data.lstrip()[:1]
    return bool(start) and not start.isalpha()


def normalize_head(data: bytes) -> bytes:
    """The beginning of a request in a form that the parser takes.

    What is not ASCII in the first line is percent-encoded, as engines read it: curl and others send UTF-8 in paths and
    queries as it is, and the parser refuses that. `Upgrade` is left out, as a server may (RFC 9110, 7.8): Java's client
    offers HTTP/2 by it, and the parser would drop the request's body.

    Args:
        data: A head, and what arrived with it.
    """
    end = data.find(b"\r\n")
    line = data[: max(end, 0)]
    if not line.isascii():
        data = _NOT_ASCII.sub(lambda found: b"%%%02X" % found[0][0], line) + data[end:]
    if b"pgrade" not in data and b"PGRADE" not in data:
        return data
    head, between, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"", head) + between + rest
