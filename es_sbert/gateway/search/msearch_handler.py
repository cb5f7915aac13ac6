"""Handler of `_msearch` and `_msearch/template`, which run several searches.

Each search is rewritten separately. One that fails gets an error at its position in the response; the others run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import parse_qsl, unquote

from starlette.types import Send

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.concurrency import cancel_on_disconnect, gather_or_cancel, offload_if_large
from es_sbert.gateway.errors import BadRequest, error_object, http_status
from es_sbert.gateway.proxy.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.proxy.forward import (
    TOO_LARGE,
    BufferedResponse,
    OutgoingRequest,
    RefusedAsTooLargeError,
    ResponseFilter,
    ResponseHooks,
    StaleRewriteError,
    enlarged_error,
    fetch_response,
    forward,
    send_response,
)
from es_sbert.gateway.proxy.incoming_request import (
    Headers,
    IncomingRequest,
    UnreadableJson,
    lines_to_utf8,
    parse_object,
    write_object,
)
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.hidden_fields import VectorHider, hide_in_bodies
from es_sbert.gateway.search.incoming_search import (
    RewriteContext,
    RewriteMode,
    index_expression,
    render_template,
    target_without_filter_path,
)
from es_sbert.gateway.search.search_rewriter import RewriteResult, SearchRewriter
from es_sbert.gateway.search_log import SearchRecorder, SearchTrace, read_trace

# Maximum number of searches of one request that are logged if none of them is semantic.
_MAX_LOGGED = 1000


@dataclass(frozen=True)
class _MsearchEntry:
    """One search of `_msearch`.

    Attributes:
        header, body: The two lines of the search.
        trace: Its entry in the search log.
        result: The result of rewriting it; None if it is not semantic.
        is_hidden: Whether its body was changed to leave the vectors out of its hits.
        error: Error that prevents rewriting it.
        response: Its part of the response if it is not sent to the engine.
    """

    header: bytes
    body: bytes
    trace: SearchTrace = field(default_factory=SearchTrace)
    result: RewriteResult | None = None
    is_hidden: bool = False
    error: EsSbertError | None = None
    response: Json | None = None


class MsearchHandler:
    """Handles `_msearch` and `_msearch/template`.

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
        """Rewrite the searches and forward the request; errors of searches are part of the response.

        Returns:
            Status of the response; 0 if the client disconnected.

        Raises:
            EsSbertError: a semantic query is invalid, there are too many, or the engine is not available.
        """
        received = await self._rewriter.receive(incoming, lines_to_utf8)
        plain, template = received.plain, route.api is EngineApi.MULTI_SEARCH_TEMPLATE
        entries: list[_MsearchEntry] = []
        if plain is not None:
            may_be_semantic = await self._rewriter.maybe_semantic(plain, received.mode, template=template)
            may_hide = self._hider.applies(route.api, {})
            is_read = may_be_semantic or may_hide or recorder.is_logged
            split = partial(offload_if_large, len(plain), split_entries, plain, self._upstream.engine_type_or_default)
            searches = (await split() if is_read else None) or []
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
        if all(entry.result is None and entry.error is None and not entry.is_hidden for entry in entries):
            hooks = ResponseHooks(recorder.watch().part)
            return await forward(incoming, send, self._upstream, received.unchanged, hooks)
        path = incoming.path.rstrip(b"/").removesuffix(b"/template") if template else incoming.path
        if all(entry.response is None for entry in entries):
            target = path + b"?" + incoming.query if incoming.query else path
            outgoing = OutgoingRequest.with_body(incoming, _join_entries(entries), target)
            try:
                hooks = ResponseHooks(recorder.watch().part, enlarged=True)
                return await forward(incoming, send, self._upstream, outgoing, hooks)
            except RefusedAsTooLargeError:
                del outgoing
        request = OutgoingRequest.with_body(incoming, b"", target_without_filter_path(incoming, path))
        joined = await cancel_on_disconnect(
            incoming, self._join_responses(request, entries, ResponseFilter.from_query(incoming.query))
        )
        return await send_response(send, joined)

    async def _rewrite_entries(
        self, entries: list[_MsearchEntry], incoming: IncomingRequest, route: EngineRoute, mode: RewriteMode
    ) -> list[_MsearchEntry]:
        """Rewrite the searches that may be semantic.

        Raises:
            BadRequest: too many of the searches may be semantic.
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
            context = replace(_with_header(context, header), size=size, trace=entry.trace)
            if template:
                rendered = await render_template(self._upstream, body, incoming)
                if isinstance(rendered, BufferedResponse):
                    response = _template_error(rendered)
                    entry.trace.status = response["status"]
                    return replace(entry, response=response)
                body = rendered
            result = await self._rewriter.rewrite(body, context)
        except StaleRewriteError:  # written again, for the new indices
            return await self._rewrite_entry(entry, incoming, context, template=template)
        except EsSbertError as error:
            entry.trace.status = http_status(error)
            return replace(entry, error=error, response=_error_response(error))
        if not result.is_changed and not template:
            return entry
        is_hidden = await self._hider.hide(result.body, [], context, EngineApi.MULTI_SEARCH) is not None
        written = await offload_if_large(size * max(1, len(result.queries)), write_object, result.body)
        if result.preference is not None:
            entry = replace(entry, header=write_object(header | {"preference": result.preference}))
        return replace(entry, body=written, result=result if result.is_changed else None, is_hidden=is_hidden)

    async def _hide_in_entries(
        self, entries: Sequence[_MsearchEntry], incoming: IncomingRequest, route: EngineRoute, mode: RewriteMode
    ) -> list[_MsearchEntry]:
        """Leave the vectors out of the hits of the searches that were not rewritten."""
        options = dict(parse_qsl(incoming.query.decode("ascii")))
        context = RewriteContext(route.index, options, incoming.headers, mode)
        # Look up the fields once for all searches with the same header: in most requests, all have the same one.
        by_header: dict[bytes, list[int]] = {}
        for number, entry in enumerate(entries):
            if entry.result is None and entry.error is None and entry.response is None:
                by_header.setdefault(entry.header, []).append(number)
        result = list(entries)
        for header, numbers in by_header.items():
            try:
                header_object = _with_header(context, parse_object(header or b"{}"))
            except UnreadableJson:
                continue  # the engine rejects it
            if not (fields := await self._hider.fields(header_object)):
                continue
            bodies = [entries[number].body for number in numbers]
            hide = partial(hide_in_bodies, bodies, fields, self._rewriter.max_parsed_bytes)
            for number, body in zip(numbers, await offload_if_large(sum(map(len, bodies)), hide), strict=True):
                if body is not entries[number].body:
                    result[number] = replace(entries[number], body=body, is_hidden=True)
        return result

    async def _join_responses(
        self, request: OutgoingRequest, entries: Sequence[_MsearchEntry], filter: ResponseFilter
    ) -> BufferedResponse:
        """Send the searches without an error, in several requests if they are too large for one.

        Args:
            request: The request without its body.
            filter: Applied to the joined response.

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
                except UnreadableJson:  # not the engine's: the client gets it as it is
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
        return BufferedResponse(200, headers, write_object(filter.apply(answer | {"responses": merged})))


def split_entries(plain: bytes, engine_type: EngineType) -> list[_MsearchEntry] | None:
    """Split a body into its searches as the engine does; None if it rejects the body: no line feed ends it."""
    lines = plain.split(b"\n")
    if lines.pop():
        return None
    if engine_type is EngineType.OPENSEARCH and lines and not lines[0]:
        del lines[0]  # to Elasticsearch, it is an empty header
    pairs = zip(lines[::2], lines[1::2], strict=False)  # engines ignore a last header without a body
    return [_MsearchEntry(header.strip(), body.strip(), _entry_trace(header, body)) for header, body in pairs]


def _entry_trace(header: bytes, body: bytes) -> SearchTrace:
    """Create the log entry of a search from its two lines."""
    try:
        members = parse_object(header.strip() or b"{}")
    except UnreadableJson:
        members = {}
    expression = index_expression(members.get("index", members.get("indices")))
    return read_trace(body, index=None if expression is None else unquote(expression))


def _template_error(response: BufferedResponse) -> Json:
    """Convert the engine's error about a template to a part of the response to `_msearch`."""
    try:
        error = parse_object(response.body).get("error")
    except UnreadableJson:
        error = None
    if response.status >= 400 and error is not None:
        return {"error": error, "status": response.status}
    return _error_response(BadRequest("the template does not render to a search", "Check it with _render/template."))


def _join_entries(entries: Sequence[_MsearchEntry]) -> bytes:
    """Join the lines of an `_msearch` body."""
    return b"".join(entry.header + b"\n" + entry.body + b"\n" for entry in entries)


def _error_response(error: EsSbertError) -> Json:
    return {"error": error_object(error), "status": http_status(error)}


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
