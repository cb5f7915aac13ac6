"""An incoming search: its body, URI parameters, template, point in time, mode (`X-Es-Sbert`) and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl, quote

from cachetools import LRUCache

from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.forward import BufferedResponse, OutgoingRequest, fetch_response
from es_sbert.gateway.incoming_request import (
    Headers,
    IncomingRequest,
    UnreadableJson,
    caller_cache_key,
    credential_headers,
    parse_object,
    write_object,
)
from es_sbert.gateway.index_lookup import IndexExpression
from es_sbert.gateway.search.compound_queries import BOOL_CLAUSES, query_type_and_body
from es_sbert.gateway.search.search_log import SearchTrace
from es_sbert.gateway.settings import MIB, Limits
from es_sbert.gateway.upstream import CLIENT_ERROR_STATUSES, Upstream


class RewriteMode(StrEnum):
    """Value of the header `X-Es-Sbert`: what is rewritten."""

    OFF = "off"
    ON = "on"
    HYBRID = "hybrid"


def requested_mode(incoming: IncomingRequest) -> RewriteMode | None:
    """The value of the header `X-Es-Sbert`; None without it.

    Raises:
        BadRequest: the value is unknown.
    """
    header = incoming.header(b"x-es-sbert").decode("ascii", "replace").strip().lower()
    try:
        return RewriteMode(header) if header else None
    except ValueError:
        raise BadRequest(
            "the header X-Es-Sbert has an unknown value", "Use off, on or hybrid, or remove the header."
        ) from None


@dataclass(frozen=True)
class RewriteContext(IndexExpression):
    """Indices, caller, mode and limits of a search to be rewritten.

    Attributes:
        mode: Mode of the rewriting.
        size: Bytes of the request body.
        budget: Limits that all searches of the request share; None gives this search a separate budget.
        trace: Filled in for the log; None if nothing is logged.
        find: Finds the semantic queries of a body that is not a search, given a `SemanticQueryParser`, as
            `QueryFinder.find` does.
    """

    mode: RewriteMode
    size: int = 0
    budget: SemanticBudget | None = None
    trace: SearchTrace | None = None
    find: Callable[[Any], dict[Any, Any]] | None = None


# Each semantic query repeats the filters of the search, so the rewritten search is limited.
_MAX_REWRITTEN_BYTES = 16 * MIB


class SemanticBudget:
    """The remaining limits of one request, shared by its searches.

    Args:
        limits: The settings.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queries = limits.semantic_queries
        self._texts: set[tuple[str, str]] = set()
        self._text_bytes = 0

    def check(self, queries: int, size: int) -> None:
        """Check the number of semantic queries of a search.

        Args:
            queries: Semantic queries of the search.
            size: Bytes of the search.

        Raises:
            BadRequest: there are too many semantic queries, or too many for a search of this size.
        """
        if queries > self._queries:
            raise _too_many(f"more than {self._limits.semantic_queries:,} semantic queries")
        if queries > 1 and queries * size > _MAX_REWRITTEN_BYTES:
            raise _too_many(f"{queries:,} or more semantic queries in {size:,} bytes, which all repeat its filters")

    def spend(self, queries: Sequence[tuple[str, str]]) -> None:
        """Count the semantic queries of one search, which passed `check`.

        Args:
            queries: The model's fingerprint and the text of each query.

        Raises:
            BadRequest: a limit of the request is exceeded.
        """
        self.check(len(queries), 0)
        self._queries -= len(queries)
        new_texts = set(queries) - self._texts
        self._texts |= new_texts
        self._text_bytes += sum(len(text.encode("utf-8", "surrogatepass")) for _, text in new_texts)
        if self._text_bytes > (limit := self._limits.semantic_text_bytes):
            raise _too_many(f"more than {limit:,} bytes in the texts of its semantic queries")


def _too_many(what: str) -> BadRequest:
    return BadRequest(f"the request has {what}", "Send several requests, or use fewer semantic queries.")


# Parameters of a URI search, which become a query_string in the body.
_URI_SEARCH_PARAMETERS = {
    "q": "query",
    "df": "default_field",
    "default_operator": "default_operator",
    "analyzer": "analyzer",
    "analyze_wildcard": "analyze_wildcard",
    "lenient": "lenient",
}


@dataclass(frozen=True)
class ReceivedRequest:
    """A request whose body was read.

    Attributes:
        unchanged: The request to pass through.
        mode: Mode of the rewriting.
        plain: The body, or the parameter `source`, which engines read if there is no body: uncompressed, in UTF-8. None
            if the mode is off.
    """

    unchanged: OutgoingRequest
    mode: RewriteMode
    plain: bytes | None


def query_parameters(incoming: IncomingRequest) -> list[tuple[str, str]]:
    """The parameters of a request, decoded."""
    return parse_qsl(incoming.query.decode("ascii"), keep_blank_values=True)


def parse_search(plain: bytes, incoming: IncomingRequest) -> tuple[Json, list[tuple[str, str]]]:
    """Parse the search in the body or the parameters of a request.

    Args:
        plain: See `ReceivedRequest`.

    Returns:
        The search body, and the parameters that are not part of it.

    Raises:
        UnreadableJson: the body is not a JSON object.
    """
    params = query_parameters(incoming)
    options = dict(params)
    if not incoming.has_body:
        params = [(name, value) for name, value in params if name not in ("source", "source_content_type")]
    body = parse_object(plain) if plain.strip() else {}
    if "q" in options:
        # `q` replaces the query of the body.
        query_string: Json = {
            _URI_SEARCH_PARAMETERS[name]: value for name, value in options.items() if name in _URI_SEARCH_PARAMETERS
        }
        body = body | {"query": {"query_string": query_string}}
        params = [(name, value) for name, value in params if name not in _URI_SEARCH_PARAMETERS]
    return body, params


def index_expression(value: object) -> str | None:
    """Convert the indices of a body, one or a list, to an index expression for a URL; None for any other value."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        return None
    return ",".join(quote(str(name), safe="*,") for name in names)


def request_defined_fields(body: Json) -> frozenset[str]:
    """Fields that a search defines itself, on Elasticsearch and on OpenSearch."""
    definitions = (body.get("runtime_mappings"), body.get("derived"))
    return frozenset(name for fields in definitions if isinstance(fields, dict) for name in fields)


def sorts_by_score(body: Json) -> bool:
    """Whether scores count: there is no sort, or `_score` is one of its keys."""
    sort = body.get("sort")
    if sort in (None, [], ""):
        return True
    keys = sort if isinstance(sort, list) else [sort]
    names = [name for key in keys for name in (key if isinstance(key, dict) else [key])]
    return any(isinstance(name, str) and name.startswith("_score") for name in names)


def is_from_query_bar(body: Json) -> bool:
    """Whether the query of a search comes from the query bar of Kibana or OpenSearch Dashboards, with its filters.

    Both build a `bool` with all four lists, empty or not (`buildEsQuery`, `buildOpenSearchQuery`). A dashboard sends
    the query to the indices of all its panels, and a panel does not know which of them have vectors.
    """
    query = query_type_and_body(body.get("query"))
    if query is None or query[0] != "bool":
        return False
    return query[1].keys() == set(BOOL_CLAUSES) and all(isinstance(clauses, list) for clauses in query[1].values())


_TEMPLATE_MEMBERS = ("id", "source", "params")
# Options of a template request that apply to the search.
_SEARCH_MEMBERS = ("explain", "profile")


async def render_template(upstream: Upstream, body: Json, incoming: IncomingRequest) -> Json | BufferedResponse:
    """Render a template to its search, by the engine and with the caller's permissions.

    Args:
        body: Body of `_search/template`.

    Returns:
        The search, or the engine's response if the template cannot be rendered.

    Raises:
        EngineUnreachable: the engine did not respond.
        AccessDenied: the caller may not render templates, so the search is unknown.
        UnreadableJson: the gateway cannot read the search.
    """
    template = {name: body[name] for name in _TEMPLATE_MEMBERS if name in body}
    render = OutgoingRequest.with_body(incoming, write_object(template), b"/_render/template", "POST")
    answer = await fetch_response(upstream, render)
    if answer.status == 403:
        raise AccessDenied(
            "the gateway renders search templates as their caller, who may not do that",
            "Allow POST _render/template, or send the search itself.",
        )
    if answer.status != 200:
        return answer
    output = parse_object(answer.body).get("template_output")
    if not isinstance(output, dict):
        raise UnreadableJson("its template does not render to an object")
    return output | {name: body[name] for name in _SEARCH_MEMBERS if name in body}


_CACHE_SIZE = 1000
_MAX_INDICES = 10_000
# A name that no index has.
_NO_INDEX = "_none"
_ALL_REMOTE = "*:*"


class PitResolver:
    """Resolves a point in time to its indices. It asks the engine, so that any point in time can be used.

    Args:
        upstream: The engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._cache: LRUCache[bytes, str] = LRUCache(_CACHE_SIZE)

    async def expression(self, body: Json, headers: Headers) -> str:
        """Look up the indices of a search's point in time, as an index expression. Empty indices are left out.

        Raises:
            EngineUnreachable, RequestFailed: the lookup failed.
        """
        pit = body["pit"]
        pit_id = pit.get("id") if isinstance(pit, dict) else None
        if not isinstance(pit_id, str):
            return _NO_INDEX
        # The cache key includes the caller, so that a leaked PIT id reveals no index names.
        key = caller_cache_key(headers, pit_id)
        if key not in self._cache:
            names: Json = {"terms": {"field": "_index", "size": _MAX_INDICES}}
            search: Json = {"size": 0, "track_total_hits": False, "pit": {"id": pit_id}, "aggs": {"indices": names}}
            answer = await self._upstream.search("/_search", credential_headers(headers), search)
            if answer.status in CLIENT_ERROR_STATUSES:
                return _NO_INDEX  # expired or not the caller's; the engine rejects the search
            # Remote clusters may be missing, or a part of one; see below.
            clusters = answer.body.get("_clusters", {}) if isinstance(answer.body, dict) else {}
            partial_ok = any(clusters.get(state) for state in ("skipped", "partial", "failed", "running"))
            found = self._upstream.require_object(answer, "POST /_search", partial_ok=partial_ok)
            with self._upstream.parsing("POST /_search"):
                indices = [bucket["key"] for bucket in found["aggregations"]["indices"]["buckets"]]
                expression = ",".join(quote(name, safe="") for name in indices)
                if partial_ok:
                    # The missing indices are unknown, but they are remote: semantic queries are refused.
                    return f"{expression},{_ALL_REMOTE}" if expression else _ALL_REMOTE
                self._cache[key] = expression or _NO_INDEX
        return self._cache[key]
