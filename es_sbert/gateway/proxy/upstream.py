"""HTTP client for the engine behind the gateway."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict
from yarl import URL

from es_sbert.config import EngineSettings
from es_sbert.engines.address import Address, parse_address
from es_sbert.engines.error_mapping import connection_error, response_error
from es_sbert.engines.protocol import EngineType, Json
from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.errors import BadRequest, UpstreamTimeout
from es_sbert.gateway.proxy.incoming_request import Headers
from es_sbert.gateway.settings import Limits
from es_sbert.gateway.throttled_log import ThrottledLog

logger = logging.getLogger(__name__)

# A deprecation warning of an engine may be longer than the usual limit of a header.
_MAX_HEADER_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024
_MAX_SINGLE_WRITE_BYTES = 1024 * 1024
# Requests that may be sent twice. PUT and DELETE are none of these here: `PUT _bulk` may add documents.
_RETRYABLE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# What the engine answers where it is the caller who asks wrongly, or may not: the request itself meets with the same.
CLIENT_ERROR_STATUSES = frozenset({400, 401, 403, 404})
# What callers are told of the engine is never where it is, nor why it cannot be reached: that is in the log.
_RETRY_SOON = "Send the request again in a moment. The gateway's log says why, for whoever runs it."
_CHECK_BEFORE_RETRY = (
    "The engine may have carried it out: look before you repeat a write. The gateway's log says why, for whoever runs "
    "it."
)


@dataclass(frozen=True)
class UpstreamReply:
    """The engine's answer to a question of the gateway's own.

    Attributes:
        status: HTTP status.
        body: Parsed where it was JSON, else None.
    """

    status: int
    body: Any


class Upstream:
    """The engine.

    Open it inside the event loop that uses it.

    Args:
        settings: Where it is. Credentials in them are the gateway's own, for `ask` alone.
        limits: How long to wait.

    Attributes:
        engine_type: Which engine it is; None while it has answered nothing.
        log: For what only the operator shall know.

    Raises:
        UsageError: an address that cannot be read.
    """

    def __init__(self, settings: EngineSettings, limits: Limits) -> None:
        self._address: Address = parse_address(settings)
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self.engine_type: EngineType | None = None
        self.log = ThrottledLog(logger)

    @property
    def url(self) -> str:
        """Its address, without credentials."""
        return self._address.url

    @property
    def engine_type_or_default(self) -> EngineType:
        """Which engine it is; asked only once it has answered something."""
        return self.engine_type or EngineType.ELASTICSEARCH

    @property
    def own_authorization(self) -> str | None:
        """The gateway's own credentials, as a header's value; None where it has no rights of its own."""
        return self._address.authorization

    def open(self) -> None:
        """Get ready for requests, inside a running event loop."""
        # Connections are limited by the gateway's own limit of concurrent requests.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._ssl(), keepalive_timeout=self._limits.idle_seconds)
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._limits.connect_seconds, sock_read=self._limits.answer_seconds
            ),
            read_bufsize=_BUFFER_BYTES,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            middlewares=(_retry_only_reads,),
        )

    def _ssl(self) -> Any:
        if self._address.fingerprint is not None:
            return aiohttp.Fingerprint(bytes.fromhex(self._address.fingerprint))
        return self._address.ssl_context or True

    def send(
        self, method: str, target: bytes, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """One request; the answer's body is as the engine sent it, compressed where it is.

        Args:
            target: Path and query, ASCII, as checked by `IncomingRequest`.
            headers: The caller's; those of its connection are left out.
        """
        assert self._session is not None, "open"
        # The path stands behind a host that is written out and ends at a slash: no path leads to another host.
        url = URL(self._address.url + target.decode("ascii"), encoded=True)
        data = _LargeBody(body) if isinstance(body, bytes) and len(body) > _MAX_SINGLE_WRITE_BYTES else body
        return self._session.request(
            method, url, headers=decode_headers(end_to_end_headers(headers)), data=data, allow_redirects=False
        )

    async def ask(self, method: str, target: str, headers: Headers, body: Json | None = None) -> UpstreamReply:
        """A question of the gateway's own, on behalf of a caller.

        Args:
            target: Path and query.
            headers: What the question is asked with: the caller's credentials, or the gateway's own.

        Raises:
            EngineUnreachable: no answer came.
        """
        if body is None:
            return await self._ask(method, target, headers, None)
        return await self._ask(method, target, [*headers, (b"content-type", b"application/json")], orjson.dumps(body))

    async def _ask(self, method: str, target: str, headers: Headers, body: bytes | None) -> UpstreamReply:
        sent = [*headers, (b"accept", b"application/json")]
        try:
            async with self.send(method, target.encode(), sent, body) as answer:
                self.detect_engine_type(answer)
                raw = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self.failure(error) from error
        try:
            # Not orjson: documents may hold lone surrogates.
            return UpstreamReply(answer.status, json.loads(raw))
        except (ValueError, RecursionError):
            return UpstreamReply(answer.status, None)

    async def problem(self) -> str | None:
        """What keeps the engine from answering; None where it does, whatever it thinks of nameless callers."""
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                reply = await self.ask("GET", "/", [])
        except EngineUnreachable as error:
            return error.message
        except TimeoutError:
            return f"the engine did not answer within {self._limits.connect_seconds:g} seconds"
        return f"the engine answers with status {reply.status}" if reply.status >= 500 else None

    async def request_as_gateway(self, method: str, target: str, body: bytes, kind: str) -> tuple[int, Any]:
        """A request with the gateway's own credentials; status and parsed answer.

        Args:
            kind: Content type of the body.

        Raises:
            EngineUnreachable: no answer came.
        """
        own = self.own_authorization
        headers = [(b"content-type", kind.encode())] + ([] if own is None else [(b"authorization", own.encode())])
        reply = await self._ask(method, target, headers, body)
        return reply.status, reply.body

    def needed(self, reply: UpstreamReply, action: str) -> Json:
        """The object that `ask` was answered with.

        Args:
            action: What was asked, e.g. `GET /docs`.

        Raises:
            EngineUnreachable, RequestFailed: the answer is of no use.
        """
        if reply.status != 200 or not isinstance(reply.body, dict):
            raise self.reply_error(reply, action)
        return reply.body

    def reply_error(self, reply: UpstreamReply, action: str) -> EsSbertError:
        """What is wrong where `ask` met with an answer that is of no use.

        Args:
            action: What was asked, e.g. `GET /docs`.
        """
        if reply.status == 200:
            return self.malformed_response(f"{action} was answered by something else than an object in JSON")
        return response_error(reply.status, reply.body, label="the engine", action=action)

    def malformed_response(self, what: str, error: Exception | None = None) -> EngineUnreachable:
        """What callers are told of an answer that no engine gives.

        Args:
            what: What is strange about it, for the log.
            error: Met with when it was read, for the log too.
        """
        self.log.warning(
            "%s gives answers that are not those of an engine: %s. Check the address after --upstream, and any proxy "
            "between the gateway and the engine.",
            self.url,
            what,
            kind="strange",
            error=error,
        )
        return EngineUnreachable("the engine behind the gateway gave an answer in an unexpected form", _RETRY_SOON)

    @contextmanager
    def reading(self, action: str) -> Iterator[None]:
        """Around code that reads the engine's answer to a question of the gateway's own, and does nothing else.

        Args:
            action: What was asked, e.g. `GET /docs`.

        Raises:
            EngineUnreachable: the answer has another shape than an engine's.
        """
        try:
            yield
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise self.malformed_response(f"{action} was answered in an unexpected form", error) from error

    def detect_engine_type(self, answer: aiohttp.ClientResponse) -> None:
        """Find out from an answer which engine it is: Elasticsearch signs every one."""
        if answer.headers.get("x-elastic-product") == "Elasticsearch":
            self.engine_type = EngineType.ELASTICSEARCH
        elif self.engine_type is None and answer.ok:
            # Errors may be those of what stands between.
            self.engine_type = EngineType.OPENSEARCH

    def failure(self, error: Exception) -> EngineUnreachable:
        """What callers are told of a request without an answer. The log is told the address and the cause."""
        if isinstance(error, aiohttp.ServerTimeoutError | asyncio.TimeoutError):
            self.log.warning(
                "the engine at %s did not answer in time. Look at its load (`GET _nodes/hot_threads`), or start the "
                "gateway with a longer --answer-timeout.",
                self.url,
            )
            return UpstreamTimeout("the engine behind the gateway did not answer in time", _CHECK_BEFORE_RETRY)
        if isinstance(
            error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | aiohttp.ClientResponseError
        ):
            self.log.warning(
                "the engine at %s broke off, or sent what is no HTTP answer. Check that an engine listens there, and "
                "look at its log.",
                self.url,
            )
            return EngineUnreachable("the engine behind the gateway broke off its answer", _CHECK_BEFORE_RETRY)
        # aiohttp's own words name TLS whether it is used or not, and show digests as bytes.
        cause: Exception = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        if isinstance(error, aiohttp.ServerFingerprintMismatch):
            cause = ssl.SSLError("fingerprint")
        why = connection_error(self.url, cause, self._limits.connect_seconds)
        self.log.warning("%s. %s", why.message, why.remedy, kind="unreachable")
        return EngineUnreachable("the engine behind the gateway does not answer", _RETRY_SOON)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class _LargeBody(aiohttp.Payload):
    """A body that is written part by part: in one piece, it would keep all others waiting. Can be sent again.

    aiohttp's own way, an `io.BytesIO`, copies the bytes before it sends them.
    """

    _value: bytes

    def __init__(self, value: bytes) -> None:
        super().__init__(value, content_type="application/octet-stream")
        self._size = len(value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        view = memoryview(self._value)
        for start in range(0, len(view), _BUFFER_BYTES):
            await writer.write(view[start : start + _BUFFER_BYTES])


async def _retry_only_reads(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """The client library sends a request again whose connection broke; the engine may have carried it out before."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method in _RETRYABLE_METHODS:
            raise
        raise aiohttp.ClientPayloadError("no answer came") from error


# What belongs to one connection, or is set anew for the next one (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset({
    b"connection", b"expect", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip


def end_to_end_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers without those that belong to one connection."""
    kept = list(headers)
    named = {
        token.strip().lower() for name, value in kept if name.lower() == b"connection" for token in value.split(b",")
    }
    return [(name, value) for name, value in kept if (low := name.lower()) not in _HOP_BY_HOP and low not in named]


def decode_headers(headers: Headers) -> CIMultiDict[str]:
    """Headers as the client library takes them.

    Raises:
        BadRequest: a value in another encoding than UTF-8.
    """
    try:
        return CIMultiDict([(name.decode("ascii"), value.decode()) for name, value in headers])
    except UnicodeDecodeError:
        raise BadRequest("a header of the request is not UTF-8", "Write it in ASCII or UTF-8.") from None
