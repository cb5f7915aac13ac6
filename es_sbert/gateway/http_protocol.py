"""A client's connection: stricter HTTP parsing, size limits and timeouts than uvicorn's, as a proxy needs them.

This relies on parts of uvicorn that its documentation does not name: its protocol for httptools is subclassed, and
attributes of it and of a request's cycle are used. uvicorn has no settings for these limits. If it stopped calling one
of these methods, a limit would silently disappear. Therefore the gateway starts only with versions that were tested.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from es_sbert.errors import Overloaded, UsageError
from es_sbert.gateway.admission import HEALTH_PATHS, ConnectionLimiter
from es_sbert.gateway.errors import engine_error, error_body, http_status
from es_sbert.installation import install_command
from es_sbert.messages import shorten

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
        self._refusal = _error_response(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP, or is ambiguous")
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
            raise self._bad(f"the request has {len(hosts) or 'no'} Host headers; send exactly one")
        host = host_name(hosts[0]) if hosts else ""
        if self._allowed_hosts and not is_health and host not in self._allowed_hosts:
            reason = f"the host name {shorten(host, 100)!r} is not allowed; the operator sets names with --allowed-host"
            raise self._bad(reason, HTTPStatus.MISDIRECTED_REQUEST)

    def _bad(self, reason: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> RejectedRequestError:
        self._refusal = _error_response(status, reason)
        return RejectedRequestError()

    def _too_long(self) -> RejectedRequestError:
        reason = f"path and headers are longer than {MAX_HEAD_BYTES:,} bytes"
        return self._bad(reason, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._head_seconds, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._bad(f"no request arrived for {self._head_seconds:g} seconds", HTTPStatus.REQUEST_TIMEOUT)
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
