"""ES|QL, SQL, EQL and PPL: passed on as they came, or refused where a part in another language asks by meaning.

The engine refuses columns that it does not know by itself. But a filter beside the query (a dashboard puts its query
bar there) and Lucene's or Kibana's language inside it may name any field, and silently match nothing.
"""

from __future__ import annotations

import re

from es_sbert.engines.protocol import Json
from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.searches.reading import arrived
from es_sbert.gateway.searches.scope import Mode, Scope
from es_sbert.gateway.searches.understanding import Understanding
from es_sbert.gateway.tasks import run_by_size
from es_sbert.gateway.wire.forward import Outgoing
from es_sbert.gateway.wire.incoming import Incoming
from es_sbert.gateway.wire.json_bodies import NotPlainJson, parse_object, write_object
from es_sbert.gateway.wire.routes import Route

# Functions whose text is in a query language of its own: `KQL("…")`, `QSTR("""…""")`, `QUERY('…')`.
_INSIDE = re.compile(
    r"""\b(?:kql|qstr|query)\s*\(\s*(?:\"{3}(?P<raw>.*?)\"{3}|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^']|'')*)')""",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)")


class Languages:
    """Handles `_query`, `_sql`, `_eql/search` and OpenSearch's `_plugins/_sql` and `_plugins/_ppl`.

    Args:
        understanding: Knows what asks by meaning.
    """

    def __init__(self, understanding: Understanding) -> None:
        self._understanding = understanding

    async def outgoing(self, incoming: Incoming, route: Route) -> Outgoing:
        """The very request.

        Raises:
            BadRequest: a part of it asks by meaning.
            EsSbertError: the engine cannot be asked what its indices hold.
        """
        there = await arrived(incoming, self._understanding)
        if there.plain is None or not await self._understanding.may_ask(there.plain, Mode.ON):
            return there.same
        try:
            queries = filters(await run_by_size(len(there.plain), parse_object, there.plain))
        except NotPlainJson:
            return there.same
        if not await self._understanding.may_ask(write_object({"queries": queries}), Mode.ON):
            return there.same
        # The indices are named in a language that is not read here: an ordinary field of any of them may be meant.
        scope = Scope(route.index, {}, incoming.headers, Mode.ON, size=len(there.plain))
        if await self._understanding.asks_by_name(queries, scope):
            raise BadRequest(
                "ES|QL, SQL, EQL and PPL take no query by meaning, nor does a filter beside them",
                "Search by meaning with _search; X-Es-Sbert: off passes the request as it is.",
            )
        return there.same


def filters(body: Json) -> list[Json]:
    """The parts of a request that are no ES|QL, SQL, EQL or PPL, as queries."""
    found = [body["filter"]] if isinstance(body.get("filter"), dict) else []
    text = body.get("query")
    for inside in _INSIDE.finditer(text) if isinstance(text, str) else ():
        written = inside["raw"] or _ESCAPED.sub(r"\1", inside["double"] or "") or (inside["single"] or "")
        found.append({"query_string": {"query": written}})
    return found
