"""Requests to the search APIs: looked through, and passed on in the engine's words."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from es_sbert.engines.protocol import Json
from es_sbert.gateway.search_log.notes import SearchNote
from es_sbert.gateway.searches.points_in_time import PointsInTime
from es_sbert.gateway.searches.scope import Mode, Scope
from es_sbert.gateway.searches.templates import Templates
from es_sbert.gateway.searches.understanding import Understanding
from es_sbert.gateway.wire.forward import Answer, Outgoing
from es_sbert.gateway.wire.incoming import Incoming, decompressed
from es_sbert.gateway.wire.json_bodies import NotPlainJson, parse_object, write_object
from es_sbert.gateway.wire.routes import Api, Route

MODE_HEADER = b"x-es-sbert"
# Parameters of a URI search, which become a query_string in the body.
_URI_QUERY = {"q": "query", "df": "default_field", "default_operator": "default_operator", "analyzer": "analyzer",
              "analyze_wildcard": "analyze_wildcard", "lenient": "lenient"}  # fmt: skip


@dataclass(frozen=True)
class SearchAsRead:
    """A request's search as it was read.

    Attributes:
        body: The search.
        params: The parameters that stay in the query.
    """

    body: Json
    params: list[tuple[str, str]]


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
        raw = await incoming.body()
        same = Outgoing.same(incoming, raw)
        mode = self._understanding.mode(incoming.header(MODE_HEADER))
        plain = decompressed(raw, incoming)
        templated = route.api is Api.SEARCH_TEMPLATE
        if plain is None or not is_json(incoming) or mode is Mode.OFF:
            return same
        if not templated and not self._understanding.may_ask(plain + b" " + incoming.query, mode):
            return same
        try:
            read = read_search(plain, incoming)
        except NotPlainJson:
            return same
        if templated:
            rendered = await self._templates.render(read.body, incoming)
            if isinstance(rendered, Answer):
                return same  # the engine says by itself what is wrong with the template
            read = SearchAsRead(rendered, read.params)
        expression = await self._points.expression(read.body, incoming) if "pit" in read.body else route.index
        options = dict(read.params)
        if route.api is Api.EXPLAIN:
            # There it says where the one document is, not where to search.
            options.pop("routing", None)
        scope = Scope(expression, options, incoming.headers, mode)
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
        return Outgoing.rewritten(incoming, write_object(understood.body), target, method)


def read_search(plain: bytes, incoming: Incoming) -> SearchAsRead:
    """The search of a request, which may stand in its body or in its query.

    Raises:
        NotPlainJson: it is for the engine to say what is wrong with it.
    """
    params = parse_qsl(incoming.query.decode("ascii"), keep_blank_values=True)
    given = dict(params)
    if not plain.strip() and "source" in given:
        plain = given.pop("source").encode()
        params = [(name, value) for name, value in params if name not in ("source", "source_content_type")]
    body = parse_object(plain) if plain.strip() else {}
    if "q" in given:
        # The engine takes `q` in place of the body's query.
        said: Json = {_URI_QUERY[name]: value for name, value in given.items() if name in _URI_QUERY}
        body = body | {"query": {"query_string": said}}
        params = [(name, value) for name, value in params if name not in _URI_QUERY]
    return SearchAsRead(body, params)


def is_json(incoming: Incoming) -> bool:
    """Whether a request's body is JSON, also in the clients' own dialect of the type; engines refuse one without."""
    return not incoming.has_body or b"json" in incoming.header(b"content-type").lower()
