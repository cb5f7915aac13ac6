"""HTTP client of the gateway for the engine."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDict
from yarl import URL

from es_sbert.config import EngineSettings
from es_sbert.engines.address import join_urls, parse_addresses
from es_sbert.engines.complete_answer import check_complete, reading_response
from es_sbert.engines.detection import check_version, parse_root
from es_sbert.engines.engine_info import EngineInfo, EngineType, without_search_pipeline
from es_sbert.engines.error_mapping import connection_error, response_error
from es_sbert.engines.rest import EngineResponse, Json, is_repeatable
from es_sbert.errors import EngineTooOld, EngineUnreachable, EsSbertError, FeatureMissing, IndexMissing, RequestFailed
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.errors import BadRequest, OwnCredentialsRefused, ThrottledLog, UpstreamTimeout
from es_sbert.gateway.incoming_request import Headers, credential_headers
from es_sbert.gateway.settings import Limits
from es_sbert.gateway.upstream_nodes import ForeignNode, NodeSilent, UpstreamNode, UpstreamNodes, keepalive_socket

logger = logging.getLogger(__name__)

# Errors after which nothing was sent.
_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ForeignNode)
# A deprecation warning of an engine may be longer than the usual limit of a header.
_MAX_HEADER_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024
_MAX_SINGLE_WRITE_BYTES = 1024 * 1024
# Responses to requests that are wrong, or that the caller may not send: the caller's own request gets the same error.
CLIENT_ERROR_STATUSES = frozenset({400, 401, 403, 404})
# Errors never tell callers the address of the engine or why it cannot be reached.
_RETRY_SOON = "Send the request again in a moment. The gateway's log has the reason."
_CHECK_BEFORE_RETRY = (
    "The engine may have executed the request: check before you repeat a write. The gateway's log has the reason."
)
# Errors, the error for the caller, the problem, and advice for the operator. The first match wins.
_TRANSPORT_ERRORS: tuple[tuple[tuple[type[Exception], ...], type[EngineUnreachable], str, str], ...] = (
    (
        (NodeSilent,),
        UpstreamTimeout,
        "has stopped answering",
        "It accepts connections, but does not answer a health request. Check its process and the load of its machine.",
    ),
    (
        (aiohttp.ServerTimeoutError, TimeoutError),
        UpstreamTimeout,
        "did not respond in time",
        "Check its load (`GET _nodes/hot_threads`).",
    ),
    (
        (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, aiohttp.ClientResponseError),
        EngineUnreachable,
        "ended its response early",
        "Check that an engine listens there and answers in HTTP, and look at its log.",
    ),
)
_JSON = "application/json"
_ACCEPT = (b"accept", _JSON.encode())
_TOO_MANY_REQUESTS, _UNAVAILABLE = 429, 503
_CREDENTIALS_REFUSED = "the engine refuses the gateway's own credentials (401)"


@dataclass(frozen=True)
class UpstreamReply:
    """The engine's response to one of the gateway's own requests.

    Attributes:
        status: HTTP status.
        body: Parsed JSON; None if it is not JSON.
    """

    status: int
    body: Any


class Upstream:
    """HTTP client for the engine. Call `open` in the event loop that uses it.

    Args:
        settings: Addresses, and the gateway's own credentials, which are never used for a client's request.
        limits: Timeouts.

    Attributes:
        url: The engine's addresses, without credentials.
        nodes: The engine's nodes, one for each address.
        own_credentials: The gateway's own credentials as headers; empty if it has none.
        engine_type: None until the engine has responded.
        log: For details that only the operator may see.

    Raises:
        UsageError: an invalid address.
    """

    def __init__(self, settings: EngineSettings, limits: Limits) -> None:
        addresses = parse_addresses(settings)
        authorization = addresses[0].authorization
        self.own_credentials: Headers = [] if authorization is None else [(b"authorization", authorization.encode())]
        self.url = join_urls(addresses)
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self.engine_type: EngineType | None = None
        self._info: EngineInfo | None = None
        self._hides_version = False
        self.log = ThrottledLog(logger)
        self._nodes = UpstreamNodes(addresses, decode_headers(self.own_credentials), limits, self.log)
        self.nodes = self._nodes.all

    @property
    def engine_type_or_default(self) -> EngineType:
        """The engine's type; correct once the engine has responded."""
        return self.engine_type or EngineType.ELASTICSEARCH

    @property
    def info(self) -> EngineInfo | None:
        """The engine's type and version; None if the version is not known."""
        return self._info

    @property
    def knn_matches_candidates(self) -> bool:
        """See `EngineInfo`. Also true for OpenSearch of an unknown version, where it does no harm."""
        if self._info is None:
            return self.engine_type is EngineType.OPENSEARCH
        return self._info.knn_matches_candidates

    @property
    def updates_keep_vectors(self) -> bool:
        """Whether an update keeps a vector that `_source` lacks; False if the version is not known."""
        return self._info is not None and self._info.excludes_vectors_from_source

    def open(self) -> None:
        """Create the HTTP session, in a running event loop."""
        # Connections need no limit: the gateway's limit of concurrent requests also limits them.
        addresses = [node.address for node in self.nodes]
        context = next((each.ssl_context for each in addresses if each.ssl_context is not None), None)
        connector = aiohttp.TCPConnector(
            limit=0, ssl=context or True, keepalive_timeout=self._limits.idle_seconds, socket_factory=keepalive_socket
        )
        self._nodes.open(context or True)
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(self._check_cluster)
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
            middlewares=(_send_once,),
            trace_configs=[tracing] if len(self.nodes) > 1 else None,
        )

    @asynccontextmanager
    async def send(
        self, method: str, target: bytes, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to the next node. The body of the response is not decompressed.

        A request that was not sent, because the node refuses connections, is sent to the next node. So is a read
        (`is_repeatable`) that a node does not answer, or whose connection breaks. With one node, a read whose
        connection breaks is sent once more: the engine, or a proxy in front of it, may have closed an idle connection.

        Args:
            target: Path and query, ASCII, as checked by `IncomingRequest`.
            headers: Hop-by-hop headers are dropped.

        Raises:
            aiohttp.ClientError, TimeoutError: no node responded; see `transport_error`.
        """
        data = _LargeBody(body) if isinstance(body, bytes) and len(body) > _MAX_SINGLE_WRITE_BYTES else body
        may_repeat = is_repeatable(method, target.decode("ascii")) and (body is None or isinstance(body, bytes))
        may_reconnect = may_repeat and len(self.nodes) == 1
        decoded = decode_headers(end_to_end_headers(headers))
        tried: list[UpstreamNode] = []
        failure: Exception | None = None
        while (node := self._nodes.choose(tried)) is not None:
            is_answered = False
            try:
                async with self._exchange(node, method, target, decoded, data) as reply:
                    is_answered = True
                    self._nodes.mark_alive(node)
                    yield reply
                    return
            except (aiohttp.ClientError, TimeoutError) as error:
                is_unsent = isinstance(error, _UNSENT)
                if isinstance(error, NodeSilent) or (is_unsent and not is_answered):
                    self._nodes.mark_dead(node, error)
                # A request that takes too long on a node that is alive would take too long on the next one.
                has_timed_out = isinstance(error, TimeoutError) and not isinstance(error, NodeSilent)
                if is_answered or not (is_unsent or (may_repeat and not has_timed_out)):
                    raise
                failure = error
                # A response that is not HTTP would be the same the second time.
                has_broken = not isinstance(error, TimeoutError | aiohttp.ClientResponseError)
                if may_reconnect and not is_unsent and has_broken:
                    may_reconnect = False
                else:
                    tried.append(node)
        assert failure is not None, "there is a node"
        raise failure

    @asynccontextmanager
    async def _exchange(
        self,
        node: UpstreamNode,
        method: str,
        target: bytes,
        headers: CIMultiDict[str],
        data: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to a node.

        Raises:
            NodeSilent: the node has stopped answering, before or after the beginning of its response.
            aiohttp.ClientError, TimeoutError: the node did not respond.
        """
        assert self._session is not None, "open"
        # The target begins with a slash, so it cannot change the host.
        url = URL(node.url + target.decode("ascii"), encoded=True)
        async with (
            self._nodes.end_if_silent(node),
            self._session.request(
                method, url, headers=headers, data=data, allow_redirects=False, trace_request_ctx=(node, headers)
            ) as reply,
        ):
            yield reply

    async def _check_cluster(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceConnectionCreateStartParams
    ) -> None:
        """Check the cluster of a node before each new connection to it; see `UpstreamNodes.check_cluster`."""
        node, headers = context.trace_request_ctx
        sent = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._nodes.check_cluster(node, decode_headers(credential_headers(sent)))

    async def fetch(
        self, method: str, target: bytes, headers: Headers, body: bytes | None
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """Send a request and read the whole response, which is not decompressed.

        Raises:
            EngineUnreachable: the engine did not respond.
        """
        try:
            async with self.send(method, target, headers, body) as reply:
                self.detect_engine_type(reply)
                return reply, await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self.transport_error(error) from error

    async def request(
        self, method: str, target: str, headers: Headers, body: Json | bytes | None = None, content_type: str = _JSON
    ) -> UpstreamReply:
        """Send one of the gateway's own requests and read the response.

        Args:
            target: Path and query.
            headers: Credentials: the caller's, or the gateway's own.
            body: Serialized as JSON unless it is bytes.

        Raises:
            EngineUnreachable: the engine did not respond.
            OwnCredentialsRefused: the engine refuses the gateway's own credentials. A 401 for the caller's
                credentials is returned to the caller.
        """
        sent = [*headers, _ACCEPT]
        if body is not None:
            sent.append((b"content-type", content_type.encode()))
            body = body if isinstance(body, bytes) else orjson.dumps(body)
        reply, raw = await self.fetch(method, target.encode(), sent, body)
        if reply.status == 401 and headers is self.own_credentials and headers:
            self.log.warning("%s: restart it with valid credentials", _CREDENTIALS_REFUSED, kind="credentials")
            raise OwnCredentialsRefused(
                _CREDENTIALS_REFUSED,
                "Its operator has to restart it with valid credentials. X-Es-Sbert: off passes a request through.",
            )
        return await offload_if_large(len(raw), _parse_reply, reply.status, raw)

    async def search(self, target: str, headers: Headers, body: Json) -> UpstreamReply:
        """Send a search whose answer the gateway itself needs, around the index's search pipeline.

        Args:
            target, headers: See `request`.

        Raises:
            EngineUnreachable: the engine did not respond.
        """
        return await self.request("POST", target, headers, await self.plain_search(headers, body))

    async def plain_search(self, headers: Headers, body: Json) -> Json:
        """Make a search go around the index's search pipeline, if the engine has any; raises as `request`."""
        if self.engine_type is None:
            await self.request("GET", "/", headers)
        return without_search_pipeline(self.engine_type_or_default, body)

    async def health_problem(self) -> str | None:
        """Check whether the engine is available; return the reason if it is not, else None.

        A node that requires authentication is available, unless the gateway has credentials.
        """
        problems = await asyncio.gather(*map(self._node_problem, self.nodes))
        return None if None in problems else problems[0]

    @property
    def foreign_nodes(self) -> str | None:
        """The nodes that belong to another cluster and get no requests, as a sentence; None if there are none."""
        numbers = [str(node.number) for node in self.nodes if node.is_foreign]
        return f"another cluster answers at address {', '.join(numbers)} of --upstream" if numbers else None

    async def _node_problem(self, node: UpstreamNode) -> str | None:
        try:
            async with (
                asyncio.timeout(self._limits.connect_seconds),
                self._exchange(node, "GET", b"/", decode_headers([*self.own_credentials, _ACCEPT]), None) as reply,
            ):
                self.detect_engine_type(reply)
                self._nodes.mark_alive(node)
                if reply.status == 401 and self.own_credentials:
                    return _CREDENTIALS_REFUSED
                return f"the engine responds with status {reply.status}" if reply.status >= 500 else None
        except NodeSilent as error:
            return self.transport_error(error).message
        except TimeoutError:
            return f"the engine did not respond within {self._limits.connect_seconds:g} seconds"
        except aiohttp.ClientError as error:
            return self.transport_error(error).message

    async def check_version(self, credentials: Headers) -> None:
        """Refuse semantic search if the engine's version is not supported. The version is requested until it is known.

        Args:
            credentials: The caller's, or the gateway's own. If they may not read the version, the engine is accepted.

        Raises:
            EngineTooOld: the version is too old.
            EngineUnreachable: the engine did not respond.
        """
        if self._info is not None or self._hides_version:
            return
        reply = await self.request("GET", "/", credentials)
        is_elasticsearch = self.engine_type is EngineType.ELASTICSEARCH
        info = parse_root(EngineResponse(reply.status, {}, reply.body), self.url, is_elasticsearch=is_elasticsearch)
        if info is not None:
            try:
                check_version(info)
            except EngineTooOld as error:
                self.log.warning("%s. %s", error.message, error.remedy, kind="version")
                raise EngineTooOld(
                    f"the engine behind the gateway is {info.label}, which is too old for semantic search",
                    "Upgrade the engine. X-Es-Sbert: off forwards the request unchanged.",
                ) from None
        self._info = info
        # Stop asking after these statuses: some distributions lack this API, and a proxy may respond with something
        # else. Other engines respond only when they are ready, or only to a different user.
        self._hides_version = info is None and reply.status in (200, 404, 405)

    def require_object(self, reply: UpstreamReply, action: str, *, partial_ok: bool = False) -> Json:
        """Return the JSON object of a successful response.

        Args:
            action: The request, for messages, e.g. `GET /docs`.
            partial_ok: Whether the results of shards or clusters may be missing; see `check_complete`.

        Raises:
            EngineUnreachable, RequestFailed: the response is an error, not an object, or partial.
        """
        if reply.status != 200 or not isinstance(reply.body, dict):
            raise self.reply_error(reply, action)
        if not partial_ok:
            with self.parsing(action):
                check_complete(reply.body, "the engine", action)
        return reply.body

    def require_answer(self, reply: UpstreamReply, action: str) -> Json:
        """Like `require_object`, for a question of the gateway about a caller's request.

        If the engine fails to answer it, the caller's request is valid, so the status asks for a retry.

        Raises:
            AccessDenied: the question is not allowed.
            EngineUnreachable, RequestFailed: the engine failed.
        """
        try:
            return self.require_object(reply, action)
        except FeatureMissing:
            raise
        except (IndexMissing, RequestFailed) as error:
            status = reply.status if reply.status == _TOO_MANY_REQUESTS else _UNAVAILABLE
            raise RequestFailed(error.message, error.remedy, status) from error

    def reply_error(self, reply: UpstreamReply, action: str) -> EsSbertError:
        """The error for a response that `require_object` rejects."""
        if reply.status == 200:
            return self.malformed_response(f"the response to {action} is not a JSON object")
        return response_error(reply.status, reply.body, label="the engine", action=action)

    def malformed_response(self, reason: str, error: Exception | None = None) -> EngineUnreachable:
        """Log a response that no engine sends, and return the error for it.

        Args:
            reason: The problem, for the log.
            error: Logged with its traceback.
        """
        message = "%s does not respond like an engine: %s. Check the address after --upstream, and proxies before it."
        self.log.warning(message, self.url, reason, kind="strange", error=error)
        return EngineUnreachable("the engine behind the gateway sent an unexpected response", _RETRY_SOON)

    def parsing(self, action: str) -> AbstractContextManager[None]:
        """Turn errors in code that parses a response into `malformed_response`; see `reading_response`.

        Args:
            action: The request, for messages, e.g. `GET /docs`.

        Raises:
            EngineUnreachable: the response has an unexpected shape.
        """
        return reading_response(
            lambda error: self.malformed_response(f"the response to {action} has an unexpected form", error)
        )

    def detect_engine_type(self, reply: aiohttp.ClientResponse) -> None:
        """Set `engine_type` from a response: Elasticsearch identifies itself in each."""
        if reply.headers.get("x-elastic-product") == "Elasticsearch":
            self.engine_type = EngineType.ELASTICSEARCH
        elif self.engine_type is None and reply.ok:
            # An error may come from a proxy before the engine.
            self.engine_type = EngineType.OPENSEARCH

    def transport_error(self, error: Exception) -> EngineUnreachable:
        """Log a request without a response, and return its error. Only the log gets the address and the cause."""
        if isinstance(error, ForeignNode):
            return EngineUnreachable("the gateway's upstream addresses belong to different clusters", _RETRY_SOON)
        for kinds, kind, problem, advice in _TRANSPORT_ERRORS:
            if isinstance(error, kinds):
                address = str(error) if isinstance(error, NodeSilent) else self.url
                self.log.warning(f"the engine at %s {problem}. {advice}", address)
                return kind(f"the engine behind the gateway {problem}", _CHECK_BEFORE_RETRY)
        # aiohttp's messages mention TLS whether it is used or not, and show digests as bytes.
        cause: Exception = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        failure = connection_error(self.url, cause, self._limits.connect_seconds)
        self.log.warning("%s. %s", failure.message, failure.remedy, kind="unreachable")
        return EngineUnreachable("the engine behind the gateway cannot be reached", _RETRY_SOON)

    async def close(self) -> None:
        await self._nodes.close()
        if self._session is not None:
            await self._session.close()


def _parse_reply(status: int, raw: bytes) -> UpstreamReply:
    try:
        # Not orjson: documents may contain lone surrogates.
        return UpstreamReply(status, json.loads(raw))
    except (ValueError, RecursionError):
        return UpstreamReply(status, None)


class _LargeBody(aiohttp.Payload):
    """A body that is written in parts, so that other requests are not delayed. It can be sent again.

    aiohttp's own solution, an `io.BytesIO`, copies the bytes first.
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


async def _send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Stop aiohttp from repeating a request when a connection breaks: it would repeat writes too (PUT, DELETE)."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientPayloadError("no response") from error


# Headers of a single connection (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset({
    b"connection", b"expect", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip


def end_to_end_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Remove hop-by-hop headers."""
    kept = list(headers)
    named = {
        token.strip().lower() for name, value in kept if name.lower() == b"connection" for token in value.split(b",")
    }
    return [(name, value) for name, value in kept if (low := name.lower()) not in _HOP_BY_HOP and low not in named]


def decode_headers(headers: Headers) -> CIMultiDict[str]:
    """Convert headers to the form that aiohttp expects.

    Raises:
        BadRequest: a value is not UTF-8.
    """
    try:
        return CIMultiDict([(name.decode("ascii"), value.decode()) for name, value in headers])
    except UnicodeDecodeError:
        raise BadRequest("a header of the request is not UTF-8", "Write it in ASCII or UTF-8.") from None
