"""Handler of `_search` and its relatives: rewrite the body, forward the request, retry if an alias moved meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote, urlencode

from starlette.types import Send

from es_sbert.engines.protocol import Json
from es_sbert.gateway.concurrency import cancel_on_disconnect, offload_if_large
from es_sbert.gateway.proxy.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.proxy.forward import BufferedResponse, OutgoingRequest, StaleRewriteError, forward
from es_sbert.gateway.proxy.incoming_request import IncomingRequest
from es_sbert.gateway.proxy.json_bodies import UnsupportedJson, parse_object, write_object
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.incoming_search import (
    ParsedSearch,
    PitResolver,
    ReceivedRequest,
    TemplateRenderer,
    parse_search,
    receive_request,
)
from es_sbert.gateway.search.rewrite_context import RewriteContext, RewriteMode
from es_sbert.gateway.search.search_rewriter import RewriteResult, SearchRewriter
from es_sbert.gateway.search_recorder import SearchRecorder

# Searches that can be made again.
_REPEATABLE = frozenset(
    {EngineApi.SEARCH, EngineApi.COUNT, EngineApi.SEARCH_TEMPLATE, EngineApi.EXPLAIN, EngineApi.VALIDATE}
)


@dataclass(frozen=True)
class _RewrittenRequest:
    """A search as it goes to the engine.

    Attributes:
        outgoing: The very request where nothing in it asks by meaning.
        understood: What was understood of it; None where it was not looked into.
    """

    outgoing: OutgoingRequest
    understood: RewriteResult | None = None


class SearchHandler:
    """Handles `_search`, `_async_search` and `_count`, their templates, `_explain` and `_validate/query`.

    Args:
        understanding: Rewrites bodies.
        points: Knows which indices a point in time stands for.
        templates: Fills templates in.
        upstream: The engine.
    """

    def __init__(
        self, understanding: SearchRewriter, points: PitResolver, templates: TemplateRenderer, upstream: Upstream
    ) -> None:
        self._understanding = understanding
        self._points = points
        self._templates = templates
        self._upstream = upstream

    async def answer(self, incoming: IncomingRequest, route: EngineRoute, send: Send, note: SearchRecorder) -> int:
        """Send the request on and its answer back.

        Args:
            note: Told what was asked.

        Returns:
            The answer's status; 0 where the caller did not wait for it.

        Raises:
            EsSbertError: it asks for something that cannot be, or the engine cannot be asked.
        """
        there = await receive_request(incoming, self._understanding)
        while True:
            asked = await cancel_on_disconnect(incoming, self._asked(there, incoming, route))
            understood = asked.understood
            note.searches.clear()
            amend = confirming = None
            if understood is not None and asked.outgoing is not there.same:
                note.asked(understood)
                if understood.confirm is not None:
                    confirming = asyncio.ensure_future(understood.confirm())
                    confirming.add_done_callback(_consume_exception)
            elif understood is not None and understood.hint is not None and may_need_hint(asked.outgoing):
                amend = partial(add_hint, hint=understood.hint)
            try:
                look = note.watch().part
                return await forward(incoming, send, self._upstream, asked.outgoing, look, amend, confirming)
            except StaleRewriteError:
                continue
            finally:
                if confirming is not None:
                    confirming.cancel()

    async def _asked(self, there: ReceivedRequest, incoming: IncomingRequest, route: EngineRoute) -> _RewrittenRequest:
        """What goes to the engine."""
        plain, mode, same = there.plain, there.mode, _RewrittenRequest(there.same)
        templated = route.api is EngineApi.SEARCH_TEMPLATE
        if plain is None or mode is RewriteMode.OFF:
            return same
        if templated:
            self._understanding.check_size(plain)  # what it stands for is not seen yet
        elif not await self._understanding.maybe_semantic(plain + b" " + incoming.query, mode):
            return same
        try:
            read = await offload_if_large(len(plain), parse_search, plain, incoming)
        except UnsupportedJson:
            return same
        if templated:
            rendered = await self._templates.render(read.body, incoming)
            if isinstance(rendered, BufferedResponse):
                return same  # the engine says by itself what is wrong with the template
            read = ParsedSearch(rendered, read.params)
        of_point = "pit" in read.body
        expression = await self._points.expression(read.body, incoming) if of_point else route.index
        options = dict(read.params)
        if route.api is EngineApi.EXPLAIN:
            # There it says where the one document is, not where to search.
            options.pop("routing", None)
        scope = RewriteContext(
            expression,
            options,
            incoming.headers,
            mode,
            listed=of_point,
            size=len(plain),
            budget=self._understanding.budget(),
        )
        # What is sent twice must leave nothing in the engine.
        again = route.api in _REPEATABLE and "scroll" not in options
        understood = await self._understanding.rewrite(read.body, scope, confirm_later=again)
        if understood.body is read.body:
            return _RewrittenRequest(there.same, understood)
        path = incoming.path
        if templated:
            path = path.rstrip(b"/").removesuffix(b"/template")
        target = path + b"?" + urlencode(read.params, quote_via=quote).encode() if read.params else path
        # A search whose body came in the query is one with a body now.
        method = "POST" if incoming.method == "GET" and not plain else incoming.method
        size = len(plain) * max(1, len(understood.asked))
        body = await offload_if_large(size, write_object, understood.body)
        return _RewrittenRequest(OutgoingRequest.rewritten(incoming, body, target, method), understood)


def _consume_exception(confirming: asyncio.Future[bool]) -> None:
    """An error of a question whose answer is not needed any more is no error."""
    if not confirming.cancelled():
        confirming.exception()


_NATIVE_SEMANTIC_QUERIES = (b'"query_vector_builder"', b'"neural"', b'"semantic"')


def may_need_hint(outgoing: OutgoingRequest) -> bool:
    """Whether a search that is passed on as it came looks like one of the engine's own queries by meaning."""
    return outgoing.body is not None and any(mark in outgoing.body for mark in _NATIVE_SEMANTIC_QUERIES)


def add_hint(answer: BufferedResponse, hint: str) -> BufferedResponse:
    """An answer with the hint in its reason if it is an error in the engine's shape."""
    if answer.status != 400:
        return answer  # not about the query
    try:
        body = parse_object(answer.body)
    except UnsupportedJson:
        return answer
    error = body.get("error")
    if not isinstance(error, dict):
        return answer
    roots = error.get("root_cause")
    changed = _with_hint(error, hint)
    if isinstance(roots, list) and all(isinstance(root, dict) for root in roots):
        changed["root_cause"] = [_with_hint(root, hint) for root in roots]
    return BufferedResponse(answer.status, answer.headers, write_object(body | {"error": changed}))


def _with_hint(error: Json, hint: str) -> Json:
    reason = str(error.get("reason") or error.get("type") or "").rstrip(".")
    return error | {"reason": f"{reason}. {hint}"}
