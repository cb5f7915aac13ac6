"""The gateway as an ASGI application.

`Gateway` sends each request to its handler: search APIs, write APIs, the gateway's own pages, or straight to the
engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.admission import AdmissionControl, ConnectionLimiter
from es_sbert.gateway.concurrency import cancel_on_disconnect
from es_sbert.gateway.embedding.model_registry import ModelRegistry
from es_sbert.gateway.errors import RequestTimeout, UpstreamTimeout, error_body, http_status, response_headers
from es_sbert.gateway.index_lookup import IndexLookup
from es_sbert.gateway.metrics import GatewayMetrics, RequestOutcome, metrics_routes
from es_sbert.gateway.openai_api import embedding_routes, openapi_routes
from es_sbert.gateway.proxy.engine_routes import (
    BY_QUERY_APIS,
    MULTI_SEARCH_APIS,
    SEARCH_APIS,
    SEARCH_DIAGNOSTICS,
    WRITE_APIS,
    EngineApi,
    EngineRoute,
    changes_indices,
    match_route,
)
from es_sbert.gateway.proxy.forward import OutgoingRequest, forward
from es_sbert.gateway.proxy.incoming_request import ClientDisconnected, DrainableReceive, IncomingRequest
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.incoming_search import MODE_HEADER, PitResolver, TemplateRenderer, check_mode
from es_sbert.gateway.search.search_handlers import MsearchHandler, RankEvalHandler, SearchHandler
from es_sbert.gateway.search.search_rewriter import SearchRewriter
from es_sbert.gateway.search.unsupported_apis import DeleteByQueryHandler, QueryLanguageHandler
from es_sbert.gateway.search_log import SearchLog
from es_sbert.gateway.search_recorder import SearchRecorder
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.ui.page_api import PageApi
from es_sbert.gateway.ui.page_routes import ui_routes
from es_sbert.gateway.writes.write_handler import WriteHandler

logger = logging.getLogger(__name__)
# Between the answer to a caller that sends too slowly and the end of its connection.
_LINGER_SECONDS = 2.0


def create_app(
    settings: GatewaySettings, connections: ConnectionLimiter | None = None, on_loaded: Callable[[], None] | None = None
) -> ASGIApp:
    """The gateway, ready to be served by an ASGI server with its lifespan.

    Args:
        connections: Those of the server, where it counts them.
        on_loaded: Called once the default model is in memory.

    Raises:
        UsageError: an address or CA file that cannot be used.
    """
    gateway: ASGIApp = Gateway(settings, connections, on_loaded)
    if settings.listen.cors_origins:
        return CORSMiddleware(
            gateway,
            allow_origins=settings.listen.cors_origins,
            allow_methods=["GET", "POST", "OPTIONS"],
            allow_headers=["authorization", "content-type", "x-es-sbert", "x-opaque-id"],
        )
    return gateway


class Gateway:
    """Passes requests on, and understands those that ask by meaning.

    Args:
        settings: The operator's.
        connections: Those of the server, where it counts them.
        on_loaded: Called once the default model is in memory.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        connections: ConnectionLimiter | None = None,
        on_loaded: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._on_loaded = on_loaded
        self._metrics = GatewayMetrics(settings.models.public_names)
        connections = connections or ConnectionLimiter(settings.limits)
        self._admission = AdmissionControl(settings.limits)
        self._metrics.watch(self._admission, connections)
        self._upstream = Upstream(settings.upstream, settings.limits)
        self._models = ModelRegistry(settings.models, settings.embedding, self._metrics)
        indices = IndexLookup(self._upstream, settings.meaning.virtual_field)
        understanding = SearchRewriter(settings, self._upstream, indices, self._models)
        points, templates = PitResolver(self._upstream), TemplateRenderer(self._upstream)
        self._searching = SearchHandler(understanding, points, templates, self._upstream)
        self._multi_searching = MsearchHandler(understanding, points, templates, self._upstream)
        by_query, languages = DeleteByQueryHandler(understanding), QueryLanguageHandler(understanding)
        # APIs that are no searches, and may hold them.
        self._others: dict[EngineApi, DeleteByQueryHandler | QueryLanguageHandler | RankEvalHandler] = {
            EngineApi.BY_QUERY: by_query,
            EngineApi.REINDEX: by_query,
            EngineApi.LANGUAGE: languages,
            EngineApi.RANK_EVALUATION: RankEvalHandler(understanding, templates),
        }
        self._indices = indices
        self._writing = WriteHandler(settings, self._upstream, indices, self._models, self._metrics)
        self._own = _GatewayRoutes(
            settings.listen.own_prefix,
            [
                *embedding_routes(self._models, settings.embeddings_api, self._metrics, self._admission),
                *openapi_routes(),
                *health_routes(self._models, self._upstream.problem, lambda: self._admission.full or connections.full),
                *metrics_routes(self._metrics, settings.metrics_key),
                *ui_routes(
                    PageApi(settings, indices, self._models, understanding),
                    self._upstream,
                    self._admission,
                    self._metrics,
                ),
            ],
        )
        self._log: SearchLog | None = None
        self._loading: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http" and self._own.has(scope):
            await self._own.router(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An answer of the engine, or an error in its shape."""
        receiving, sending = DrainableReceive(receive), _TrackedSend(send)
        with self._metrics.request("passed") as outcome:
            problem = await self._problem(scope, receiving, outcome, sending)
            # Where part of an answer is sent already the server closes the connection, which tells.
            if problem is not None and not sending.begun:
                await self._refuse(problem, receiving, send)

    async def _problem(
        self, scope: Scope, receiving: DrainableReceive, outcome: RequestOutcome, send: Send
    ) -> EsSbertError | None:
        """What keeps a request from an answer; None where it got one.

        The error comes without its traceback, which would keep the request's body in memory.
        """
        try:
            with self._admission.slot() as slot:
                incoming = IncomingRequest.of(scope, receiving, self._settings.limits, slot)
                route = match_route(incoming)
                outcome.kind = _metric_kind(route.api)
                await self._pass(incoming, route, outcome, send)
                return None
        except EsSbertError as error:
            outcome.status = http_status(error)
            if isinstance(error, EngineUnreachable):
                self._metrics.upstream_failed("timeout" if isinstance(error, UpstreamTimeout) else "unreachable")
            error.__cause__ = error.__context__ = None
            return error.with_traceback(None)
        except Exception as error:
            outcome.status = 500
            self._upstream.log.bug("a request met with a bug of the gateway", error)
            return EsSbertError(
                f"the gateway met with an error of its own ({type(error).__name__})",
                "Its log says more; please report it. X-Es-Sbert: off passes the request as it is.",
            )

    async def _pass(self, incoming: IncomingRequest, route: EngineRoute, outcome: RequestOutcome, send: Send) -> None:
        check_mode(incoming.header(MODE_HEADER))
        try:
            if route.api in SEARCH_APIS or route.api in MULTI_SEARCH_APIS:
                await self._search(incoming, route, outcome, send)
            elif route.api in self._others:
                outgoing = await cancel_on_disconnect(incoming, self._others[route.api].outgoing(incoming, route))
                outcome.status = await forward(incoming, send, self._upstream, outgoing) or outcome.status
            elif route.api in WRITE_APIS and self._settings.meaning.writes:
                outcome.status = await self._writing.answer(incoming, route, send) or outcome.status
            else:
                outcome.status = await self._forward(incoming, send) or outcome.status
        except ClientDisconnected:
            return

    async def _forward(self, incoming: IncomingRequest, send: Send) -> int:
        """Pass a request on that is none of ours; what it changes of indices must not be remembered otherwise."""
        remembering = (self._indices, self._writing) if changes_indices(incoming) else ()
        for memory in remembering:
            memory.forget()
        status = await forward(incoming, send, self._upstream, OutgoingRequest.same(incoming))
        # Once more: others may have asked meanwhile.
        for memory in remembering:
            memory.forget()
        return status

    async def _search(self, incoming: IncomingRequest, route: EngineRoute, outcome: RequestOutcome, send: Send) -> None:
        note = SearchRecorder(route.index, route.api)
        try:
            searching = self._multi_searching if route.api in MULTI_SEARCH_APIS else self._searching
            outcome.status = await searching.answer(incoming, route, send, note) or outcome.status
        except EsSbertError as error:
            outcome.status = http_status(error)
            raise
        finally:
            # System indices are searched by Kibana itself, all the time.
            if self._log is not None and route.api not in SEARCH_DIAGNOSTICS and not route.index.startswith("."):
                for search in note.records(outcome.status):
                    self._log.record(search)

    async def _refuse(self, error: EsSbertError, receiving: DrainableReceive, send: Send) -> None:
        body = error_body(error)
        headers = response_headers(self._upstream.engine_type, len(body))
        await receiving.rest(0)  # what is here already
        if not receiving.complete:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": http_status(error), "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        # A caller that is slow anyway need not get rid of the rest before it reads.
        slow = isinstance(error, RequestTimeout)
        await receiving.rest(_LINGER_SECONDS if slow else self._settings.limits.idle_seconds)
        await send({"type": "http.response.body", "body": b""})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._upstream.open()
        if self._settings.search_log is not None:
            self._log = SearchLog(self._settings.search_log, self._upstream.request_as_gateway)
            self._log.start()
        self._loading = asyncio.create_task(self._load_default())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._loading.cancel()
        if self._log is not None:
            await self._log.close()
        await self._models.close()
        await self._upstream.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _load_default(self) -> None:
        """Before the first search has to wait for it; searches say by themselves what is wrong with a model."""
        try:
            await self._models.get()
        except EsSbertError as error:
            logger.error("%s. %s", error.message, error.remedy)
        if self._on_loaded is not None:
            self._on_loaded()


class _TrackedSend:
    """An answer's messages.

    Args:
        send: The server's.

    Attributes:
        begun: Whether any was sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        self.begun = True
        await self._send(message)


class _GatewayRoutes:
    """The gateway's own pages among the engine's paths.

    Args:
        prefix: Path before all of them; often empty.
        routes: The pages.
    """

    def __init__(self, prefix: str, routes: Iterable[Route]) -> None:
        pages = list(routes)
        self.router = Router([Mount(prefix, routes=pages)] if prefix else pages)
        # A cheap look first: most requests are the engine's.
        self._starts = tuple(f"{prefix}/{page.path.split('/')[1]}" for page in pages)

    def has(self, scope: Scope) -> bool:
        """Whether a request is for one of them; other methods on their paths are the engine's."""
        if not scope["path"].startswith(self._starts):
            return False
        return any(route.matches(scope)[0] is Match.FULL for route in self.router.routes)


def _metric_kind(api: EngineApi) -> str:
    if api in SEARCH_APIS or api in MULTI_SEARCH_APIS or api is EngineApi.RANK_EVALUATION:
        return "search"
    return "write" if api in WRITE_APIS or api in BY_QUERY_APIS else "passed"


HEALTH_PATHS = ("/healthz", "/readyz")
UpstreamCheck = Callable[[], Awaitable[str | None]]


def health_routes(
    models: ModelRegistry, upstream_problem: UpstreamCheck, full: Callable[[], str | None]
) -> list[Route]:
    """`GET /healthz` and `GET /readyz`, which anyone may ask and which count against no limit.

    Args:
        upstream_problem: What keeps the engine from answering; None where it does. It bounds its own time.
        full: Which limit of the gateway is reached; None where there is none.
    """

    async def healthz(request: Request) -> Response:
        """The process lives; a supervisor need not restart it."""
        return JSONResponse({"status": "alive"})

    async def readyz(request: Request) -> Response:
        """Requests may be sent here; what is missing is said."""
        problems = {"engine": await upstream_problem(), "model": models.not_ready_reason, "capacity": full()}
        ready = not any(problems.values())
        checks = {part: problem or "ok" for part, problem in problems.items()}
        return JSONResponse({"status": "ready" if ready else "not ready", **checks}, 200 if ready else 503)

    pages = zip(HEALTH_PATHS, (healthz, readyz), strict=True)
    return [Route(path, page, methods=["GET"]) for path, page in pages]
