"""Requests to the search APIs: looked through, and passed on in the engine's words."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote, urlencode

from starlette.types import Send

from es_sbert.gateway.search_log.notes import SearchNote
from es_sbert.gateway.searches.hints import hinted, may_need_hint
from es_sbert.gateway.searches.points_in_time import PointsInTime
from es_sbert.gateway.searches.reading import Arrived, SearchAsRead, arrived, read_search
from es_sbert.gateway.searches.scope import Mode, Scope
from es_sbert.gateway.searches.templates import Templates
from es_sbert.gateway.searches.understanding import Understanding, Understood
from es_sbert.gateway.tasks import run_by_size, while_connected
from es_sbert.gateway.wire.forward import Answer, OutdatedRequestError, Outgoing, forward
from es_sbert.gateway.wire.incoming import Incoming
from es_sbert.gateway.wire.json_bodies import NotPlainJson, write_object
from es_sbert.gateway.wire.routes import Api, Route
from es_sbert.gateway.wire.upstream import Upstream

# Searches that can be made again.
_WITHOUT_TRACE = frozenset({Api.SEARCH, Api.COUNT, Api.SEARCH_TEMPLATE, Api.EXPLAIN, Api.VALIDATE})


@dataclass(frozen=True)
class _Asked:
    """A search as it goes to the engine.

    Attributes:
        outgoing: The very request where nothing in it asks by meaning.
        understood: What was understood of it; None where it was not looked into.
    """

    outgoing: Outgoing
    understood: Understood | None = None


class Searching:
    """Handles `_search`, `_async_search` and `_count`, their templates, `_explain` and `_validate/query`.

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
        """Send the request on and its answer back.

        Args:
            note: Told what was asked.

        Returns:
            The answer's status; 0 where the caller did not wait for it.

        Raises:
            EsSbertError: it asks for something that cannot be, or the engine cannot be asked.
        """
        there = await arrived(incoming, self._understanding)
        while True:
            asked = await while_connected(incoming, self._asked(there, incoming, route))
            understood = asked.understood
            note.searches.clear()
            amend = confirming = None
            if understood is not None and asked.outgoing is not there.same:
                note.asked(understood)
                if understood.confirm is not None:
                    confirming = asyncio.ensure_future(understood.confirm())
                    confirming.add_done_callback(_looked_at)
            elif understood is not None and understood.hint is not None and may_need_hint(asked.outgoing):
                amend = partial(hinted, hint=understood.hint)
            try:
                look = note.watch().part
                return await forward(incoming, send, self._upstream, asked.outgoing, look, amend, confirming)
            except OutdatedRequestError:
                continue
            finally:
                if confirming is not None:
                    confirming.cancel()

    async def _asked(self, there: Arrived, incoming: Incoming, route: Route) -> _Asked:
        """What goes to the engine."""
        plain, mode, same = there.plain, there.mode, _Asked(there.same)
        templated = route.api is Api.SEARCH_TEMPLATE
        if plain is None or mode is Mode.OFF:
            return same
        if templated:
            self._understanding.check_size(plain)  # what it stands for is not seen yet
        elif not await self._understanding.may_ask(plain + b" " + incoming.query, mode):
            return same
        try:
            read = await run_by_size(len(plain), read_search, plain, incoming)
        except NotPlainJson:
            return same
        if templated:
            rendered = await self._templates.render(read.body, incoming)
            if isinstance(rendered, Answer):
                return same  # the engine says by itself what is wrong with the template
            read = SearchAsRead(rendered, read.params)
        of_point = "pit" in read.body
        expression = await self._points.expression(read.body, incoming) if of_point else route.index
        options = dict(read.params)
        if route.api is Api.EXPLAIN:
            # There it says where the one document is, not where to search.
            options.pop("routing", None)
        scope = Scope(expression, options, incoming.headers, mode, listed=of_point, size=len(plain),
                      budget=self._understanding.budget())  # fmt: skip
        # What is sent twice must leave nothing in the engine.
        again = route.api in _WITHOUT_TRACE and "scroll" not in options
        understood = await self._understanding.rewrite(read.body, scope, confirm_later=again)
        if understood.body is read.body:
            return _Asked(there.same, understood)
        path = incoming.path
        if templated:
            path = path.rstrip(b"/").removesuffix(b"/template")
        target = path + b"?" + urlencode(read.params, quote_via=quote).encode() if read.params else path
        # A search whose body came in the query is one with a body now.
        method = "POST" if incoming.method == "GET" and not plain else incoming.method
        size = len(plain) * max(1, len(understood.asked))
        body = await run_by_size(size, write_object, understood.body)
        return _Asked(Outgoing.rewritten(incoming, body, target, method), understood)


def _looked_at(confirming: asyncio.Future[bool]) -> None:
    """An error of a question whose answer is not needed any more is no error."""
    if not confirming.cancelled():
        confirming.exception()
