"""Requests to the search APIs: looked through, and passed on in the engine's words."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from es_sbert.gateway.search_log.notes import SearchNote
from es_sbert.gateway.searches.points_in_time import PointsInTime
from es_sbert.gateway.searches.reading import SearchAsRead, arrived, read_search
from es_sbert.gateway.searches.scope import Mode, Scope
from es_sbert.gateway.searches.templates import Templates
from es_sbert.gateway.searches.understanding import Understanding
from es_sbert.gateway.tasks import run_by_size
from es_sbert.gateway.wire.forward import Answer, Outgoing
from es_sbert.gateway.wire.incoming import Incoming
from es_sbert.gateway.wire.json_bodies import NotPlainJson, write_object
from es_sbert.gateway.wire.routes import Api, Route


class Searching:
    """Handles `_search`, `_async_search` and `_count`, their templates, `_explain` and `_validate/query`.

    Args:
        understanding: Rewrites bodies.
        points: Knows which indices a point in time stands for.
        templates: Fills templates in.
    """

    def __init__(self, understanding: Understanding, points: PointsInTime, templates: Templates) -> None:
        self._understanding = understanding
        self._points = points
        self._templates = templates

    async def outgoing(self, incoming: Incoming, route: Route, note: SearchNote) -> Outgoing:
        """What goes to the engine: the very request where nothing in it asks by meaning.

        Args:
            note: Told what was asked.

        Raises:
            EsSbertError: it asks for something that cannot be.
        """
        there = await arrived(incoming, self._understanding)
        plain, mode, same = there.plain, there.mode, there.same
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
        understood = await self._understanding.rewrite(read.body, scope)
        if understood.body is read.body:
            note.hint = understood.hint
            return same
        note.asked(understood)
        path = incoming.path
        if templated:
            path = path.rstrip(b"/").removesuffix(b"/template")
        target = path + b"?" + urlencode(read.params, quote_via=quote).encode() if read.params else path
        # A search whose body came in the query is one with a body now.
        method = "POST" if incoming.method == "GET" and not plain else incoming.method
        size = len(plain) * max(1, len(understood.asked))
        return Outgoing.rewritten(incoming, await run_by_size(size, write_object, understood.body), target, method)
