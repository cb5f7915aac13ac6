"""Handler of `_search` and its relatives, which run one search."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from urllib.parse import quote, urlencode

from starlette.types import Send

from es_sbert.engines.rest import Json
from es_sbert.gateway.concurrency import cancel_on_disconnect, offload_if_large
from es_sbert.gateway.proxy.engine_routes import SEARCH_DIAGNOSTICS, EngineApi, EngineRoute
from es_sbert.gateway.proxy.forward import (
    BufferedResponse,
    OutgoingRequest,
    RefusedAsTooLargeError,
    ResponseHooks,
    StaleRewriteError,
    enlarged_error,
    forward,
)
from es_sbert.gateway.proxy.incoming_request import IncomingRequest, UnreadableJson, write_object
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.hidden_fields import VectorHider, hide_by_parameter, must_parse
from es_sbert.gateway.search.incoming_search import (
    ReceivedRequest,
    RewriteContext,
    RewriteMode,
    parse_search,
    query_parameters,
    render_template,
)
from es_sbert.gateway.search.search_rewriter import RewriteResult, SearchRewriter
from es_sbert.gateway.search_log import SearchRecorder, SearchTrace, read_trace

# APIs whose searches can be sent twice, because they leave nothing in the engine.
_REPEATABLE = frozenset(
    {EngineApi.SEARCH, EngineApi.COUNT, EngineApi.SEARCH_TEMPLATE, EngineApi.EXPLAIN, EngineApi.VALIDATE}
)
# APIs whose response has no ranked hits. Queries do not become hybrid there.
_UNRANKED = frozenset({EngineApi.COUNT, *SEARCH_DIAGNOSTICS})


class SearchHandler:
    """Handles `_search`, `_async_search`, `_count`, `_search/template`, `_explain` and `_validate/query`.

    Args:
        rewriter: Rewrites search bodies.
        upstream: The engine.
        hider: Leaves vectors out of the hits.
    """

    def __init__(self, rewriter: SearchRewriter, upstream: Upstream, hider: VectorHider) -> None:
        self._rewriter = rewriter
        self._upstream = upstream
        self._hider = hider

    async def answer(self, incoming: IncomingRequest, route: EngineRoute, send: Send, recorder: SearchRecorder) -> int:
        """Rewrite a search and forward it; do both again if the indices have changed before the response.

        Returns:
            Status of the response; 0 if the client disconnected.

        Raises:
            EsSbertError: a semantic query is invalid, there are too many, or the engine is not available.
        """
        received = await self._rewriter.receive(incoming)
        if route.api in _UNRANKED and received.mode is RewriteMode.HYBRID:
            received = replace(received, mode=RewriteMode.ON)
        as_sent = SearchTrace(returns_hits=route.api is not EngineApi.COUNT)
        if as_sent.returns_hits and recorder.is_logged:
            plain = received.plain or b""
            as_sent = await offload_if_large(len(plain), read_trace, plain, incoming.query)
        while True:
            trace = replace(as_sent)
            recorder.searches[:] = [trace]
            outgoing, result = await cancel_on_disconnect(incoming, self._rewrite(received, incoming, route, trace))
            confirm_valid = None
            if result is not None and result.confirm is not None:
                confirm_valid = asyncio.ensure_future(result.confirm())
                confirm_valid.add_done_callback(_consume_exception)
            is_enlarged = result is not None and result.is_changed
            try:
                hooks = ResponseHooks(recorder.watch().part, confirm_valid=confirm_valid, enlarged=is_enlarged)
                return await forward(incoming, send, self._upstream, outgoing, hooks)
            except StaleRewriteError:  # written again, for the new indices
                continue
            except RefusedAsTooLargeError:
                raise enlarged_error("the search", len(outgoing.body or b"")) from None
            finally:
                if confirm_valid is not None:
                    confirm_valid.cancel()

    async def _rewrite(
        self, received: ReceivedRequest, incoming: IncomingRequest, route: EngineRoute, trace: SearchTrace
    ) -> tuple[OutgoingRequest, RewriteResult | None]:
        """Create the request to the engine; the rewrite result is None if the search has no semantic query."""
        plain, template = received.plain, route.api is EngineApi.SEARCH_TEMPLATE
        if plain is None:
            return received.unchanged, None
        size, options = len(plain), dict(query_parameters(incoming))
        repeatable = route.api in _REPEATABLE and "scroll" not in options
        if route.api is EngineApi.EXPLAIN:
            # The routing applies to the single document, not to the search.
            options.pop("routing", None)
        context = RewriteContext(route.index, options, incoming.headers, received.mode, size, trace=trace)
        result: RewriteResult | None = None
        search: Json | None = None
        params: list[tuple[str, str]] = []
        if await self._rewriter.maybe_semantic(plain + b" " + incoming.plain_query, received.mode, template=template):
            parsed, params = await offload_if_large(size, parse_search, plain, incoming)
            if template:
                rendered = await render_template(self._upstream, parsed, incoming)
                if isinstance(rendered, BufferedResponse):
                    return received.unchanged, None  # the engine rejects the template
                parsed = rendered
            result = await self._rewriter.rewrite(parsed, context, confirm_later=repeatable)
            search = result.body
        if not template and (result is None or not result.is_changed):
            unparsed = await self._hide_by_parameter(received, incoming, route, context)
            if unparsed is not None:
                return unparsed, result
            if search is None:
                try:
                    search, params = await offload_if_large(size, parse_search, plain, incoming)
                except UnreadableJson:
                    return received.unchanged, None  # the engine rejects it, or its hits have their vectors
        assert search is not None
        hidden = await self._hider.hide(search, params, context, route.api)
        if hidden is None and (result is None or not result.is_changed):
            return received.unchanged, result
        params = params if hidden is None else hidden
        preference = None if result is None else result.preference
        if preference is not None and route.api is not EngineApi.VALIDATE:  # VALIDATE lacks the parameter
            params = [*params, ("preference", preference)]
        path = incoming.path.rstrip(b"/").removesuffix(b"/template") if template else incoming.path
        target = path + b"?" + urlencode(params, quote_via=quote).encode() if params else path
        # A search from the parameters `source` or `q` is sent as a body.
        method = "POST" if incoming.method == "GET" and not received.unchanged.body else incoming.method
        vectors = 0 if result is None else len(result.queries)
        written = await offload_if_large(size * max(1, vectors), write_object, search)
        return OutgoingRequest.with_body(incoming, written, target, method), result

    async def _hide_by_parameter(
        self, received: ReceivedRequest, incoming: IncomingRequest, route: EngineRoute, context: RewriteContext
    ) -> OutgoingRequest | None:
        """Leave the vectors out of the hits of a search whose body stays as sent; None if the body must be parsed."""
        plain = received.plain or b""
        if not self._hider.applies(route.api, context.options):
            return received.unchanged
        if await offload_if_large(context.size, must_parse, plain, incoming.query):
            return None if context.size <= self._rewriter.max_parsed_bytes else received.unchanged
        fields = await self._hider.fields(context)
        target = hide_by_parameter(received.unchanged.target, fields) if fields else received.unchanged.target
        if target is None and context.size > self._rewriter.max_parsed_bytes:
            return received.unchanged
        return None if target is None else replace(received.unchanged, target=target)


def _consume_exception(confirming: asyncio.Future[bool]) -> None:
    """Ignore the error of a check whose result is no longer needed."""
    if not confirming.cancelled():
        confirming.exception()
