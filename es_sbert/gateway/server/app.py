"""The gateway as an ASGI application.

`Gateway` sends each request to its handler: search APIs, write APIs, the gateway's own pages, or straight to the
engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.admission import HEALTH_PATHS, AdmissionControl, ConnectionLimiter
from es_sbert.gateway.engine_routes import (
    BY_QUERY_APIS,
    MULTI_SEARCH_APIS,
    SEARCH_APIS,
    SEARCH_DIAGNOSTICS,
    WRITE_APIS,
    EngineApi,
    EngineRoute,
    changes_indices,
    makes_documents,
    match_route,
)
from es_sbert.gateway.errors import (
    OwnCredentialsRefused,
    RequestTimeout,
    UpstreamTimeout,
    error_body,
    http_status,
    response_headers,
)
from es_sbert.gateway.forward import OutgoingRequest, forward
from es_sbert.gateway.incoming_request import DrainableReceive, IncomingRequest
from es_sbert.gateway.index_lookup import IndexLookup
from es_sbert.gateway.metrics import GatewayMetrics, metrics_routes
from es_sbert.gateway.model_registry import ModelRegistry
from es_sbert.gateway.search.hidden_fields import VectorHider
from es_sbert.gateway.search.incoming_search import requested_mode
from es_sbert.gateway.search.search_handler import SearchHandler
from es_sbert.gateway.search.search_log import SearchLog, SearchRecorder
from es_sbert.gateway.search.search_rewriter import SearchRewriter
from es_sbert.gateway.search.unsupported_apis import check_unsupported
from es_sbert.gateway.server.openai_api import OpenAIApi
from es_sbert.gateway.server.search_page import PageApi, ui_routes
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.upstream import Upstream
from es_sbert.gateway.writes.missing_vectors import UnreadReason
from es_sbert.gateway.writes.write_handler import WriteHandler

logger = logging.getLogger(__name__)
# Maximum time between the error response to a slow client and the end of its connection.
_LINGER_SECONDS = 2.0
# Header of the searches that the search page makes besides the user's. Anyone may send it: it keeps a search out of the
# log, counts it as `ui` in the metrics, and changes nothing else.
_PAGE_HEADER = b"x-es-sbert-page"


class Gateway:
    """The ASGI application. Forwards requests to the engine, rewrites semantic queries and embeds documents on the way.

    Args:
        settings: Settings of the gateway.
        connections: The server's connection limiter, if it has one.
        on_loaded: Called once the default model is loaded or has failed to load.

    Raises:
        UsageError: an invalid address or CA file, or a search log that cannot be opened.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        connections: ConnectionLimiter | None = None,
        on_loaded: Callable[[], None] | None = None,
    ) -> None:
        connections = connections or ConnectionLimiter(settings.limits)
        self._settings = settings
        self._on_loaded = on_loaded
        self._metrics = GatewayMetrics(settings.models.public_names)
        self._admission = AdmissionControl(settings.limits)
        self._metrics.track(self._admission, connections)
        self._upstream = Upstream(settings.upstream, settings.limits)
        self._metrics.track_nodes(self._upstream.nodes)
        self._models = ModelRegistry(settings.models, settings.limits, self._metrics)
        self._indices = IndexLookup(self._upstream, settings.semantic.virtual_field)
        rewriter = SearchRewriter(settings, self._upstream, self._indices, self._models)
        hider = VectorHider(settings.semantic, self._indices)
        self._search = SearchHandler(rewriter, self._upstream, hider)
        # Functions that check requests that are not searches but may contain queries.
        unsupported = [*BY_QUERY_APIS, *SEARCH_DIAGNOSTICS, EngineApi.LANGUAGE, EngineApi.FILTERED]
        if settings.semantic.writes:
            unsupported.append(EngineApi.BULK_STREAM)
        self._others = dict.fromkeys(unsupported, partial(check_unsupported, rewriter))
        self._writes = WriteHandler(settings, self._upstream, self._indices, self._models, self._metrics)
        page_api = PageApi(settings, self._upstream, self._indices, rewriter)
        routes = [
            *OpenAIApi(self._models, settings, self._metrics, self._admission).routes(),
            *health_routes(self._models, self._upstream, self._admission, connections),
            *metrics_routes(self._metrics, settings.metrics_key),
            *ui_routes(page_api, settings.limits, self._admission, self._metrics),
        ]
        # The gateway's own endpoints. Other methods on their paths go to the engine, as all other requests do.
        self._own_router = Router(routes)
        # A fast check: most requests go to the engine.
        self._own_prefixes = tuple(f"/{route.path.split('/')[1]}" for route in routes)
        self._search_log = None if settings.search_log is None else SearchLog(settings.search_log)
        self._loading: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["path"].startswith(self._own_prefixes) and any(
            route.matches(scope)[0] is Match.FULL for route in self._own_router.routes
        ):
            await self._own_router(scope, receive, send)
        else:
            await self._handle(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request to the engine: admission, metrics and errors."""
        receive, started = DrainableReceive(receive), False

        async def tracked_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        with self._metrics.request("passed") as outcome:
            try:
                with self._admission.slot() as slot:
                    incoming = IncomingRequest.from_scope(scope, receive, self._settings.limits, slot)
                    route = match_route(incoming)
                    outcome.kind = "ui" if _is_of_page(incoming, route) else _metric_kind(route.api)
                    outcome.status = await self._dispatch(incoming, route, tracked_send) or outcome.status
                    return
            except ClientDisconnect:  # nobody waits for a response
                return
            except EsSbertError as error:
                outcome.status = http_status(error)
                if isinstance(error, EngineUnreachable):
                    reason = "timeout" if isinstance(error, UpstreamTimeout) else "unreachable"
                    self._metrics.upstream_errors.labels(reason).inc()
                elif isinstance(error, OwnCredentialsRefused):
                    self._metrics.upstream_errors.labels("credentials").inc()
                # The traceback would keep the request's body in memory while the error is sent.
                error.__cause__ = error.__context__ = None
                failure = error.with_traceback(None)
            except Exception as error:
                outcome.status = 500
                self._upstream.log.bug(error)
                failure = EsSbertError(
                    f"internal gateway error ({type(error).__name__})",
                    "The gateway's log has details; please report it. X-Es-Sbert: off forwards the request unchanged.",
                )
            # After the response has started, the server closes the connection, so the client notices the error.
            if not started:
                await self._send_error(failure, receive, tracked_send)

    async def _dispatch(self, incoming: IncomingRequest, route: EngineRoute, send: Send) -> int:
        """Call the handler of an API; return the status of the response, 0 if the client disconnected."""
        requested_mode(incoming)  # rejects an unknown mode
        if route.api in SEARCH_APIS or route.api in MULTI_SEARCH_APIS:
            with self._record_search(incoming, route) as recorder:
                recorder.status = await self._search.answer(incoming, route, send, recorder) or recorder.status
                return recorder.status
        if route.api in self._others:
            outgoing = await incoming.cancel_on_disconnect(self._others[route.api](incoming, route))
            status = await forward(incoming, send, self._upstream, outgoing)
            if makes_documents(incoming, route):
                self._writes.record_unread(route, UnreadReason.BY_QUERY, status)
            return status
        if route.api in WRITE_APIS and self._settings.semantic.writes:
            return await self._writes.answer(incoming, route, send)
        status = await self._forward_unchanged(incoming, send)
        if route.api in WRITE_APIS:
            self._writes.record_unread(route, UnreadReason.NO_WRITES, status)
        return status

    @contextmanager
    def _record_search(self, incoming: IncomingRequest, route: EngineRoute) -> Iterator[SearchRecorder]:
        """Log a search when it ends, whether it succeeds or fails."""
        log = None if _is_of_page(incoming, route) else self._search_log
        recorder = SearchRecorder(unquote(route.index), route.api, is_logged=log is not None)
        try:
            yield recorder
        except EsSbertError as error:
            recorder.status = http_status(error)
            raise
        finally:
            if log is not None:
                for record in recorder.records():
                    log.record(record)

    async def _forward_unchanged(self, incoming: IncomingRequest, send: Send) -> int:
        """Forward a request unchanged, and drop cached mappings if it may change an index."""
        caches = (self._indices, self._writes.destinations) if changes_indices(incoming) else ()
        for cache in caches:
            cache.invalidate()
        status = await forward(incoming, send, self._upstream, OutgoingRequest.unchanged(incoming))
        # Invalidate again: other requests may have filled the caches in the meantime.
        for cache in caches:
            cache.invalidate()
        return status

    async def _send_error(self, error: EsSbertError, receive: DrainableReceive, send: Send) -> None:
        body = error_body(error)
        headers = response_headers(self._upstream.engine_type, len(body))
        await receive.drain(0)  # discard what has already arrived
        if not receive.complete:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": http_status(error), "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        # Do not wait long for a client that sends slowly.
        slow = isinstance(error, RequestTimeout)
        await receive.drain(_LINGER_SECONDS if slow else self._settings.limits.idle_seconds)
        await send({"type": "http.response.body", "body": b""})

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._upstream.open()
        if self._search_log is not None:
            self._search_log.start()
        self._loading = asyncio.create_task(self._load_default_model())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._loading.cancel()
        if self._search_log is not None:
            await self._search_log.close()
        await self._models.close()
        await self._upstream.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _load_default_model(self) -> None:
        """Load the default model before the first search needs it."""
        try:
            await self._models.get()
        except EsSbertError as error:
            logger.error("%s. %s", error.message, error.remedy)
        if self._on_loaded is not None:
            self._on_loaded()


def _is_of_page(incoming: IncomingRequest, route: EngineRoute) -> bool:
    return route.api is EngineApi.SEARCH and bool(incoming.header(_PAGE_HEADER))


def _metric_kind(api: EngineApi) -> str:
    if api in SEARCH_APIS or api in MULTI_SEARCH_APIS or api in SEARCH_DIAGNOSTICS:
        return "search"
    return "write" if api in WRITE_APIS or api in BY_QUERY_APIS else "passed"


def health_routes(
    models: ModelRegistry, upstream: Upstream, admission: AdmissionControl, connections: ConnectionLimiter
) -> list[Route]:
    """Create the routes `GET /healthz` and `GET /readyz`, without authentication and admission control."""

    async def healthz(request: Request) -> Response:
        """Liveness: the process runs."""
        return JSONResponse({"status": "alive"})

    async def readyz(request: Request) -> Response:
        """Readiness: requests can be served."""
        problems = {
            "engine": await upstream.health_problem(),
            "model": models.not_ready_reason,
            "capacity": admission.full or connections.full,
            "server": "the gateway is shutting down" if connections.draining else None,
        }
        ready = not any(problems.values())
        checks = {part: problem or "ok" for part, problem in problems.items()}
        # Requests are answered by the other nodes.
        checks |= {"nodes": upstream.foreign_nodes} if upstream.foreign_nodes else {}
        return JSONResponse({"status": "ready" if ready else "not ready", **checks}, 200 if ready else 503)

    return [Route(path, page, methods=["GET"]) for path, page in zip(HEALTH_PATHS, (healthz, readyz), strict=True)]
