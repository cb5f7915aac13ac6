"""Handler of `_search` and its relatives, of ES|QL, and of `_msearch`, which is a list of searches.

Each search of an `_msearch` is rewritten separately. One that fails gets an error at its position in the response; the
others run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import quote, unquote, urlencode

from starlette.types import Send

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.concurrency import gather_or_cancel, offload_if_large
from es_sbert.gateway.engine_routes import MULTI_SEARCH_APIS, EngineApi, EngineRoute
from es_sbert.gateway.errors import error_object, http_status
from es_sbert.gateway.forward import (
    TOO_LARGE,
    BufferedResponse,
    OutgoingRequest,
    RefusedAsTooLargeError,
    ResponseHooks,
    StaleRewriteError,
    enlarged_error,
    fetch_response,
    forward,
    send_response,
)
from es_sbert.gateway.incoming_request import Headers, IncomingRequest, UnreadableJson, parse_object, write_object
from es_sbert.gateway.search.esql import EsqlQuery
from es_sbert.gateway.search.hidden_fields import VectorHider, hide_by_parameter, hide_in_bodies, must_parse
from es_sbert.gateway.search.incoming_search import (
    ReceivedRequest,
    RewriteContext,
    RewriteMode,
    SemanticBudget,
    index_expression,
    parse_search,
    query_parameters,
    render_template,
)
from es_sbert.gateway.search.search_log import SearchRecorder, SearchTrace, read_trace
from es_sbert.gateway.search.search_rewriter import RewriteResult, SearchRewriter
from es_sbert.gateway.search.unsupported_apis import reject_semantic
from es_sbert.gateway.upstream import Upstream

_TEMPLATES = frozenset({EngineApi.SEARCH_TEMPLATE, EngineApi.MULTI_SEARCH_TEMPLATE})
# APIs whose searches can be sent twice, because they leave nothing in the engine.
_REPEATABLE = frozenset({EngineApi.SEARCH, EngineApi.COUNT, EngineApi.SEARCH_TEMPLATE})
# Maximum number of searches of one request that are logged if none of them is semantic.
_MAX_LOGGED = 1000


@dataclass
class MsearchEntry:
    """One search of `_msearch`.

    Attributes:
        header, body: The two lines of the search.
        trace: Its entry in the search log.
        is_changed: Whether a line was changed, or an error of the gateway takes the place of the search.
        response: Its part of the response if it is not sent to the engine.
    """

    header: bytes
    body: bytes
    trace: SearchTrace = field(default_factory=SearchTrace)
    is_changed: bool = False
    response: Json | None = None


class SearchHandler:
    """Handles `_search`, `_async_search`, `_count`, `_msearch`, search templates and `_query`.

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
        """Rewrite a search, or several, and forward the request.

        Returns:
            Status of the response; 0 if the client disconnected.

        Raises:
            EsSbertError: a semantic query is invalid, there are too many, or the engine is not available. Errors of
                single searches of an `_msearch` are part of the response.
        """
        if route.api in MULTI_SEARCH_APIS:
            return await self._answer_several(incoming, route, send, recorder)
        received = await self._rewriter.receive(incoming)
        if route.api is EngineApi.COUNT and received.mode is RewriteMode.HYBRID:
            received = replace(received, mode=RewriteMode.ON)  # its response has no ranked hits
        as_sent = SearchTrace(returns_hits=route.api is not EngineApi.COUNT)
        if as_sent.returns_hits and recorder.is_logged:
            plain = received.plain or b""
            as_sent = await offload_if_large(len(plain), read_trace, plain, incoming.query)
        while True:
            trace, confirm_valid = replace(as_sent), None
            recorder.searches[:] = [trace]
            try:
                outgoing, result = await incoming.cancel_on_disconnect(self._rewrite(received, incoming, route, trace))
                if result is not None and result.confirm is not None:
                    confirm_valid = asyncio.ensure_future(result.confirm())
                    # Its error is of no interest once its result is not needed.
                    confirm_valid.add_done_callback(lambda done: done.cancelled() or done.exception())
                is_enlarged = result is not None and result.is_changed
                hooks = ResponseHooks(recorder.watch(), confirm_valid=confirm_valid, enlarged=is_enlarged)
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
        plain, is_template = received.plain, route.api in _TEMPLATES
        if plain is None:
            return received.unchanged, None
        size, options = len(plain), dict(query_parameters(incoming))
        is_repeatable = route.api in _REPEATABLE and "scroll" not in options
        context = RewriteContext(route.index, options, incoming.headers, received.mode, size, trace=trace)
        if route.api is EngineApi.ESQL:
            await reject_semantic(self._rewriter, received, incoming, route)
            return await self._rewrite_esql(received, plain, incoming, context)
        result: RewriteResult | None = None
        search: Json | None = None
        params: list[tuple[str, str]] = []
        searched = plain + b" " + incoming.plain_query
        if await self._rewriter.maybe_semantic(searched, received.mode, template=is_template):
            body, params = await offload_if_large(size, parse_search, plain, incoming)
            rewritten = await self._rewrite_search(body, incoming, route, context, confirm_later=is_repeatable)
            if isinstance(rewritten, BufferedResponse):
                return received.unchanged, None  # the engine rejects the template
            result, search = rewritten, rewritten.body
        if not is_template and (result is None or not result.is_changed):
            hidden = await self._hide_by_parameter(received, route, context, incoming.query)
            if hidden is not None:
                return hidden, result
            if search is None:
                try:
                    search, params = await offload_if_large(size, parse_search, plain, incoming)
                except UnreadableJson:
                    return received.unchanged, None  # the engine rejects it, or its hits have their vectors
        assert search is not None
        raw = None if is_template else plain
        left = await self._hider.hide(search, params, context, route.api, raw)
        if left is None and (result is None or not result.is_changed):
            return received.unchanged, result
        params = params if left is None else left
        if result is not None and result.preference is not None:
            params = [*params, ("preference", result.preference)]
        path = _path(incoming, route)
        target = path + b"?" + urlencode(params, quote_via=quote).encode() if params else path
        # A search from the parameters `source` or `q` is sent as a body.
        method = "POST" if incoming.method == "GET" and not received.unchanged.body else incoming.method
        vectors = 0 if result is None else len(result.queries)
        written = await offload_if_large(size * max(1, vectors), write_object, search)
        return OutgoingRequest.with_body(incoming, written, target, method), result

    async def _rewrite_esql(
        self, received: ReceivedRequest, plain: bytes, incoming: IncomingRequest, context: RewriteContext
    ) -> tuple[OutgoingRequest, RewriteResult | None]:
        may_be_knn = b"knn" in plain.lower()
        if not await self._rewriter.maybe_semantic(plain, RewriteMode.ON, template=may_be_knn):
            return received.unchanged, None
        try:
            query = await offload_if_large(context.size, EsqlQuery, plain)
        except UnreadableJson:
            return received.unchanged, None  # the engine rejects it
        if not query.indices:
            return received.unchanged, None
        find = partial(query.find, upstream=self._upstream)
        context = replace(context, expression=query.indices, options={}, mode=RewriteMode.ON, find=find)
        if context.trace is not None:
            context.trace.index = unquote(query.indices)
        result = await self._rewriter.rewrite(query.body, context)
        if not query.parameters:
            return received.unchanged, None
        body = await offload_if_large(context.size, query.rewritten)
        return OutgoingRequest.with_body(incoming, body), result

    async def _rewrite_search(
        self,
        body: Json,
        incoming: IncomingRequest,
        route: EngineRoute,
        context: RewriteContext,
        *,
        confirm_later: bool = False,
    ) -> RewriteResult | BufferedResponse:
        """Rewrite one search; the engine's response if it is a template that cannot be rendered.

        Raises:
            StaleRewriteError, EsSbertError: see `SearchRewriter.rewrite`.
        """
        if route.api in _TEMPLATES:
            rendered = await render_template(self._upstream, body, incoming)
            if isinstance(rendered, BufferedResponse):
                return rendered
            body = rendered
        return await self._rewriter.rewrite(body, context, confirm_later=confirm_later)

    async def _hide_by_parameter(
        self, received: ReceivedRequest, route: EngineRoute, context: RewriteContext, query: bytes
    ) -> OutgoingRequest | None:
        """Leave the vectors out of the hits of a search whose body stays as sent; None if the body must be parsed."""
        unchanged = received.unchanged
        target: bytes | None = unchanged.target
        if self._hider.applies(route.api, context.options):
            if await offload_if_large(context.size, must_parse, received.plain or b"", query):
                target = None
            elif fields := await self._hider.fields(context):
                target = hide_by_parameter(unchanged.target, fields)
        if target is not None:
            return replace(unchanged, target=target)
        return None if context.size <= self._rewriter.limits.search_bytes else unchanged

    async def _answer_several(
        self, incoming: IncomingRequest, route: EngineRoute, send: Send, recorder: SearchRecorder
    ) -> int:
        received = await self._rewriter.receive(incoming)
        entries: list[MsearchEntry] = []
        options, is_rewritten = dict(query_parameters(incoming)), False
        if received.plain is not None:
            plain, is_template = received.plain, route.api in _TEMPLATES
            may_be_semantic = await self._rewriter.maybe_semantic(plain, received.mode, template=is_template)
            may_hide = self._hider.applies(route.api, {})
            if may_be_semantic or may_hide or recorder.is_logged:
                engine_type = self._upstream.engine_type_or_default
                entries = await offload_if_large(len(plain), split_entries, plain, engine_type)
            if may_be_semantic or recorder.is_logged:
                recorder.searches += [entry.trace for entry in entries[: None if may_be_semantic else _MAX_LOGGED]]
            context = RewriteContext(route.index, options, incoming.headers, received.mode)
            if may_be_semantic:
                await incoming.cancel_on_disconnect(self._rewrite_entries(entries, incoming, route, context))
                is_rewritten = any(entry.is_changed and entry.response is None for entry in entries)
            if may_hide and not is_template:
                await incoming.cancel_on_disconnect(self._hide_in_entries(entries, context))
        if not any(entry.is_changed for entry in entries):  # the engine reports templates that it rejects
            del entries  # the lines of a large request
            hooks = ResponseHooks(recorder.watch())
            return await forward(incoming, send, self._upstream, received.unchanged, hooks)
        path = _path(incoming, route)
        target = path + b"?" + incoming.query if incoming.query else path
        sent = [entry for entry in entries if entry.response is None]
        lines = b"".join(entry.header + b"\n" + entry.body + b"\n" for entry in sent)
        outgoing = OutgoingRequest.with_body(incoming, lines, target)
        if len(sent) == len(entries):
            hooks = ResponseHooks(recorder.watch(), enlarged=True)
            try:
                return await forward(incoming, send, self._upstream, outgoing, hooks)
            except RefusedAsTooLargeError:
                if is_rewritten:
                    raise enlarged_error("the request", len(lines)) from None
                # Without the names of the fields to hide: the hits have their vectors.
                return await forward(incoming, send, self._upstream, received.unchanged, replace(hooks, enlarged=False))
        joining = self._join_responses(outgoing if sent else None, entries, is_filtered="filter_path" in options)
        return await send_response(send, await incoming.cancel_on_disconnect(joining))

    async def _rewrite_entries(
        self, entries: Sequence[MsearchEntry], incoming: IncomingRequest, route: EngineRoute, context: RewriteContext
    ) -> None:
        """Rewrite the searches that may be semantic.

        Raises:
            BadRequest: too many of the searches may be semantic.
        """
        semantic = [
            entry
            for entry in entries
            if route.api in _TEMPLATES or await self._rewriter.maybe_semantic(entry.body, context.mode)
        ]
        budget = SemanticBudget(self._rewriter.limits)
        budget.check(len(semantic), 0)
        context = replace(context, budget=budget)
        await gather_or_cancel(self._rewrite_entry(entry, incoming, route, context) for entry in semantic)

    async def _rewrite_entry(
        self, entry: MsearchEntry, incoming: IncomingRequest, route: EngineRoute, context: RewriteContext
    ) -> None:
        """Rewrite one search; `context` is that of a search with an empty header."""
        size = len(entry.body)
        try:
            header = parse_object(entry.header or b"{}")
            own_context = replace(_with_header(context, header), size=size, trace=entry.trace)
            body = await offload_if_large(size, parse_object, entry.body)
            result = await self._rewrite_search(body, incoming, route, own_context)
            if isinstance(result, BufferedResponse):
                with self._upstream.parsing("POST /_render/template"):
                    entry.response = {"error": parse_object(result.body)["error"], "status": result.status}
                entry.trace.status = result.status
                return
        except StaleRewriteError:  # written again, for the new indices; its queries are counted already
            return await self._rewrite_entry(entry, incoming, route, replace(context, budget=None))
        except EsSbertError as error:
            entry.response, entry.is_changed = {"error": error_object(error), "status": http_status(error)}, True
            entry.trace.status = entry.response["status"]
            return
        if result.is_changed or route.api in _TEMPLATES:
            raw = None if route.api in _TEMPLATES else entry.body
            hidden = await self._hider.hide(result.body, [], own_context, EngineApi.MULTI_SEARCH, raw)
            entry.is_changed = result.is_changed or hidden is not None
            entry.body = await offload_if_large(size * max(1, len(result.queries)), write_object, result.body)
            if result.preference is not None:
                entry.header = write_object(header | {"preference": result.preference})

    async def _hide_in_entries(self, entries: Sequence[MsearchEntry], context: RewriteContext) -> None:
        """Leave the vectors out of the hits of the searches that were not rewritten."""
        # Look up the fields once for all searches with the same header: in most requests, all have the same one.
        by_header: dict[bytes, list[MsearchEntry]] = {}
        for entry in entries:
            if not entry.is_changed and entry.response is None:
                by_header.setdefault(entry.header, []).append(entry)
        for header, same in by_header.items():
            try:
                own_context = _with_header(context, parse_object(header or b"{}"))
            except UnreadableJson:
                continue  # the engine rejects it
            if fields := await self._hider.fields(own_context):
                bodies = [entry.body for entry in same]
                hide = partial(hide_in_bodies, bodies, fields, self._rewriter.limits.search_bytes)
                for entry, body in zip(same, await offload_if_large(sum(map(len, bodies)), hide), strict=True):
                    entry.is_changed, entry.body = body is not entry.body, body

    async def _join_responses(
        self, request: OutgoingRequest | None, entries: Sequence[MsearchEntry], *, is_filtered: bool
    ) -> BufferedResponse:
        """Send the searches without an error.

        Args:
            request: The request for these searches; None if there are none.
            is_filtered: Whether the request has a `filter_path`.

        Returns:
            The responses and errors, each at its position; or the engine's response if it rejects the request. If the
            engine leaves out responses because of a `filter_path`, the errors follow the responses.

        Raises:
            EsSbertError: the rewritten request is too large for the engine, or the engine is not available.
        """
        answer: Json = {"took": 0, "responses": []}
        headers: Headers = [(b"content-type", b"application/json")]
        if request is not None:
            response = await fetch_response(self._upstream, request)
            if response.status == TOO_LARGE:
                raise enlarged_error("the request", len(request.body or b""))
            try:
                answer = parse_object(response.body)
            except UnreadableJson:  # not the engine's: the client gets it as it is
                return response
            if response.status != 200:
                return response
            headers = response.headers
        errors = [entry.response for entry in entries if entry.response]
        with self._upstream.parsing("POST /_msearch"):
            responses = deque(answer.get("responses", []) if is_filtered else answer["responses"])
            if is_filtered and len(responses) + len(errors) != len(entries):
                merged = [*responses, *errors]
            else:
                merged = [responses.popleft() if entry.response is None else entry.response for entry in entries]
        return BufferedResponse(200, headers, write_object(answer | {"responses": merged}))


def _path(incoming: IncomingRequest, route: EngineRoute) -> bytes:
    """The path of the API that runs the rewritten search: a template was rendered."""
    return incoming.path.rstrip(b"/").removesuffix(b"/template") if route.api in _TEMPLATES else incoming.path


def split_entries(plain: bytes, engine_type: EngineType) -> list[MsearchEntry]:
    """Split a body into its searches as the engine does; empty if it rejects the body: no line feed ends it."""
    lines = plain.split(b"\n")
    if lines.pop():
        return []
    if engine_type is EngineType.OPENSEARCH and lines and not lines[0]:
        del lines[0]  # to Elasticsearch, it is an empty header
    pairs = zip(lines[::2], lines[1::2], strict=False)  # engines ignore a last header without a body
    return [MsearchEntry(header.strip(), body.strip(), _entry_trace(header, body)) for header, body in pairs]


def _entry_trace(header: bytes, body: bytes) -> SearchTrace:
    """Create the log entry of a search from its two lines."""
    try:
        members = parse_object(header.strip() or b"{}")
    except UnreadableJson:
        members = {}
    expression = index_expression(members.get("index", members.get("indices")))
    return read_trace(body, index=None if expression is None else unquote(expression))


def _with_header(context: RewriteContext, header: Json) -> RewriteContext:
    """Return the context of a search of `_msearch`, given the context of a search with an empty header."""
    own = {name: _parameter_value(value) for name, value in header.items() if name not in ("index", "indices")}
    expression = index_expression(header.get("index", header.get("indices")))
    context = replace(context, options={**context.options, **own})
    return context if expression is None else replace(context, expression=expression)


def _parameter_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
