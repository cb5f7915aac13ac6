"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Mount, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.admission import Admission, Connections
from es_sbert.gateway.embedding.models import Models
from es_sbert.gateway.failures import RequestTimeout, UpstreamTimeout, answer_headers, error_body, status_of
from es_sbert.gateway.health import health_routes
from es_sbert.gateway.indices import Indices
from es_sbert.gateway.metrics import GatewayMetrics, Outcome, metrics_routes
from es_sbert.gateway.openai.api import embedding_routes
from es_sbert.gateway.openai.description import description_routes
from es_sbert.gateway.search_log.log import SearchLog
from es_sbert.gateway.search_log.notes import SearchNote
from es_sbert.gateway.searches.by_query import ByQuery
from es_sbert.gateway.searches.languages import Languages
from es_sbert.gateway.searches.points_in_time import PointsInTime
from es_sbert.gateway.searches.rank_evaluation import RankEvaluation
from es_sbert.gateway.searches.reading import MODE_HEADER
from es_sbert.gateway.searches.several import MultiSearching
from es_sbert.gateway.searches.single import Searching
from es_sbert.gateway.searches.templates import Templates
from es_sbert.gateway.searches.understanding import Understanding, check_mode
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.tasks import while_connected
from es_sbert.gateway.ui.api import PageApi
from es_sbert.gateway.ui.routes import ui_routes
from es_sbert.gateway.wire.forward import Outgoing, forward
from es_sbert.gateway.wire.incoming import CallerGone, Incoming, Receiving
from es_sbert.gateway.wire.routes import (
    ABOUT_SEARCHES,
    MULTI_SEARCHES,
    SEARCHES,
    WRITES,
    WRITES_OF_MATCHES,
    Api,
    changes_indices,
    route_of,
)
from es_sbert.gateway.wire.routes import Route as EngineRoute
from es_sbert.gateway.wire.upstream import Upstream
from es_sbert.gateway.writes.writing import Writing

logger = logging.getLogger(__name__)
# Between the answer to a caller that sends too slowly and the end of its connection.
_LINGER_SECONDS = 2.0


def create_app(
    settings: GatewaySettings, connections: Connections | None = None, on_loaded: Callable[[], None] | None = None
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
            gateway, allow_origins=settings.listen.cors_origins, allow_methods=["GET", "POST", "OPTIONS"],
            allow_headers=["authorization", "content-type", "x-es-sbert", "x-opaque-id"],
        )  # fmt: skip
    return gateway


class Gateway:
    """Passes requests on, and understands those that ask by meaning.

    Args:
        settings: The operator's.
        connections: Those of the server, where it counts them.
        on_loaded: Called once the default model is in memory.
    """

    def __init__(
        self, settings: GatewaySettings, connections: Connections | None = None,
        on_loaded: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._on_loaded = on_loaded
        self._metrics = GatewayMetrics(settings.models.public_names)
        connections = connections or Connections(settings.limits)
        self._admission = Admission(settings.limits)
        self._metrics.watch(self._admission, connections)
        self._upstream = Upstream(settings.upstream, settings.limits)
        self._models = Models(settings.models, settings.embedding, self._metrics)
        indices = Indices(self._upstream, settings.meaning.virtual_field)
        understanding = Understanding(settings, self._upstream, indices, self._models)
        points, templates = PointsInTime(self._upstream), Templates(self._upstream)
        self._searching = Searching(understanding, points, templates, self._upstream)
        self._multi_searching = MultiSearching(understanding, points, templates, self._upstream)
        by_query, languages = ByQuery(understanding), Languages(understanding)
        # APIs that are no searches, and may hold them.
        self._others: dict[Api, ByQuery | Languages | RankEvaluation] = {
            Api.BY_QUERY: by_query,
            Api.REINDEX: by_query,
            Api.LANGUAGE: languages,
            Api.RANK_EVALUATION: RankEvaluation(understanding, templates),
        }
        self._indices = indices
        self._writing = Writing(settings, self._upstream, indices, self._models, self._metrics)
        self._own = _OwnPages(settings.listen.own_prefix, [
            *embedding_routes(self._models, settings.embeddings_api, self._metrics, self._admission),
            *description_routes(),
            *health_routes(self._models, self._upstream.problem, lambda: self._admission.full or connections.full),
            *metrics_routes(self._metrics, settings.metrics_key),
            *ui_routes(
                PageApi(settings, indices, self._models, understanding), self._upstream, self._admission,
                self._metrics,
            ),
        ])  # fmt: skip
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
        receiving, sending = Receiving(receive), _Sending(send)
        with self._metrics.request("passed") as outcome:
            problem = await self._problem(scope, receiving, outcome, sending)
            # Where part of an answer is sent already the server closes the connection, which tells.
            if problem is not None and not sending.begun:
                await self._refuse(problem, receiving, send)

    async def _problem(self, scope: Scope, receiving: Receiving, outcome: Outcome, send: Send) -> EsSbertError | None:
        """What keeps a request from an answer; None where it got one.

        The error comes without its traceback, which would keep the request's body in memory.
        """
        try:
            with self._admission.slot() as slot:
                incoming = Incoming.of(scope, receiving, self._settings.limits, slot)
                route = route_of(incoming)
                outcome.kind = _kind(route.api)
                await self._pass(incoming, route, outcome, send)
                return None
        except EsSbertError as error:
            outcome.status = status_of(error)
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

    async def _pass(self, incoming: Incoming, route: EngineRoute, outcome: Outcome, send: Send) -> None:
        check_mode(incoming.header(MODE_HEADER))
        try:
            if route.api in SEARCHES or route.api in MULTI_SEARCHES:
                await self._search(incoming, route, outcome, send)
            elif route.api in self._others:
                outgoing = await while_connected(incoming, self._others[route.api].outgoing(incoming, route))
                outcome.status = await forward(incoming, send, self._upstream, outgoing) or outcome.status
            elif route.api in WRITES and self._settings.meaning.writes:
                outcome.status = await self._writing.answer(incoming, route, send) or outcome.status
            else:
                outcome.status = await self._forward(incoming, send) or outcome.status
        except CallerGone:
            return

    async def _forward(self, incoming: Incoming, send: Send) -> int:
        """Pass a request on that is none of ours; what it changes of indices must not be remembered otherwise."""
        remembering = (self._indices, self._writing) if changes_indices(incoming) else ()
        for memory in remembering:
            memory.forget()
        status = await forward(incoming, send, self._upstream, Outgoing.same(incoming))
        # Once more: others may have asked meanwhile.
        for memory in remembering:
            memory.forget()
        return status

    async def _search(self, incoming: Incoming, route: EngineRoute, outcome: Outcome, send: Send) -> None:
        note = SearchNote(route.index, route.api)
        try:
            searching = self._multi_searching if route.api in MULTI_SEARCHES else self._searching
            outcome.status = await searching.answer(incoming, route, send, note) or outcome.status
        except EsSbertError as error:
            outcome.status = status_of(error)
            raise
        finally:
            # System indices are searched by Kibana itself, all the time.
            if self._log is not None and route.api not in ABOUT_SEARCHES and not route.index.startswith("."):
                for search in note.records(outcome.status):
                    self._log.record(search)

    async def _refuse(self, error: EsSbertError, receiving: Receiving, send: Send) -> None:
        body = error_body(error)
        headers = answer_headers(self._upstream.flavour, len(body))
        await receiving.rest(0)  # what is here already
        if not receiving.complete:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status_of(error), "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        # A caller that is slow anyway need not get rid of the rest before it reads.
        slow = isinstance(error, RequestTimeout)
        await receiving.rest(_LINGER_SECONDS if slow else self._settings.limits.idle_seconds)
        await send({"type": "http.response.body", "body": b""})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._upstream.open()
        if self._settings.search_log is not None:
            self._log = SearchLog(self._settings.search_log, self._upstream.ask_as_itself)
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


class _Sending:
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


class _OwnPages:
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


def _kind(api: Api) -> str:
    if api in SEARCHES or api in MULTI_SEARCHES or api is Api.RANK_EVALUATION:
        return "search"
    return "write" if api in WRITES or api in WRITES_OF_MATCHES else "passed"
