"""A client's connection: stricter HTTP parsing, size limits and timeouts than uvicorn's, as a proxy needs them.

This relies on parts of uvicorn that its documentation does not name: its protocol for httptools and its server are
subclassed, and attributes of both and of a request's cycle are used. uvicorn has no settings for these limits. If it
stopped calling one of these methods, a limit would silently disappear. Therefore `check_uvicorn` checks that each of
these names exists before a server starts, and pyproject.toml admits only tested versions of uvicorn.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from http import HTTPStatus
from types import FunctionType
from typing import Any

import orjson
import uvicorn

from es_sbert.errors import Overloaded
from es_sbert.gateway.admission import ConnectionLimiter
from es_sbert.gateway.errors import engine_error, error_body, http_status
from es_sbert.gateway.settings import Limits
from es_sbert.gateway.shutdown import ShutdownState
from es_sbert.installation import unsupported_version
from es_sbert.messages import shorten

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
except ImportError as error:
    if not str(error.name).startswith("uvicorn."):
        raise
    raise unsupported_version("uvicorn", str(error)) from error

# Methods that are overridden or called, here and in `DrainingServer`.
_METHODS: dict[type, tuple[str, ...]] = {
    HttpToolsProtocol: (
        "connection_made",
        "connection_lost",
        "data_received",
        "on_message_begin",
        "on_header",
        "on_headers_complete",
        "on_message_complete",
        "on_response_complete",
        "send_400_response",
        "_unset_keepalive_if_required",
    ),
    uvicorn.Server: ("handle_exit", "on_tick"),
}
# Attributes of instances, which the methods of the class use.
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    HttpToolsProtocol: ("client", "cycle", "headers", "loop", "parser", "transport", "url"),
    RequestResponseCycle: ("keep_alive", "response_complete", "response_started"),
    uvicorn.Server: ("server_state", "should_exit", "started"),
}


def check_uvicorn() -> None:
    """Check that uvicorn has every name that the gateway relies on.

    Raises:
        UsageError: a name is missing.
    """
    missing = [f"{cls.__name__}.{name}" for cls, names in _METHODS.items() for name in names if not hasattr(cls, name)]
    for cls, names in _ATTRIBUTES.items():
        methods = [method for method in vars(cls).values() if isinstance(method, FunctionType)]
        used = {name for method in methods for name in method.__code__.co_names}
        missing += [f"{cls.__name__}.{name}" for name in names if name not in used]
    if missing:
        raise unsupported_version("uvicorn", f"it lacks {', '.join(missing)}")


# Engines refuse heads of more than 16 kB themselves.
MAX_HEAD_BYTES = 64 * 1024
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_UPGRADE = re.compile(rb"\r\nUpgrade:[^\r\n]*", re.IGNORECASE)


class RejectedRequestError(Exception):
    """A request is rejected. The parser reports it as an invalid request."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """A client's connection.

    Attributes:
        head_seconds: Timeout of a request's head, and of the rest of a body after the response.
        counted: Counts and limits the connections of the server.
        health_pages: Paths that work even on surplus connections.
        allowed_hosts: Names by which the gateway may be called, in lower case; empty for any.
        shutdown_state: State of the server's shutdown.
        address: The client's IP address.
    """

    head_seconds = 75.0
    counted = ConnectionLimiter(Limits())
    health_pages: frozenset[bytes] = frozenset()
    allowed_hosts: frozenset[str] = frozenset()
    shutdown_state = ShutdownState()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Whether a request has begun, and whether its head is incomplete.
        self._begun = False
        self._in_head = True
        self._head_bytes = 0
        self._held = b""  # the beginning of an incomplete head
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._refusal = _error_response(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP, or is ambiguous")
        self.address = ""
        self._surplus: Overloaded | None = None  # the error for any request but a health check

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._start_head_timer()
        self._surplus = self.counted.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.counted.remove(self)
        self._cancel_head_timer()
        self._cancel_rest_timer()
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
            self._cancel_head_timer()
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
        is_health = self.url.partition(b"?")[0] in self.health_pages
        self._check_host(is_health=is_health)
        if self._surplus is not None and not is_health:
            self._refusal = (HTTPStatus(http_status(self._surplus)), error_body(self._surplus))
            raise RejectedRequestError
        if b"#" in self.url:
            raise self._bad("the path of the request contains #; write it as %23")
        if self.parser.get_method() == b"CONNECT":
            raise self._bad("CONNECT is not supported: this gateway forwards to a single engine")
        if self.parser.should_upgrade():
            # The parser would drop the body. `normalize_head` removes the header only from a head that arrives at once.
            raise self._bad("protocol upgrades are not supported; send the request without the header Upgrade")
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            raise self._bad("the only supported transfer encoding is chunked; compress the body with Content-Encoding")
        self._in_head = False
        super().on_headers_complete()
        if self._surplus is not None or self.shutdown_state.draining:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._begun = False
        super().on_message_complete()
        if self._rest_timer is not None:
            # uvicorn drops the timer of idle connections while the rest of the body arrives.
            self._cancel_rest_timer()
            self._start_head_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # After an early response, the rest of the body must not keep the connection open forever.
        if self._begun and not self._in_head and self.cycle.response_complete and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(self.head_seconds, self.transport.close)

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
            raise self._bad(f"the request has {len(hosts) or 'no'} Host headers; send exactly one")
        host = host_name(hosts[0]) if hosts else ""
        if self.allowed_hosts and not is_health and host not in self.allowed_hosts:
            reason = (
                f"the host name {shorten(host, 100)!r} is not allowed; the operator allows names with --allowed-host"
            )
            self._refusal = _error_response(HTTPStatus.MISDIRECTED_REQUEST, reason)
            raise RejectedRequestError

    def _bad(self, reason: str) -> RejectedRequestError:
        self._refusal = _error_response(HTTPStatus.BAD_REQUEST, reason)
        return RejectedRequestError()

    def _too_long(self) -> RejectedRequestError:
        self._refusal = _error_response(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"path and headers are longer than {MAX_HEAD_BYTES:,} bytes"
        )
        return RejectedRequestError()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._on_head_timeout)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cancel_rest_timer(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _on_head_timeout(self) -> None:
        self._refusal = _error_response(
            HTTPStatus.REQUEST_TIMEOUT, f"no request arrived for {self.head_seconds:g} seconds"
        )
        self.send_400_response("")


def limited_protocol(
    head_seconds: float,
    connections: ConnectionLimiter,
    health_pages: Iterable[str] = (),
    allowed_hosts: Iterable[str] = (),
    shutdown: ShutdownState | None = None,
) -> type[asyncio.Protocol]:
    """Create a protocol class for uvicorn's setting `http`.

    Args:
        head_seconds: Timeout of a request's head.
        connections: Limits the connections.
        health_pages: Paths that work even on surplus connections.
        allowed_hosts: Names by which the gateway may be called; empty for any.
        shutdown: State of the server's shutdown.
    """
    pages = frozenset(page.encode() for page in health_pages)
    settings: dict[str, object] = {"head_seconds": head_seconds, "counted": connections, "health_pages": pages}
    settings["allowed_hosts"] = frozenset(host.lower() for host in allowed_hosts)
    settings["shutdown_state"] = shutdown or ShutdownState()
    return type("LimitedRequestProtocol", (LimitedHttpProtocol,), settings)


def host_name(value: bytes) -> str:
    """Return the host name in a Host header (`search.example:9280`, `[::1]:9280`), in lower case, without the port."""
    host = value.decode("latin-1").strip().lower()
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]


def _error_response(status: HTTPStatus, reason: str) -> tuple[HTTPStatus, bytes]:
    """An error in the engine's format."""
    return status, orjson.dumps({"error": engine_error("es_sbert_bad_request", reason), "status": status})


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
