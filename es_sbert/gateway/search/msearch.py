"""Handlers of requests that hold several searches: `_msearch` and `_rank_eval`.

Each search is rewritten separately. One that fails gets an error in its place in the response; the others run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.types import Send

from es_sbert.engines.protocol import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.concurrency import cancel_on_disconnect, gather_or_cancel, offload_if_large
from es_sbert.gateway.errors import BadRequest, error_object, http_status
from es_sbert.gateway.proxy.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.proxy.forward import BufferedResponse, OutgoingRequest, fetch_response, forward, send_response
from es_sbert.gateway.proxy.incoming_request import IncomingRequest
from es_sbert.gateway.proxy.json_bodies import UnsupportedJson, lines_to_utf8, parse_object, write_object
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.incoming_search import PitResolver, TemplateRenderer, parse_search, receive_request
from es_sbert.gateway.search.rewrite_context import RewriteContext, RewriteMode, SemanticBudget
from es_sbert.gateway.search.search_rewriter import RewriteResult, SearchRewriter
from es_sbert.gateway.search_recorder import SearchRecorder

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
        there = await receive_request(incoming, self._understanding, lines_to_utf8)
        plain, mode, same = there.plain, there.mode, there.same
        templated = route.api is EngineApi.MULTI_SEARCH_TEMPLATE
        if plain is not None and templated:
            self._understanding.check_size(plain)  # what templates stand for is not seen yet
        if plain is None or not (templated or await self._understanding.maybe_semantic(plain, mode)):
            for _ in range(0 if plain is None else min(_MAX_LOGGED, plain.count(b"\n") // 2)):
                note.asked(None)
            return await forward(incoming, send, self._upstream, same, note.watch().part)
        searches = await offload_if_large(len(plain), split_entries, plain)
        if searches is None:
            return await forward(incoming, send, self._upstream, same, note.watch().part)
        results = await cancel_on_disconnect(incoming, self._rewritten(searches, incoming, route, mode))
        for result in results:
            note.asked(result.understood)
        if not any(result.understood is not None or result.error is not None for result in results):
            return await forward(incoming, send, self._upstream, same, note.watch().part)
        answers = [result.answer for result in results]
        lines = b"".join(result.search.lines for result in results if result.answer is None)
        path = incoming.path.rstrip(b"/").removesuffix(b"/template") if templated else incoming.path
        if all(answer is None for answer in answers):
            target = path + b"?" + incoming.query if incoming.query else path
            outgoing = OutgoingRequest.rewritten(incoming, lines, target)
            return await forward(incoming, send, self._upstream, outgoing, note.watch().part)
        # Where a search has nothing of what `filter_path` asks for its place is left out, and errors would lose theirs.
        params = [
            (name, value)
            for name, value in parse_qsl(incoming.query.decode("ascii"), keep_blank_values=True)
            if name != "filter_path"
        ]
        outgoing = OutgoingRequest.rewritten(incoming, lines, path + b"?" + urlencode(params).encode())
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
            with self._upstream.reading("POST /_msearch"):
                given = deque(whole["responses"])
        else:
            answer = BufferedResponse(200, [(b"content-type", b"application/json")], b"")
            whole, given = {"took": 0}, deque()
        with self._upstream.reading("POST /_msearch"):
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
        there = await receive_request(incoming, self._understanding)
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
        return OutgoingRequest.rewritten(incoming, write_object(read.body | {"requests": new}), incoming.target)

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
