"""Handlers of the APIs that run searches: `_search` and its relatives, `_msearch` and `_rank_eval`.

Each search of `_msearch` is rewritten separately. One that fails gets an error at its position in the response; the
others run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.types import Send

from es_sbert.engines.protocol import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.concurrency import cancel_on_disconnect, gather_or_cancel, offload_if_large
from es_sbert.gateway.errors import BadRequest, error_object, http_status
from es_sbert.gateway.proxy.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.proxy.forward import (
    BufferedResponse,
    OutgoingRequest,
    ResponseHooks,
    StaleRewriteError,
    fetch_response,
    forward,
    send_response,
)
from es_sbert.gateway.proxy.incoming_request import IncomingRequest
from es_sbert.gateway.proxy.json_bodies import UnsupportedJson, lines_to_utf8, parse_object, write_object
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.incoming_search import (
    ParsedSearch,
    PitResolver,
    ReceivedRequest,
    RewriteContext,
    RewriteMode,
    SemanticBudget,
    TemplateRenderer,
    parse_search,
)
from es_sbert.gateway.search.search_rewriter import RewriteResult, SearchRewriter
from es_sbert.gateway.search_log import SearchRecorder

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
        there = await self._understanding.receive(incoming)
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
                hooks = ResponseHooks(note.watch().part, amend, confirming)
                return await forward(incoming, send, self._upstream, asked.outgoing, hooks)
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
        return _RewrittenRequest(OutgoingRequest.with_body(incoming, body, target, method), understood)


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


# Searches of one request that are recorded one by one, where none of them is semantic.
_MAX_LOGGED = 1000


@dataclass(frozen=True)
class _MsearchEntry:
    """One search of the request: two lines."""

    header: bytes
    body: bytes

    @property
    def lines(self) -> bytes:
        return self.header + b"\n" + self.body + b"\n"


@dataclass(frozen=True)
class _RewrittenEntry:
    """What became of a search.

    Attributes:
        search: As it goes to the engine.
        understood: What it asked by meaning; None where it did not.
        error: Why it cannot go there.
        unrendered: Its part of the answer where its template stands for no search.
    """

    search: _MsearchEntry
    understood: RewriteResult | None = None
    error: EsSbertError | None = None
    template_error: Json | None = None

    @property
    def answer(self) -> Json | None:
        """Its part of the answer where the engine is not asked for it."""
        return self.template_error if self.error is None else _error_response(self.error)


class MsearchHandler:
    """Handles `_msearch` and `_msearch/template`.

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
        """Send the request on and its answer back; the very request where nothing in it asks by meaning.

        Args:
            note: Told what was asked.

        Returns:
            The answer's status.

        Raises:
            EsSbertError: the engine cannot be asked.
        """
        there = await self._understanding.receive(incoming, lines_to_utf8)
        plain, mode, same = there.plain, there.mode, there.same
        templated = route.api is EngineApi.MULTI_SEARCH_TEMPLATE
        if plain is not None and templated:
            self._understanding.check_size(plain)  # what templates stand for is not seen yet
        if plain is None or not (templated or await self._understanding.maybe_semantic(plain, mode)):
            for _ in range(0 if plain is None else min(_MAX_LOGGED, plain.count(b"\n") // 2)):
                note.asked(None)
            return await forward(incoming, send, self._upstream, same, ResponseHooks(note.watch().part))
        searches = await offload_if_large(len(plain), split_entries, plain)
        if searches is None:
            return await forward(incoming, send, self._upstream, same, ResponseHooks(note.watch().part))
        results = await cancel_on_disconnect(incoming, self._rewritten(searches, incoming, route, mode))
        for result in results:
            note.asked(result.understood)
        if not any(result.understood is not None or result.error is not None for result in results):
            return await forward(incoming, send, self._upstream, same, ResponseHooks(note.watch().part))
        answers = [result.answer for result in results]
        lines = b"".join(result.search.lines for result in results if result.answer is None)
        path = incoming.path.rstrip(b"/").removesuffix(b"/template") if templated else incoming.path
        if all(answer is None for answer in answers):
            target = path + b"?" + incoming.query if incoming.query else path
            outgoing = OutgoingRequest.with_body(incoming, lines, target)
            return await forward(incoming, send, self._upstream, outgoing, ResponseHooks(note.watch().part))
        # Where a search has nothing of what `filter_path` asks for its place is left out, and errors would lose theirs.
        params = [
            (name, value)
            for name, value in parse_qsl(incoming.query.decode("ascii"), keep_blank_values=True)
            if name != "filter_path"
        ]
        outgoing = OutgoingRequest.with_body(incoming, lines, path + b"?" + urlencode(params).encode())
        return await send_response(send, await self._with_errors(outgoing, answers))

    async def _rewritten(
        self, searches: Sequence[_MsearchEntry], incoming: IncomingRequest, route: EngineRoute, mode: RewriteMode
    ) -> list[_RewrittenEntry]:
        """What became of each search.

        Raises:
            BadRequest: more of them may be semantic than one request may have.
        """
        results = [_RewrittenEntry(search) for search in searches]
        templated = route.api is EngineApi.MULTI_SEARCH_TEMPLATE
        asking = [
            number
            for number, search in enumerate(searches)
            if templated or await self._understanding.maybe_semantic(search.body, mode)
        ]
        budget = self._understanding.budget()
        budget.check(len(asking), 0)
        new = await gather_or_cancel(
            self._rewrite(searches[number], incoming, route, mode, budget) for number in asking
        )
        for number, result in zip(asking, new, strict=True):
            results[number] = result
        return results

    async def _rewrite(
        self,
        search: _MsearchEntry,
        incoming: IncomingRequest,
        route: EngineRoute,
        mode: RewriteMode,
        budget: SemanticBudget,
    ) -> _RewrittenEntry:
        templated, size = route.api is EngineApi.MULTI_SEARCH_TEMPLATE, len(search.body)
        try:
            header, body = parse_object(search.header or b"{}"), await offload_if_large(size, parse_object, search.body)
        except UnsupportedJson:
            return _RewrittenEntry(search)
        options = dict(parse_qsl(incoming.query.decode("ascii"))) | {
            name: _parameter_value(value) for name, value in header.items() if name not in ("index", "indices")
        }
        try:
            if templated:
                rendered = await self._templates.render(body, incoming)
                if isinstance(rendered, BufferedResponse):
                    return _RewrittenEntry(search, template_error=_template_error(rendered))
                body = rendered
            of_point = "pit" in body
            expression = await self._points.expression(body, incoming) if of_point else _index_expression(header, route)
            scope = RewriteContext(
                expression, options, incoming.headers, mode, listed=of_point, size=size, budget=budget
            )
            understood = await self._understanding.rewrite(body, scope)
        except EsSbertError as error:
            return _RewrittenEntry(search, error=error)
        asks = understood.body is not body
        if not asks and not templated:
            return _RewrittenEntry(search)
        written = await offload_if_large(size * max(1, len(understood.asked)), write_object, understood.body)
        return _RewrittenEntry(_MsearchEntry(search.header, written), understood if asks else None)

    async def _with_errors(self, outgoing: OutgoingRequest, answers: Sequence[Json | None]) -> BufferedResponse:
        """The engine's answer to the searches that were sent, with errors in the places of the others."""
        if outgoing.body:
            answer = await fetch_response(self._upstream, outgoing)
            try:
                whole = parse_object(answer.body)
            except UnsupportedJson:
                return answer
            if answer.status != 200:
                return answer
            with self._upstream.parsing("POST /_msearch"):
                given = deque(whole["responses"])
        else:
            answer = BufferedResponse(200, [(b"content-type", b"application/json")], b"")
            whole, given = {"took": 0}, deque()
        with self._upstream.parsing("POST /_msearch"):
            responses = [given.popleft() if own is None else own for own in answers]
        return BufferedResponse(200, answer.headers, write_object(whole | {"responses": responses}))


def split_entries(plain: bytes) -> list[_MsearchEntry] | None:
    """The searches of a body; None where its lines do not come in pairs, which the engine has its own words for."""
    lines = plain.split(b"\n")
    if lines and not lines[-1].strip():
        lines.pop()
    if len(lines) % 2:
        return None
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return [_MsearchEntry(header.strip(), body.strip()) for header, body in pairs]


def _template_error(answer: BufferedResponse) -> Json:
    """The engine's answer about one template that stands for no search, as part of its answer to several."""
    try:
        error = parse_object(answer.body).get("error")
    except UnsupportedJson:
        error = None
    if answer.status >= 400 and error is not None:
        return {"error": error, "status": answer.status}
    return _error_response(
        BadRequest("the template stands for no search", "Look at what _render/template makes of it.")
    )


def _error_response(error: EsSbertError) -> Json:
    return {"error": error_object(error), "status": http_status(error)}


def _index_expression(header: Json, route: EngineRoute) -> str:
    named = header.get("index", header.get("indices"))
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not names:
        return route.index
    return ",".join(quote(str(name), safe="*,") for name in names)


def _parameter_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


class RankEvalHandler:
    """Handles `_rank_eval`.

    Args:
        understanding: Rewrites bodies.
        templates: Fills templates in.
    """

    def __init__(self, understanding: SearchRewriter, templates: TemplateRenderer) -> None:
        self._understanding = understanding
        self._templates = templates

    async def outgoing(self, incoming: IncomingRequest, route: EngineRoute) -> OutgoingRequest:
        """What goes to the engine: the very request where none of its searches asks by meaning.

        Raises:
            EsSbertError: one asks for something that cannot be.
        """
        there = await self._understanding.receive(incoming)
        if there.plain is None:
            return there.same
        # Templates that the engine keeps are not seen here.
        if b'"templates"' in there.plain:
            self._understanding.check_size(there.plain)
        elif not await self._understanding.maybe_semantic(there.plain, there.mode):
            return there.same
        try:
            read = await offload_if_large(len(there.plain), parse_search, there.plain, incoming)
        except UnsupportedJson:
            return there.same
        rated = read.body.get("requests")
        if not isinstance(rated, list):
            return there.same
        scope = RewriteContext(
            route.index,
            dict(read.params),
            incoming.headers,
            there.mode,
            size=len(there.plain),
            budget=self._understanding.budget(),
        )
        templates = _templates_by_id(read.body.get("templates"))
        new = await gather_or_cancel(self._rated(one, templates, incoming, scope) for one in rated)
        if all(one is other for one, other in zip(new, rated, strict=True)):
            return there.same
        return OutgoingRequest.with_body(incoming, write_object(read.body | {"requests": new}), incoming.target)

    async def _rated(
        self, rated: Any, templates: dict[str, Json], incoming: IncomingRequest, scope: RewriteContext
    ) -> Any:
        if not isinstance(rated, dict):
            return rated
        template = templates.get(str(rated.get("template_id")))
        search: Any = rated.get("request")
        if template is not None:
            search = await self._templates.render(template | {"params": rated.get("params", {})}, incoming)
        if isinstance(search, BufferedResponse) or not isinstance(search, dict):
            return rated  # the engine says by itself what is wrong
        understood = await self._understanding.rewrite(search, scope)
        if understood.body is search:
            return rated
        kept = {name: value for name, value in rated.items() if name not in ("template_id", "params")}
        return kept | {"request": understood.body}


def _templates_by_id(templates: Any) -> dict[str, Json]:
    said = templates if isinstance(templates, list) else []
    return {
        str(one.get("id")): one["template"]
        for one in said
        if isinstance(one, dict) and isinstance(one.get("template"), dict)
    }
