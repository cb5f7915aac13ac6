"""Requests that change whatever a query matches: passed on as they came, or refused where the query asks by meaning.

To the engine the virtual field is one that no document has. A query for it would match nothing, and its opposite
everything: `must_not` would delete the whole index.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.searches.reading import arrived, read_search
from es_sbert.gateway.searches.scope import Mode, Scope
from es_sbert.gateway.searches.understanding import Understanding
from es_sbert.gateway.tasks import run_by_size
from es_sbert.gateway.wire.forward import Outgoing
from es_sbert.gateway.wire.incoming import Incoming
from es_sbert.gateway.wire.json_bodies import NotPlainJson
from es_sbert.gateway.wire.routes import Api, Route


class ByQuery:
    """Handles `_delete_by_query`, `_update_by_query` and `_reindex`.

    Args:
        understanding: Knows what asks by meaning.
    """

    def __init__(self, understanding: Understanding) -> None:
        self._understanding = understanding

    async def outgoing(self, incoming: Incoming, route: Route) -> Outgoing:
        """The very request.

        Raises:
            BadRequest: its query asks by meaning.
            EsSbertError: the engine cannot be asked what its indices hold.
        """
        there = await arrived(incoming, self._understanding)
        # Plain queries are never made hybrid here: more documents would match.
        if there.plain is None or not await self._understanding.may_ask(there.plain + b" " + incoming.query, Mode.ON):
            return there.same
        try:
            read = await run_by_size(len(there.plain), read_search, there.plain, incoming)
        except NotPlainJson:
            return there.same
        body, expression = read.body, route.index
        if route.api is Api.REINDEX:
            source = body.get("source")
            if not isinstance(source, dict) or "remote" in source:
                return there.same
            body, expression = source, _expression(source.get("index"))
            if not expression:
                return there.same
        scope = Scope(expression, dict(read.params), incoming.headers, Mode.ON, size=len(there.plain))
        try:
            asks = await self._understanding.asks(body, scope)
        except BadRequest:
            asks = True  # in a way that no search takes either
        if asks:
            api = incoming.path.strip(b"/").rpartition(b"/")[2].decode("ascii")
            raise BadRequest(
                f"{api} takes no query by meaning: the nearest documents are not all that mean the same",
                'Search by meaning, look at the hits, and name them: {"query": {"ids": {"values": ["1", "2"]}}}.',
            )
        return there.same


def _expression(index: Any) -> str:
    """Names of indices in a body, as they would stand in a path."""
    names = index if isinstance(index, list) else [index]
    return ",".join(quote(name, safe="*-,") for name in names if isinstance(name, str))
