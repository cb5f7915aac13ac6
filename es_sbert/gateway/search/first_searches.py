"""Searches that the gateway sends before a client's search, over the same documents."""

from __future__ import annotations

from urllib.parse import unquote, urlencode

import orjson

from es_sbert.engines.engine_info import without_search_pipeline
from es_sbert.engines.rest import Json
from es_sbert.gateway.index_lookup import EXPRESSION_OPTIONS, MAX_EXPRESSION_LENGTH
from es_sbert.gateway.proxy.incoming_request import credential_headers
from es_sbert.gateway.proxy.upstream import Upstream, UpstreamReply
from es_sbert.gateway.search.incoming_search import RewriteContext

# Maximum concurrent searches of one request, so that it does not occupy all connections.
MAX_CONCURRENT = 8
# Parameters that decide which shards a search looks at.
_SHARD_PARAMETERS = (*EXPRESSION_OPTIONS, "routing", "preference")
# Members of a search that determine its documents and fields: a point in time, runtime fields.
_DOCUMENT_SET_MEMBERS = ("pit", "runtime_mappings", "derived")


def first_body(query: Json, search: Json) -> Json:
    """Create a search that returns ids and scores.

    Args:
        search: The search of the client.
    """
    same = {name: search[name] for name in _DOCUMENT_SET_MEMBERS if name in search}
    return {"query": query, **same, "_source": False, "track_total_hits": False}


async def search_first(upstream: Upstream, first: Json, search: Json, context: RewriteContext) -> UpstreamReply:
    """Send a search with the caller's credentials.

    Args:
        first: The search to send, see `first_body`.
        search: The search of the client.
        context: Its parameters, with a `preference`, so that both searches use the same shard copies.

    Raises:
        EngineUnreachable: the engine did not respond.
    """
    options = {name: value for name, value in context.options.items() if name in _SHARD_PARAMETERS}
    credentials, expression = credential_headers(context.headers), context.expression or "_all"
    if "pit" in search:  # a point in time determines the indices
        return await upstream.search("/_search", credentials, first)
    if len(expression) <= MAX_EXPRESSION_LENGTH:
        return await upstream.search(f"/{expression}/_search?{urlencode(options)}", credentials, first)
    # Names that do not fit into a URL go into the body of an `_msearch`.
    header = {"index": [unquote(name) for name in expression.split(",")], **options}
    first = without_search_pipeline(upstream.engine_type_or_default, first)
    lines = orjson.dumps(header) + b"\n" + orjson.dumps(first) + b"\n"
    reply = await upstream.request("POST", "/_msearch", credentials, lines, "application/x-ndjson")
    if reply.status != 200:
        return reply
    with upstream.parsing("POST /_msearch"):
        [answer] = reply.body["responses"]
        return UpstreamReply(int(answer.get("status", 200)), answer)
