"""`_msearch`: each of its searches looked through by itself; one that cannot be answered does not spoil the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from starlette.types import Send

from es_sbert.engines.protocol import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.failures import BadRequest, error_object, status_of
from es_sbert.gateway.rewrite.budget import SemanticBudget
from es_sbert.gateway.search_log.notes import SearchNote
from es_sbert.gateway.searches.points_in_time import PointsInTime
from es_sbert.gateway.searches.reading import arrived
from es_sbert.gateway.searches.scope import Mode, Scope
from es_sbert.gateway.searches.templates import Templates
from es_sbert.gateway.searches.understanding import Understanding, Understood
from es_sbert.gateway.tasks import gather_all, run_by_size, while_connected
from es_sbert.gateway.wire.forward import Answer, Outgoing, fetch, forward, reply
from es_sbert.gateway.wire.incoming import Incoming
from es_sbert.gateway.wire.json_bodies import NotPlainJson, lines_in_utf8, parse_object, write_object
from es_sbert.gateway.wire.routes import Api, Route
from es_sbert.gateway.wire.upstream import Upstream

# Searches of one request that are recorded one by one, where none of them is semantic.
_MOST_NOTED = 1000


@dataclass(frozen=True)
class _Search:
    """One search of the request: two lines."""

    header: bytes
    body: bytes

    @property
    def lines(self) -> bytes:
        return self.header + b"\n" + self.body + b"\n"


@dataclass(frozen=True)
class _Result:
    """What became of a search.

    Attributes:
        search: As it goes to the engine.
        understood: What it asked by meaning; None where it did not.
        error: Why it cannot go there.
        unrendered: Its part of the answer where its template stands for no search.
    """

    search: _Search
    understood: Understood | None = None
    error: EsSbertError | None = None
    unrendered: Json | None = None

    @property
    def answer(self) -> Json | None:
        """Its part of the answer where the engine is not asked for it."""
        return self.unrendered if self.error is None else _own(self.error)


class MultiSearching:
    """Handles `_msearch` and `_msearch/template`.

    Args:
        understanding: Rewrites bodies.
        points: Knows which indices a point in time stands for.
        templates: Fills templates in.
        upstream: The engine.
    """

    def __init__(self, understanding: Understanding, points: PointsInTime, templates: Templates,
                 upstream: Upstream) -> None:  # fmt: skip
        self._understanding = understanding
        self._points = points
        self._templates = templates
        self._upstream = upstream

    async def answer(self, incoming: Incoming, route: Route, send: Send, note: SearchNote) -> int:
        """Send the request on and its answer back; the very request where nothing in it asks by meaning.

        Args:
            note: Told what was asked.

        Returns:
            The answer's status.

        Raises:
            EsSbertError: the engine cannot be asked.
        """
        there = await arrived(incoming, self._understanding, lines_in_utf8)
        plain, mode, same = there.plain, there.mode, there.same
        templated = route.api is Api.MULTI_SEARCH_TEMPLATE
        if plain is not None and templated:
            self._understanding.check_size(plain)  # what templates stand for is not seen yet
        if plain is None or not (templated or await self._understanding.may_ask(plain, mode)):
            for _ in range(0 if plain is None else min(_MOST_NOTED, plain.count(b"\n") // 2)):
                note.asked(None)
            return await forward(incoming, send, self._upstream, same, note.watch().part)
        searches = await run_by_size(len(plain), split, plain)
        if searches is None:
            return await forward(incoming, send, self._upstream, same, note.watch().part)
        results = await while_connected(incoming, self._rewritten(searches, incoming, route, mode))
        for result in results:
            note.asked(result.understood)
        if not any(result.understood is not None or result.error is not None for result in results):
            return await forward(incoming, send, self._upstream, same, note.watch().part)
        answers = [result.answer for result in results]
        lines = b"".join(result.search.lines for result in results if result.answer is None)
        path = incoming.path.rstrip(b"/").removesuffix(b"/template") if templated else incoming.path
        if all(answer is None for answer in answers):
            target = path + b"?" + incoming.query if incoming.query else path
            outgoing = Outgoing.rewritten(incoming, lines, target)
            return await forward(incoming, send, self._upstream, outgoing, note.watch().part)
        # Where a search has nothing of what `filter_path` asks for its place is left out, and errors would lose theirs.
        params = [(name, value) for name, value in parse_qsl(incoming.query.decode("ascii"), keep_blank_values=True)
                  if name != "filter_path"]  # fmt: skip
        outgoing = Outgoing.rewritten(incoming, lines, path + b"?" + urlencode(params).encode())
        return await reply(send, await self._with_errors(outgoing, answers))

    async def _rewritten(
        self, searches: Sequence[_Search], incoming: Incoming, route: Route, mode: Mode
    ) -> list[_Result]:
        """What became of each search.

        Raises:
            BadRequest: more of them may be semantic than one request may have.
        """
        results = [_Result(search) for search in searches]
        templated = route.api is Api.MULTI_SEARCH_TEMPLATE
        asking = [
            number
            for number, search in enumerate(searches)
            if templated or await self._understanding.may_ask(search.body, mode)
        ]
        budget = self._understanding.budget()
        budget.check(len(asking), 0)
        new = await gather_all(self._rewrite(searches[number], incoming, route, mode, budget) for number in asking)
        for number, result in zip(asking, new, strict=True):
            results[number] = result
        return results

    async def _rewrite(
        self, search: _Search, incoming: Incoming, route: Route, mode: Mode, budget: SemanticBudget
    ) -> _Result:
        templated, size = route.api is Api.MULTI_SEARCH_TEMPLATE, len(search.body)
        try:
            header, body = parse_object(search.header or b"{}"), await run_by_size(size, parse_object, search.body)
        except NotPlainJson:
            return _Result(search)
        options = dict(parse_qsl(incoming.query.decode("ascii"))) | {
            name: _parameter(value) for name, value in header.items() if name not in ("index", "indices")
        }
        try:
            if templated:
                rendered = await self._templates.render(body, incoming)
                if isinstance(rendered, Answer):
                    return _Result(search, unrendered=_refusal(rendered))
                body = rendered
            of_point = "pit" in body
            expression = await self._points.expression(body, incoming) if of_point else _expression(header, route)
            scope = Scope(expression, options, incoming.headers, mode, listed=of_point, size=size, budget=budget)
            understood = await self._understanding.rewrite(body, scope)
        except EsSbertError as error:
            return _Result(search, error=error)
        asks = understood.body is not body
        if not asks and not templated:
            return _Result(search)
        written = await run_by_size(size * max(1, len(understood.asked)), write_object, understood.body)
        return _Result(_Search(search.header, written), understood if asks else None)

    async def _with_errors(self, outgoing: Outgoing, answers: Sequence[Json | None]) -> Answer:
        """The engine's answer to the searches that were sent, with errors in the places of the others."""
        if outgoing.body:
            answer = await fetch(self._upstream, outgoing)
            try:
                whole = parse_object(answer.body)
            except NotPlainJson:
                return answer
            if answer.status != 200:
                return answer
            with self._upstream.reading("POST /_msearch"):
                given = deque(whole["responses"])
        else:
            answer = Answer(200, [(b"content-type", b"application/json")], b"")
            whole, given = {"took": 0}, deque()
        with self._upstream.reading("POST /_msearch"):
            responses = [given.popleft() if own is None else own for own in answers]
        return Answer(200, answer.headers, write_object(whole | {"responses": responses}))


def split(plain: bytes) -> list[_Search] | None:
    """The searches of a body; None where its lines do not come in pairs, which the engine has its own words for."""
    lines = plain.split(b"\n")
    if lines and not lines[-1].strip():
        lines.pop()
    if len(lines) % 2:
        return None
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return [_Search(header.strip(), body.strip()) for header, body in pairs]


def _refusal(answer: Answer) -> Json:
    """The engine's answer about one template that stands for no search, as part of its answer to several."""
    try:
        error = parse_object(answer.body).get("error")
    except NotPlainJson:
        error = None
    if answer.status >= 400 and error is not None:
        return {"error": error, "status": answer.status}
    return _own(BadRequest("the template stands for no search", "Look at what _render/template makes of it."))


def _own(error: EsSbertError) -> Json:
    return {"error": error_object(error), "status": status_of(error)}


def _expression(header: Json, route: Route) -> str:
    named = header.get("index", header.get("indices"))
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not names:
        return route.index
    return ",".join(quote(str(name), safe="*,") for name in names)


def _parameter(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
