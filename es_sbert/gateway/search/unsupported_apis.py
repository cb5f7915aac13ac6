"""APIs that cannot run semantic queries: `_delete_by_query`, `_update_by_query`, `_reindex`, ES|QL, SQL, EQL and
PPL.

Their requests pass through unchanged, unless they contain a semantic query: then they are rejected. The engine would
treat the virtual field as one that no document has, so a query on it would match nothing and its negation everything:
a `must_not` would delete the whole index.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from es_sbert.engines.protocol import Json
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.proxy.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.proxy.forward import OutgoingRequest
from es_sbert.gateway.proxy.incoming_request import IncomingRequest
from es_sbert.gateway.proxy.json_bodies import UnsupportedJson, parse_object, write_object
from es_sbert.gateway.search.incoming_search import RewriteContext, RewriteMode, parse_search
from es_sbert.gateway.search.search_rewriter import SearchRewriter


class DeleteByQueryHandler:
    """Handles `_delete_by_query`, `_update_by_query` and `_reindex`.

    Args:
        understanding: Knows what asks by meaning.
    """

    def __init__(self, understanding: SearchRewriter) -> None:
        self._understanding = understanding

    async def outgoing(self, incoming: IncomingRequest, route: EngineRoute) -> OutgoingRequest:
        """The very request.

        Raises:
            BadRequest: its query asks by meaning.
            EsSbertError: the engine cannot be asked what its indices hold.
        """
        there = await self._understanding.receive(incoming)
        # Plain queries are never made hybrid here: more documents would match.
        if there.plain is None or not await self._understanding.maybe_semantic(
            there.plain + b" " + incoming.query, RewriteMode.ON
        ):
            return there.same
        try:
            read = await offload_if_large(len(there.plain), parse_search, there.plain, incoming)
        except UnsupportedJson:
            return there.same
        body, expression = read.body, route.index
        if route.api is EngineApi.REINDEX:
            source = body.get("source")
            if not isinstance(source, dict) or "remote" in source:
                return there.same
            body, expression = source, _index_expression(source.get("index"))
            if not expression:
                return there.same
        scope = RewriteContext(expression, dict(read.params), incoming.headers, RewriteMode.ON, size=len(there.plain))
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


def _index_expression(index: Any) -> str:
    """Names of indices in a body, as they would stand in a path."""
    names = index if isinstance(index, list) else [index]
    return ",".join(quote(name, safe="*-,") for name in names if isinstance(name, str))


# Functions whose text is in a query language of its own: `KQL("…")`, `QSTR("""…""")`, `QUERY('…')`.
_QUERY_FUNCTION = re.compile(
    r"""\b(?:kql|qstr|query)\s*\(\s*(?:\"{3}(?P<raw>.*?)\"{3}|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^']|'')*)')""",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)")


class QueryLanguageHandler:
    """Handles `_query`, `_sql`, `_eql/search` and OpenSearch's `_plugins/_sql` and `_plugins/_ppl`.

    Args:
        understanding: Knows what asks by meaning.
    """

    def __init__(self, understanding: SearchRewriter) -> None:
        self._understanding = understanding

    async def outgoing(self, incoming: IncomingRequest, route: EngineRoute) -> OutgoingRequest:
        """The very request.

        Raises:
            BadRequest: a part of it asks by meaning.
            EsSbertError: the engine cannot be asked what its indices hold.
        """
        there = await self._understanding.receive(incoming)
        if there.plain is None or not await self._understanding.maybe_semantic(there.plain, RewriteMode.ON):
            return there.same
        try:
            queries = query_dsl_parts(await offload_if_large(len(there.plain), parse_object, there.plain))
        except UnsupportedJson:
            return there.same
        if not await self._understanding.maybe_semantic(write_object({"queries": queries}), RewriteMode.ON):
            return there.same
        # The indices are named in a language that is not read here: an ordinary field of any of them may be meant.
        scope = RewriteContext(route.index, {}, incoming.headers, RewriteMode.ON, size=len(there.plain))
        if await self._understanding.names_vectors(queries, scope):
            raise BadRequest(
                "ES|QL, SQL, EQL and PPL take no query by meaning, nor does a filter beside them",
                "Search by meaning with _search; X-Es-Sbert: off passes the request as it is.",
            )
        return there.same


def query_dsl_parts(body: Json) -> list[Json]:
    """The parts of a request that are no ES|QL, SQL, EQL or PPL, as queries."""
    found = [body["filter"]] if isinstance(body.get("filter"), dict) else []
    text = body.get("query")
    for inside in _QUERY_FUNCTION.finditer(text) if isinstance(text, str) else ():
        written = inside["raw"] or _ESCAPED.sub(r"\1", inside["double"] or "") or (inside["single"] or "")
        found.append({"query_string": {"query": written}})
    return found
