"""Map a request's method and path to the engine API that it calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote_to_bytes

from es_sbert.gateway.incoming_request import IncomingRequest


class EngineApi(StrEnum):
    """The API that a request calls.

    `LANGUAGE` covers SQL, EQL and PPL, `FILTERED` the APIs that take queries and return something else than hits
    or run them later, `OTHER` any other API.
    """

    SEARCH = "search"
    ASYNC_SEARCH = "async_search"
    COUNT = "count"
    EXPLAIN = "explain"
    VALIDATE = "validate"
    RANK_EVALUATION = "rank_eval"
    ESQL = "query"
    LANGUAGE = "language"
    MULTI_SEARCH = "msearch"
    SEARCH_TEMPLATE = "search_template"
    MULTI_SEARCH_TEMPLATE = "msearch_template"
    FILTERED = "filtered"
    BULK = "bulk"
    BULK_STREAM = "bulk_stream"
    DOCUMENT = "document"
    CREATE = "create"
    UPDATE = "update"
    BY_QUERY = "by_query"
    REINDEX = "reindex"
    OTHER = "other"


SEARCH_APIS = frozenset({
    EngineApi.SEARCH, EngineApi.ASYNC_SEARCH, EngineApi.COUNT, EngineApi.SEARCH_TEMPLATE, EngineApi.ESQL,
})  # fmt: skip
# APIs that take the queries of searches and return no hits. They do not support semantic queries.
SEARCH_DIAGNOSTICS = frozenset({EngineApi.EXPLAIN, EngineApi.VALIDATE, EngineApi.RANK_EVALUATION})
MULTI_SEARCH_APIS = frozenset({EngineApi.MULTI_SEARCH, EngineApi.MULTI_SEARCH_TEMPLATE})
BY_QUERY_APIS = frozenset({EngineApi.BY_QUERY, EngineApi.REINDEX})
WRITE_APIS = frozenset({EngineApi.BULK, EngineApi.DOCUMENT, EngineApi.CREATE, EngineApi.UPDATE})


@dataclass(frozen=True)
class EngineRoute:
    """The engine API of a request.

    Attributes:
        api: The API.
        index: Index expression in the path, percent-encoded; empty if there is none.
        id: Document id in the path, percent-encoded; empty if there is none.
    """

    api: EngineApi
    index: str = ""
    id: str = ""


OTHER = EngineRoute(EngineApi.OTHER)
_GET_POST = frozenset({"GET", "POST"})
_POST = frozenset({"POST"})
_POST_PUT = frozenset({"POST", "PUT"})
# Path after the index → methods and API.
_API_PATHS: dict[tuple[bytes, ...], tuple[frozenset[str], EngineApi]] = {
    (b"_search",): (_GET_POST, EngineApi.SEARCH),
    (b"_async_search",): (_POST, EngineApi.ASYNC_SEARCH),
    (b"_count",): (_GET_POST, EngineApi.COUNT),
    (b"_validate", b"query"): (_GET_POST, EngineApi.VALIDATE),
    (b"_rank_eval",): (_GET_POST, EngineApi.RANK_EVALUATION),
    (b"_query",): (_POST, EngineApi.ESQL),
    (b"_query", b"async"): (_POST, EngineApi.ESQL),
    (b"_sql",): (_GET_POST, EngineApi.LANGUAGE),
    (b"_eql", b"search"): (_GET_POST, EngineApi.LANGUAGE),
    (b"_plugins", b"_sql"): (_POST, EngineApi.LANGUAGE),
    (b"_plugins", b"_ppl"): (_POST, EngineApi.LANGUAGE),
    (b"_msearch",): (_GET_POST, EngineApi.MULTI_SEARCH),
    (b"_search", b"template"): (_GET_POST, EngineApi.SEARCH_TEMPLATE),
    (b"_msearch", b"template"): (_GET_POST, EngineApi.MULTI_SEARCH_TEMPLATE),
    (b"_bulk",): (_POST_PUT, EngineApi.BULK),
    (b"_bulk", b"stream"): (_POST_PUT, EngineApi.BULK_STREAM),
    (b"_delete_by_query",): (_POST, EngineApi.BY_QUERY),
    (b"_update_by_query",): (_POST, EngineApi.BY_QUERY),
    (b"_reindex",): (_POST, EngineApi.REINDEX),
}
# First segment of the path after the index, or after `_plugins`.
_FILTERED_SEGMENTS = frozenset({
    b"_alerting", b"_asynchronous_search", b"_enrich", b"_field_caps", b"_fleet", b"_graph", b"_knn_search", b"_mvt",
    b"_terms_enum", b"_transform",
})  # fmt: skip
_DOCUMENT_APIS = {b"_doc": EngineApi.DOCUMENT, b"_create": EngineApi.CREATE, b"_update": EngineApi.UPDATE}


def match_route(incoming: IncomingRequest) -> EngineRoute:
    """Find the API of a request. Requests to `OTHER` are forwarded unchanged."""
    segments = incoming.path.strip(b"/").split(b"/")
    # An index's name never begins with an underscore, an API's always does.
    index = b"" if segments[0].startswith(b"_") and segments[0] != b"_all" else segments.pop(0)
    plain = tuple(unquote_to_bytes(segment) for segment in segments)
    name = index.decode("ascii")
    if plain in _API_PATHS:
        methods, api = _API_PATHS[plain]
        return EngineRoute(api, name) if incoming.method in methods else OTHER
    if not _FILTERED_SEGMENTS.isdisjoint(plain[1:2] if plain[:1] == (b"_plugins",) else plain[:1]):
        return EngineRoute(EngineApi.FILTERED, name)
    if index and len(plain) == 2 and plain[0] == b"_explain" and incoming.method in _GET_POST:
        return EngineRoute(EngineApi.EXPLAIN, name, segments[1].decode("ascii"))
    if index and plain and plain[0] in _DOCUMENT_APIS and incoming.method in _POST_PUT and len(plain) <= 2:
        api = _DOCUMENT_APIS[plain[0]]
        document = segments[1].decode("ascii") if len(segments) == 2 else ""
        return EngineRoute(api, name, document) if document or api is EngineApi.DOCUMENT else OTHER
    return OTHER


def makes_documents(incoming: IncomingRequest, route: EngineRoute) -> bool:
    """Whether a request makes the engine write documents that it derives from others."""
    last = unquote_to_bytes(incoming.path.strip(b"/").rpartition(b"/")[2])
    return route.api is EngineApi.REINDEX or (route.api is EngineApi.BY_QUERY and last == b"_update_by_query")


# Path segments of APIs that change aliases or mappings.
_INDEX_CHANGING_SEGMENTS = frozenset({
    b"_alias", b"_aliases", b"_clone", b"_close", b"_component_template", b"_data_stream", b"_index_template",
    b"_mapping", b"_mappings", b"_open", b"_restore", b"_rollover", b"_shrink", b"_split", b"_template",
})  # fmt: skip


def changes_indices(incoming: IncomingRequest) -> bool:
    """Whether a request may change cached mappings. Other changes are noticed when the cache expires."""
    if incoming.method not in ("PUT", "POST", "DELETE"):
        return False
    segments = [unquote_to_bytes(segment) for segment in incoming.path.strip(b"/").split(b"/")]
    is_index = len(segments) == 1 and not segments[0].startswith(b"_")
    return is_index or not _INDEX_CHANGING_SEGMENTS.isdisjoint(segments)
