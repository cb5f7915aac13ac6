"""Handlers of the APIs that run searches: `_search` and its relatives, and `_msearch`.

Each search of `_msearch` is rewritten separately. One that fails gets an error at its position in the response; the
others run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import parse_qsl, quote, unquote, urlencode

from starlette.types import Send

from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.concurrency import cancel_on_disconnect, gather_or_cancel, offload_if_large
from es_sbert.gateway.errors import BadRequest, error_object, http_status
from es_sbert.gateway.proxy.engine_routes import MULTI_SEARCH_APIS, EngineApi, EngineRoute
from es_sbert.gateway.proxy.forward import (
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
from es_sbert.gateway.proxy.incoming_request import Headers, IncomingRequest
from es_sbert.gateway.proxy.json_bodies import UnsupportedJson, lines_to_utf8, parse_object, write_object
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.hidden_fields import (
    VectorHider,
    hide_by_parameter,
    hide_in_bodies,
    hide_in_search,
    must_parse,
)
from es_sbert.gateway.search.incoming_search import (
    ReceivedRequest,
    RewriteContext,
    RewriteMode,
    index_expression,
    parse_search,
    target_without_filter_path,
)
from es_sbert.gateway.search.search_rewriter import RewriteResult, SearchRewriter
from es_sbert.gateway.search_log import SearchRecorder, SearchTrace, read_trace

# APIs whose searches can be sent twice, because they leave nothing in the engine.
_REPEATABLE = frozenset(
    {EngineApi.SEARCH, EngineApi.COUNT, EngineApi.SEARCH_TEMPLATE, EngineApi.EXPLAIN, EngineApi.VALIDATE}
)
_NATIVE_SEMANTIC_QUERIES = (b'"query_vector_builder"', b'"neural"', b'"semantic"')
# A field that a filter of the caller cannot name: whether hits would lose fields, before these are looked up.
_ANY_FIELD = ("",)
Parameters = list[tuple[str, str]]
# Maximum number of searches of one request that are logged if none of them is semantic.
_MAX_LOGGED = 1000


@dataclass(frozen=True)
class _MsearchEntry:
    """One search of `_msearch`.

    Attributes:
        header, body: Its two lines.
        trace: What the log says about it.
        result: The result of rewriting it; None if it is not semantic.
        is_hidden: Whether its body was changed so that its hits lack the vectors.
        error: Why it cannot be rewritten.
        response: Its part of the response if it is not sent to the engine.
    """

    header: bytes
    body: bytes
    trace: SearchTrace = field(default_factory=SearchTrace)
    result: RewriteResult | None = None
    is_hidden: bool = False
    error: EsSbertError | None = None
    response: Json | None = None


class SearchHandler:
    """Handles `_search`, `_async_search`, `_count`, `_msearch`, their templates, `_explain` and `_validate/query`.

    Args:
        rewriter: Rewrites search bodies.
        upstream: The engine.
        hider: Knows which fields the hits lack.
    """

    def __init__(self, rewriter: SearchRewriter, upstream: Upstream, hider: VectorHider) -> None:
        self._rewriter = rewriter
        self._upstream = upstream
        self._hider = hider

    async def answer(self, incoming: IncomingRequest, route: EngineRoute, send: Send, recorder: SearchRecorder) -> int:
        """Rewrite the searches and forward the request.

        Returns:
            Status of the response; 0 if the client disconnected.

        Raises:
            EsSbertError: a semantic query is invalid, there are too many, or the engine is not available.
        """
        answer = self._answer_msearch if route.api in MULTI_SEARCH_APIS else self._answer_search
        return await answer(incoming, route, send, recorder)

    async def _answer_search(
        self, incoming: IncomingRequest, route: EngineRoute, send: Send, recorder: SearchRecorder
    ) -> int:
        """Rewrite a search and forward it; again if the indices have changed before the response."""
        received = await self._rewriter.receive(incoming)
        as_sent = SearchTrace(returns_hits=route.api is not EngineApi.COUNT)
        if as_sent.returns_hits and recorder.is_logged:
            plain = received.plain or b""
            as_sent = await offload_if_large(len(plain), read_trace, plain, incoming.query)
        while True:
            trace = replace(as_sent)
            recorder.searches[:] = [trace]
            outgoing, result = await cancel_on_disconnect(incoming, self._rewrite(received, incoming, route, trace))
            rewrite_error = still_valid = None
            if result is not None and result.confirm is not None:
                still_valid = asyncio.ensure_future(result.confirm())
                still_valid.add_done_callback(_consume_exception)
            elif result is not None and result.hint is not None and may_need_hint(outgoing):
                rewrite_error = partial(add_hint, hint=result.hint)
            is_enlarged = result is not None and result.is_changed
            try:
                added = recorder.response_headers()
                hooks = ResponseHooks(recorder.watch().part, rewrite_error, still_valid, is_enlarged, added)
                return await forward(incoming, send, self._upstream, outgoing, hooks)
            except StaleRewriteError:
                continue
            except RefusedAsTooLargeError:
                raise enlarged_error("the search", len(outgoing.body or b"")) from None
            finally:
                if still_valid is not None:
                    still_valid.cancel()

    async def _rewrite(
        self, received: ReceivedRequest, incoming: IncomingRequest, route: EngineRoute, trace: SearchTrace
    ) -> tuple[OutgoingRequest, RewriteResult | None]:
        """The request to the engine; the result is None if the search was not parsed."""
        plain, unchanged = received.plain, (received.unchanged, None)
        template = route.api is EngineApi.SEARCH_TEMPLATE
        if plain is None:
            return unchanged
        if not await self._rewriter.maybe_semantic(plain + b" " + incoming.query, received.mode, template=template):
            return await self._hide_in_plain(received, incoming, route), None
        try:
            search, params = await offload_if_large(len(plain), parse_search, plain, incoming)
        except UnsupportedJson:
            return unchanged
        options = dict(params)
        repeatable = route.api in _REPEATABLE and "scroll" not in options
        if route.api is EngineApi.EXPLAIN:
            # The routing of the one document, not of the search.
            options.pop("routing", None)
        size = len(plain)
        context = RewriteContext(route.index, options, incoming.headers, received.mode, size, trace=trace)
        result = await self._rewriter.rewrite_search(
            search, incoming, context, template=template, confirm_later=repeatable
        )
        if isinstance(result, BufferedResponse):
            return unchanged  # the engine rejects the template
        if not result.is_changed and not template:
            return await self._hide_in_plain(received, incoming, route), result
        body, params = await self._hide(result.body, params, context, route.api)
        if body is result.original:
            return received.unchanged, result
        if result.preference is not None and route.api is not EngineApi.VALIDATE:  # which lacks the parameter
            params = [*params, ("preference", result.preference)]
        path = incoming.path.rstrip(b"/").removesuffix(b"/template") if template else incoming.path
        target = path + b"?" + urlencode(params, quote_via=quote).encode() if params else path
        # A search from the parameters `source` or `q` is sent as a body.
        method = "POST" if incoming.method == "GET" and not plain else incoming.method
        written = await offload_if_large(size * max(1, len(result.queries)), write_object, body)
        return OutgoingRequest.with_body(incoming, written, target, method), result

    async def _hide(
        self, body: Json, params: Parameters, context: RewriteContext, api: EngineApi
    ) -> tuple[Json, Parameters]:
        """A parsed search whose hits lack the vectors; the identical objects if nothing changes."""
        if not self._hider.applies(api, context.options):
            return body, params
        hide = partial(offload_if_large, context.size, hide_in_search, body, params)
        # Most searches that are parsed for this name what they return: no index is looked up for them.
        if (await hide(_ANY_FIELD))[0] is body:
            return body, params
        fields = await self._hider.fields(context)
        return await hide(fields) if fields else (body, params)

    async def _hide_in_plain(
        self, received: ReceivedRequest, incoming: IncomingRequest, route: EngineRoute
    ) -> OutgoingRequest:
        """A search that is not rewritten: with the vectors left out of its hits, or unchanged."""
        plain, options = received.plain or b"", dict(parse_qsl(incoming.query.decode("ascii"), keep_blank_values=True))
        if not self._hider.applies(route.api, options):
            return received.unchanged
        size = len(plain)
        context = RewriteContext(route.index, options, incoming.headers, received.mode, size)
        if not await offload_if_large(size, must_parse, plain, incoming.query):
            fields = await self._hider.fields(context)
            if not fields:
                return received.unchanged
            target = hide_by_parameter(received.unchanged.target, fields)
            if target is not None:
                return replace(received.unchanged, target=target)
        if size > self._rewriter.max_parsed_bytes:
            return received.unchanged
        try:
            search, params = await offload_if_large(size, parse_search, plain, incoming)
        except UnsupportedJson:
            return received.unchanged
        body, params = await self._hide(search, params, context, route.api)
        if body is search:
            return received.unchanged
        target = incoming.path + (b"?" + urlencode(params, quote_via=quote).encode() if params else b"")
        method = "POST" if incoming.method == "GET" and not plain else incoming.method
        return OutgoingRequest.with_body(incoming, await offload_if_large(size, write_object, body), target, method)

    async def _answer_msearch(
        self, incoming: IncomingRequest, route: EngineRoute, send: Send, recorder: SearchRecorder
    ) -> int:
        """Rewrite the searches and forward the request; errors of searches are part of the response."""
        received = await self._rewriter.receive(incoming, lines_to_utf8)
        plain, template = received.plain, route.api is EngineApi.MULTI_SEARCH_TEMPLATE
        entries: list[_MsearchEntry] = []
        if plain is not None:
            may_be_semantic = await self._rewriter.maybe_semantic(plain, received.mode, template=template)
            may_hide = self._hider.applies(route.api, {})
            is_read = may_be_semantic or may_hide or recorder.is_logged
            searches = (await offload_if_large(len(plain), split_entries, plain) if is_read else None) or []
            traced = searches if may_be_semantic else searches[:_MAX_LOGGED] if recorder.is_logged else []
            recorder.searches += [entry.trace for entry in traced]
            if may_be_semantic:
                searches = await cancel_on_disconnect(
                    incoming, self._rewrite_entries(searches, incoming, route, received.mode)
                )
            if may_hide and not template:
                searches = await cancel_on_disconnect(
                    incoming, self._hide_in_entries(searches, incoming, route, received.mode)
                )
            if may_be_semantic or may_hide:
                entries = searches
            del searches  # the lines of a large request
        added = recorder.response_headers()
        if all(entry.result is None and entry.error is None and not entry.is_hidden for entry in entries):
            hooks = ResponseHooks(recorder.watch().part, headers=added)
            return await forward(incoming, send, self._upstream, received.unchanged, hooks)
        path = incoming.path.rstrip(b"/").removesuffix(b"/template") if template else incoming.path
        if all(entry.response is None for entry in entries):
            target = path + b"?" + incoming.query if incoming.query else path
            outgoing = OutgoingRequest.with_body(incoming, _join_entries(entries), target)
            try:
                hooks = ResponseHooks(recorder.watch().part, enlarged=True, headers=added)
                return await forward(incoming, send, self._upstream, outgoing, hooks)
            except RefusedAsTooLargeError:
                del outgoing
        request = OutgoingRequest.with_body(incoming, b"", target_without_filter_path(incoming, path))
        joined = await cancel_on_disconnect(incoming, self._join_responses(request, entries))
        if joined.status == 200:
            joined = replace(joined, headers=[*joined.headers, *added])
        return await send_response(send, joined)

    async def _rewrite_entries(
        self, entries: list[_MsearchEntry], incoming: IncomingRequest, route: EngineRoute, mode: RewriteMode
    ) -> list[_MsearchEntry]:
        """Rewrite the searches that may be semantic.

        Raises:
            BadRequest: they are more than the limit of a request.
        """
        template = route.api is EngineApi.MULTI_SEARCH_TEMPLATE
        numbers = [
            number
            for number, entry in enumerate(entries)
            if template or await self._rewriter.maybe_semantic(entry.body, mode)
        ]
        budget = self._rewriter.budget()
        try:
            budget.check(len(numbers), 0)
        except BadRequest:
            for number in numbers:
                entries[number].trace.is_semantic = True
            raise
        options = dict(parse_qsl(incoming.query.decode("ascii")))
        context = RewriteContext(route.index, options, incoming.headers, mode, budget=budget)
        rewritten = await gather_or_cancel(
            self._rewrite_entry(entries[number], incoming, context, template=template) for number in numbers
        )
        by_number = dict(zip(numbers, rewritten, strict=True))
        return [by_number.get(number, entry) for number, entry in enumerate(entries)]

    async def _rewrite_entry(
        self, entry: _MsearchEntry, incoming: IncomingRequest, context: RewriteContext, *, template: bool
    ) -> _MsearchEntry:
        """Rewrite one search; `context` is that of a search with an empty header."""
        size = len(entry.body)
        try:
            header, body = parse_object(entry.header or b"{}"), await offload_if_large(size, parse_object, entry.body)
        except UnsupportedJson:
            return entry
        context = replace(_with_header(context, header), size=size, trace=entry.trace)
        try:
            result = await self._rewriter.rewrite_search(body, incoming, context, template=template)
        except EsSbertError as error:
            entry.trace.status = http_status(error)
            return replace(entry, error=error, response=_error_response(error))
        if isinstance(result, BufferedResponse):
            response = _template_error(result)
            entry.trace.status = response["status"]
            return replace(entry, response=response)
        if not result.is_changed and not template:
            return entry
        hidden, _ = await self._hide(result.body, [], context, EngineApi.MULTI_SEARCH)
        written = await offload_if_large(size * max(1, len(result.queries)), write_object, hidden)
        if result.preference is not None:
            entry = replace(entry, header=write_object(header | {"preference": result.preference}))
        is_hidden = hidden is not result.body
        return replace(entry, body=written, result=result if result.is_changed else None, is_hidden=is_hidden)

    async def _hide_in_entries(
        self, entries: Sequence[_MsearchEntry], incoming: IncomingRequest, route: EngineRoute, mode: RewriteMode
    ) -> list[_MsearchEntry]:
        """The searches that were not rewritten, with the vectors left out of their hits."""
        options = dict(parse_qsl(incoming.query.decode("ascii")))
        context = RewriteContext(route.index, options, incoming.headers, mode)
        # One lookup for all searches with the same header, as most requests have.
        by_header: dict[bytes, list[int]] = {}
        for number, entry in enumerate(entries):
            if entry.result is None and entry.error is None and entry.response is None:
                by_header.setdefault(entry.header, []).append(number)
        result = list(entries)
        for header, numbers in by_header.items():
            try:
                own = _with_header(context, parse_object(header or b"{}"))
            except UnsupportedJson:
                continue  # the engine rejects it
            if not (fields := await self._hider.fields(own)):
                continue
            bodies = [entries[number].body for number in numbers]
            hide = partial(hide_in_bodies, bodies, fields, self._rewriter.max_parsed_bytes)
            for number, body in zip(numbers, await offload_if_large(sum(map(len, bodies)), hide), strict=True):
                if body is not entries[number].body:
                    result[number] = replace(entries[number], body=body, is_hidden=True)
        return result

    async def _join_responses(self, request: OutgoingRequest, entries: Sequence[_MsearchEntry]) -> BufferedResponse:
        """Send the searches without an error, in several requests if they are too large for one.

        Args:
            request: The request without its body.

        Returns:
            The responses and errors, each at its position; or the engine's response if it rejects a whole request.
        """
        answer: Json = {"took": 0, "responses": []}
        headers: Headers = [(b"content-type", b"application/json")]
        pending = [[entry for entry in entries if entry.response is None]]
        while pending:
            part = pending.pop(0)
            if not part:
                continue
            body = _join_entries(part)
            response = await fetch_response(self._upstream, replace(request, body=body))
            if response.status == TOO_LARGE and len(part) > 1:
                pending[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
            elif response.status == TOO_LARGE:
                answer["responses"].append(_error_response(enlarged_error("the search", len(body))))
            else:
                try:
                    whole = parse_object(response.body)
                except UnsupportedJson:
                    return response
                if response.status != 200:
                    return response
                headers = response.headers
                with self._upstream.parsing("POST /_msearch"):
                    answer["took"] += whole.get("took", 0)
                    answer = {**whole, "took": answer["took"], "responses": answer["responses"] + whole["responses"]}
        with self._upstream.parsing("POST /_msearch"):
            responses = deque(answer["responses"])
            merged = [responses.popleft() if entry.response is None else entry.response for entry in entries]
        return BufferedResponse(200, headers, write_object(answer | {"responses": merged}))


def _consume_exception(still_valid: asyncio.Future[bool]) -> None:
    """Ignore the error of a check whose result is no longer needed."""
    if not still_valid.cancelled():
        still_valid.exception()


def may_need_hint(outgoing: OutgoingRequest) -> bool:
    """Whether an unchanged search may contain one of the engine's native semantic queries."""
    return outgoing.body is not None and any(mark in outgoing.body for mark in _NATIVE_SEMANTIC_QUERIES)


def add_hint(response: BufferedResponse, hint: str) -> BufferedResponse:
    """A response with the hint in its reason, if it is an error about the query."""
    if response.status != 400:
        return response
    try:
        body = parse_object(response.body)
    except UnsupportedJson:
        return response
    error = body.get("error")
    if not isinstance(error, dict):
        return response
    causes = error.get("root_cause")
    changed = _with_hint(error, hint)
    # The dialogs of Kibana and OpenSearch Dashboards print it.
    changed.setdefault("caused_by", {name: changed[name] for name in ("type", "reason") if name in changed})
    if isinstance(causes, list) and all(isinstance(cause, dict) for cause in causes):
        changed["root_cause"] = [_with_hint(cause, hint) for cause in causes]
    return BufferedResponse(response.status, response.headers, write_object(body | {"error": changed}))


def _with_hint(error: Json, hint: str) -> Json:
    """An error with the hint in its reason and in the reasons of its causes."""
    reason = str(error.get("reason") or error.get("type") or "").rstrip(".")
    cause = error.get("caused_by")
    inner = {"caused_by": _with_hint(cause, hint)} if isinstance(cause, dict) else {}
    return error | {"reason": f"{reason}. {hint}"} | inner


def split_entries(plain: bytes) -> list[_MsearchEntry] | None:
    """The searches of a body; None if its lines are not pairs, which the engine rejects."""
    lines = plain.split(b"\n")
    if lines and not lines[-1].strip():
        lines.pop()
    if len(lines) % 2:
        return None
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return [_MsearchEntry(header.strip(), body.strip(), _entry_trace(header, body)) for header, body in pairs]


def _entry_trace(header: bytes, body: bytes) -> SearchTrace:
    """What the lines of a search say for the log."""
    try:
        members = parse_object(header.strip() or b"{}")
    except UnsupportedJson:
        members = {}
    expression = index_expression(members.get("index", members.get("indices")))
    return read_trace(body, index=None if expression is None else unquote(expression))


def _template_error(response: BufferedResponse) -> Json:
    """The engine's error about a template, as part of the response to `_msearch`."""
    try:
        error = parse_object(response.body).get("error")
    except UnsupportedJson:
        error = None
    if response.status >= 400 and error is not None:
        return {"error": error, "status": response.status}
    return _error_response(BadRequest("the template does not render to a search", "Check it with _render/template."))


def _join_entries(entries: Sequence[_MsearchEntry]) -> bytes:
    """The lines of an `_msearch` body."""
    return b"".join(entry.header + b"\n" + entry.body + b"\n" for entry in entries)


def _error_response(error: EsSbertError) -> Json:
    return {"error": error_object(error), "status": http_status(error)}


def _with_header(context: RewriteContext, header: Json) -> RewriteContext:
    """The context of a search of `_msearch`, given that of one with an empty header."""
    own = {name: _parameter_value(value) for name, value in header.items() if name not in ("index", "indices")}
    expression = index_expression(header.get("index", header.get("indices")))
    context = replace(context, options={**context.options, **own})
    return context if expression is None else replace(context, expression=expression)


def _parameter_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
