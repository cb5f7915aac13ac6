"""APIs that cannot run semantic queries, or embed documents.

Their requests pass through unchanged, unless they contain a semantic query: then they are rejected. The engine would
treat the virtual field as one that no document has, so a query on it would match nothing and its negation everything:
a `must_not` would delete the whole index. `_bulk/stream` is always rejected: the bulk handler reads whole requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from es_sbert.engines.rest import Json
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.forward import OutgoingRequest
from es_sbert.gateway.incoming_request import IncomingRequest, parse_object, write_object
from es_sbert.gateway.search.compound_queries import clause_list
from es_sbert.gateway.search.incoming_search import (
    ReceivedRequest,
    RewriteContext,
    RewriteMode,
    index_expression,
    parse_search,
    requested_mode,
)
from es_sbert.gateway.search.search_rewriter import SearchRewriter

_SELECT_BY_ID = 'Search, and select the hits by id: {"query": {"ids": {"values": ["1", "2"]}}}.'
# What to do instead; by default, to use `_search`.
_REMEDIES = {
    EngineApi.BY_QUERY: _SELECT_BY_ID,
    EngineApi.REINDEX: _SELECT_BY_ID,
    EngineApi.RANK_EVALUATION: "Evaluate semantic and hybrid queries with judgements: es-sbert evaluate.",
    EngineApi.ESQL: "Write MATCH on the semantic field in the query, instead of KQL, QSTR or a filter.",
    EngineApi.EXPLAIN: "Search with explain=true, which explains the scores of all hits.",
}
# Some of these name their indices in the body, in a language that is not parsed here.
_INDICES_UNKNOWN = frozenset({EngineApi.ESQL, EngineApi.LANGUAGE, EngineApi.FILTERED})


_OFF = "X-Es-Sbert: off passes the request through unchanged."


async def check_unsupported(rewriter: SearchRewriter, incoming: IncomingRequest, route: EngineRoute) -> OutgoingRequest:
    """Check a request of these APIs, such as `_delete_by_query`, `_reindex` or SQL, and return it unchanged.

    Args:
        rewriter: Detects semantic queries.

    Raises:
        BadRequest: the request contains a semantic query, or the gateway cannot read it; or it is a `_bulk/stream`.
        EsSbertError: the engine is not available.
    """
    if route.api is EngineApi.BULK_STREAM and requested_mode(incoming) is not RewriteMode.OFF:
        raise BadRequest(  # before its body: it may never end
            "documents that are sent to _bulk/stream would be stored without vectors", f"Send them to _bulk. {_OFF}"
        )
    received = await rewriter.receive(incoming)
    await reject_semantic(rewriter, received, incoming, route)
    return received.unchanged


async def reject_semantic(
    rewriter: SearchRewriter, received: ReceivedRequest, incoming: IncomingRequest, route: EngineRoute
) -> None:
    """Refuse a request with a semantic query; of ES|QL, only outside of the language itself.

    Raises:
        BadRequest, EsSbertError: see `check_unsupported`.
    """
    if received.plain is None:
        return
    # Where full-text queries select documents, they never become hybrid: more documents would match.
    mode = received.mode if route.api is EngineApi.RANK_EVALUATION else RewriteMode.ON
    if await _is_semantic(rewriter, received.plain, mode, incoming, route):
        raise BadRequest(
            f"{incoming.path.decode('ascii')} does not support semantic queries",
            f"{_REMEDIES.get(route.api, 'Use _search for semantic search.')} {_OFF}",
        )


async def _is_semantic(
    rewriter: SearchRewriter, plain: bytes, mode: RewriteMode, incoming: IncomingRequest, route: EngineRoute
) -> bool:
    # A template is unknown until it is rendered.
    has_templates = route.api is EngineApi.RANK_EVALUATION and b'"templates"' in plain
    searched = plain + b" " + incoming.plain_query
    if not await rewriter.maybe_semantic(searched, mode, template=has_templates):
        return False
    size, indices_unknown = len(plain), route.api in _INDICES_UNKNOWN
    if incoming.path.endswith(b"_fleet_msearch"):  # one object on each line
        lines = [line for line in plain.split(b"\n") if line]
        body: Json = {"lines": await offload_if_large(size, lambda: list(map(parse_object, lines)))}
        options: dict[str, str] = {}
    else:
        body, params = await offload_if_large(size, parse_search, plain, incoming)
        options = {} if indices_unknown else dict(params)
    expression, searches = route.index, [body]
    if route.api is EngineApi.REINDEX:
        searches = [source for source in clause_list(body.get("source")) if "remote" not in source]
        expression = index_expression(searches[0].get("index")) or "" if searches else ""
        if not expression:
            return False
    elif route.api is EngineApi.RANK_EVALUATION:
        rated = clause_list(body.get("requests"))
        searches = [search for request in rated for search in clause_list(request.get("request"))]
        has_templates = any(request.get("template_id") is not None for request in rated)
    elif indices_unknown:
        # A word in the text of ES|QL or SQL is not a query, and must not cost a look-up.
        searches = [{**body, "query": body["query"] if isinstance(body.get("query"), dict) else None}]
        searches += embedded_queries(body)
        if not await rewriter.maybe_semantic(write_object({"searches": searches}), mode):
            return False
    context = RewriteContext(expression, options, incoming.headers, mode, size=size)
    return await rewriter.is_semantic(searches, context, indices_unknown=indices_unknown, has_templates=has_templates)


# Functions whose argument is in another query language: `KQL("…")`, `QSTR("""…""")`, `QUERY('…')`.
_QUERY_FUNCTION = re.compile(
    r"""\b(?:kql|qstr|query)\s*\(\s*(?:\"{3}(?P<raw>.*?)\"{3}|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^']|'')*)')""",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)")


def embedded_queries(body: Json) -> Iterator[Json]:
    """Yield a search for each query in another language inside the query of ES|QL, SQL or PPL."""
    text = body.get("query")
    for match in _QUERY_FUNCTION.finditer(text) if isinstance(text, str) else ():
        argument = match["raw"] or _ESCAPED.sub(r"\1", match["double"] or "") or match["single"] or ""
        yield {"query": {"query_string": {"query": argument}}}
