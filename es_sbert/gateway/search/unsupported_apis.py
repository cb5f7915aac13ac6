"""APIs that cannot run semantic queries, or embed documents: `_delete_by_query`, `_update_by_query`, `_reindex`,
`_rank_eval`, ES|QL, SQL, EQL, PPL, others that take queries (`_terms_enum`, `_transform`, `_mvt`, …), and OpenSearch's
`_bulk/stream`.

Their requests pass through unchanged, unless they contain a semantic query: then they are rejected. The engine would
treat the virtual field as one that no document has, so a query on it would match nothing and its negation everything:
a `must_not` would delete the whole index. `_bulk/stream` is always rejected: the bulk handler reads whole requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from es_sbert.engines.rest import Json
from es_sbert.gateway.concurrency import gather_or_cancel, offload_if_large
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.proxy.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.proxy.forward import BufferedResponse, OutgoingRequest
from es_sbert.gateway.proxy.incoming_request import IncomingRequest, parse_object, write_object
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.compound_queries import clause_list
from es_sbert.gateway.search.incoming_search import (
    RewriteContext,
    RewriteMode,
    index_expression,
    parse_search,
    render_template,
    requested_mode,
)
from es_sbert.gateway.search.search_rewriter import SearchRewriter

# Functions whose argument is in another query language: `KQL("…")`, `QSTR("""…""")`, `QUERY('…')`.
_QUERY_FUNCTION = re.compile(
    r"""\b(?:kql|qstr|query)\s*\(\s*(?:\"{3}(?P<raw>.*?)\"{3}|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^']|'')*)')""",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)")


class UnsupportedApiHandler:
    """Handles `_delete_by_query`, `_update_by_query`, `_reindex`, `_rank_eval`, the query languages (`_query`, `_sql`,
    `_eql/search`, and OpenSearch's `_plugins/_sql` and `_plugins/_ppl`), filtered APIs, and `_bulk/stream`.

    Args:
        rewriter: Detects semantic queries.
        upstream: The engine, which renders templates.
    """

    def __init__(self, rewriter: SearchRewriter, upstream: Upstream) -> None:
        self._rewriter = rewriter
        self._upstream = upstream

    async def outgoing(self, incoming: IncomingRequest, route: EngineRoute) -> OutgoingRequest:
        """Check a request, and return it unchanged.

        Raises:
            BadRequest: the request contains a semantic query, or the gateway cannot read it; or it is a `_bulk/stream`.
            EsSbertError: the engine is not available.
        """
        if route.api is EngineApi.BULK_STREAM and requested_mode(incoming) is not RewriteMode.OFF:
            raise BadRequest(
                "documents that are sent to _bulk/stream would be stored without vectors",
                "Send them to _bulk. X-Es-Sbert: off passes the request through unchanged.",
            )
        received = await self._rewriter.receive(incoming)
        if received.plain is None:
            return received.unchanged
        if route.api is EngineApi.RANK_EVALUATION:
            await self._check_rank_eval(received.plain, received.mode, incoming, route)
        elif route.api in (EngineApi.LANGUAGE, EngineApi.FILTERED):
            await self._check_queries(received.plain, incoming, route)
        else:
            await self._check_by_query(received.plain, incoming, route)
        return received.unchanged

    async def _check_by_query(self, plain: bytes, incoming: IncomingRequest, route: EngineRoute) -> None:
        # Full-text queries never become hybrid here: more documents would match.
        if not await self._rewriter.maybe_semantic(plain + b" " + incoming.plain_query, RewriteMode.ON):
            return
        body, params = await offload_if_large(len(plain), parse_search, plain, incoming)
        expression = route.index
        if route.api is EngineApi.REINDEX:
            source = body.get("source")
            if not isinstance(source, dict) or "remote" in source:
                return
            body, expression = source, index_expression(source.get("index")) or ""
            if not expression:
                return
        context = RewriteContext(expression, dict(params), incoming.headers, RewriteMode.ON, size=len(plain))
        if await self._rewriter.is_semantic(body, context):
            api = incoming.path.strip(b"/").rpartition(b"/")[2].decode("ascii")
            raise BadRequest(
                f"{api} does not support semantic queries: the k nearest documents are not an exact match set",
                'Run a semantic search, and select its hits by id: {"query": {"ids": {"values": ["1", "2"]}}}.',
            )

    async def _check_rank_eval(
        self, plain: bytes, mode: RewriteMode, incoming: IncomingRequest, route: EngineRoute
    ) -> None:
        """Refuse searches that `_search` would rewrite, also to hybrid ones: the engine would rate others."""
        if not await self._rewriter.maybe_semantic(plain, mode, template=b'"templates"' in plain):
            return
        body, params = await offload_if_large(len(plain), parse_search, plain, incoming)
        context = RewriteContext(route.index, dict(params), incoming.headers, mode, size=len(plain))
        templates = {
            str(template.get("id")): template.get("template") for template in clause_list(body.get("templates"))
        }

        async def is_semantic(rated: Json) -> bool:
            search, template = rated.get("request"), templates.get(str(rated.get("template_id")))
            if isinstance(template, dict):
                filled = template | {"params": rated.get("params", {})}
                search = await render_template(self._upstream, filled, incoming)
            if isinstance(search, BufferedResponse) or not isinstance(search, dict):
                return False  # the engine rejects it
            return await self._rewriter.is_semantic(search, context)

        if any(await gather_or_cancel(map(is_semantic, clause_list(body.get("requests"))))):
            raise BadRequest(
                "_rank_eval does not support semantic or hybrid queries",
                "Evaluate them with judgements: es-sbert evaluate. The header X-Es-Sbert: on rates full-text queries "
                "that would become hybrid, off passes the request through unchanged.",
            )

    async def _check_queries(self, plain: bytes, incoming: IncomingRequest, route: EngineRoute) -> None:
        """Refuse semantic queries in a query language's request or its filter, or at any depth of another request."""
        if not await self._rewriter.maybe_semantic(plain, RewriteMode.ON):
            return
        # `_fleet/_fleet_msearch` has one object on each line.
        is_lines = incoming.path.endswith(b"_fleet_msearch")
        lines = [line for line in plain.split(b"\n") if line] if is_lines else [plain]
        bodies = await offload_if_large(len(plain), lambda: list(map(parse_object, lines)))
        parts = query_dsl_parts if route.api is EngineApi.LANGUAGE else nested_queries
        queries = [query for body in bodies for query in parts(body)]
        if not await self._rewriter.maybe_semantic(write_object({"queries": queries}), RewriteMode.ON):
            return
        # Some of these APIs name their indices in the body, in a language that is not parsed here.
        context = RewriteContext(route.index, {}, incoming.headers, RewriteMode.ON, size=len(plain))
        if await self._rewriter.any_semantic(queries, context):
            raise BadRequest(
                f"{incoming.path.decode('ascii')} does not support semantic queries, nor does its filter",
                "Use _search for semantic search; X-Es-Sbert: off passes the request through unchanged.",
            )


_QUERY_MEMBERS = frozenset({"query", "filter", "index_filter", "post_filter"})


def nested_queries(body: Json) -> Iterator[Json]:
    """Yield each object in a request that can be a query, at any depth."""
    waiting: list[Any] = [body]
    while waiting:  # not recursive: a body may be nested as deep as the parser allows
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            for name in _QUERY_MEMBERS & value.keys():
                found = value[name] if isinstance(value[name], list) else [value[name]]
                yield from (query for query in found if isinstance(query, dict))


def query_dsl_parts(body: Json) -> list[Json]:
    """Return the parts of a request that are in the query DSL, KQL or Lucene syntax, as queries."""
    queries = [body["filter"]] if isinstance(body.get("filter"), dict) else []
    text = body.get("query")
    for match in _QUERY_FUNCTION.finditer(text) if isinstance(text, str) else ():
        text_argument = match["raw"] or _ESCAPED.sub(r"\1", match["double"] or "") or (match["single"] or "")
        queries.append({"query_string": {"query": text_argument}})
    return queries
