"""Which of the engine's APIs a request is for, as far as the gateway has anything to add."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote_to_bytes

from es_sbert.gateway.wire.incoming import Incoming


class Api(StrEnum):
    """APIs whose requests may ask by meaning, or bring documents; `LANGUAGE` is all of ES|QL, SQL, EQL and PPL."""

    SEARCH = "search"
    ASYNC_SEARCH = "async_search"
    COUNT = "count"
    EXPLAIN = "explain"
    VALIDATE = "validate"
    RANK_EVALUATION = "rank_eval"
    LANGUAGE = "language"
    MULTI_SEARCH = "msearch"
    SEARCH_TEMPLATE = "search_template"
    MULTI_SEARCH_TEMPLATE = "msearch_template"
    BULK = "bulk"
    DOCUMENT = "document"
    CREATE = "create"
    UPDATE = "update"
    BY_QUERY = "by_query"
    REINDEX = "reindex"
    OTHER = "other"


# Questions about a search, which are put as searches are and find nothing themselves.
ABOUT_SEARCHES = frozenset({Api.EXPLAIN, Api.VALIDATE})
SEARCHES = frozenset({Api.SEARCH, Api.ASYNC_SEARCH, Api.COUNT, Api.SEARCH_TEMPLATE}) | ABOUT_SEARCHES
MULTI_SEARCHES = frozenset({Api.MULTI_SEARCH, Api.MULTI_SEARCH_TEMPLATE})
WRITES_OF_MATCHES = frozenset({Api.BY_QUERY, Api.REINDEX})
WRITES = frozenset({Api.BULK, Api.DOCUMENT, Api.CREATE, Api.UPDATE})


@dataclass(frozen=True)
class Route:
    """What a request is for.

    Attributes:
        api: The API.
        index: Expression of indices as it stands in the path, percent-encoded; empty where the path has none.
        id: A document's id, percent-encoded; empty where the path has none.
    """

    api: Api
    index: str = ""
    id: str = ""


OTHER = Route(Api.OTHER)
_READS = frozenset({"GET", "POST"})
_POST = frozenset({"POST"})
_WRITES = frozenset({"POST", "PUT"})
# What stands behind the index → the methods and the API.
_APIS: dict[tuple[bytes, ...], tuple[frozenset[str], Api]] = {
    (b"_search",): (_READS, Api.SEARCH),
    (b"_async_search",): (_POST, Api.ASYNC_SEARCH),
    (b"_count",): (_READS, Api.COUNT),
    (b"_validate", b"query"): (_READS, Api.VALIDATE),
    (b"_rank_eval",): (_READS, Api.RANK_EVALUATION),
    (b"_query",): (_POST, Api.LANGUAGE),
    (b"_query", b"async"): (_POST, Api.LANGUAGE),
    (b"_sql",): (_READS, Api.LANGUAGE),
    (b"_eql", b"search"): (_READS, Api.LANGUAGE),
    (b"_plugins", b"_sql"): (_POST, Api.LANGUAGE),
    (b"_plugins", b"_ppl"): (_POST, Api.LANGUAGE),
    (b"_msearch",): (_READS, Api.MULTI_SEARCH),
    (b"_search", b"template"): (_READS, Api.SEARCH_TEMPLATE),
    (b"_msearch", b"template"): (_READS, Api.MULTI_SEARCH_TEMPLATE),
    (b"_bulk",): (_WRITES, Api.BULK),
    (b"_delete_by_query",): (_POST, Api.BY_QUERY),
    (b"_update_by_query",): (_POST, Api.BY_QUERY),
    (b"_reindex",): (_POST, Api.REINDEX),
}
_OF_A_DOCUMENT = {b"_doc": Api.DOCUMENT, b"_create": Api.CREATE, b"_update": Api.UPDATE}


def route_of(incoming: Incoming) -> Route:
    """The API that a request is for; `OTHER` is passed on untouched."""
    segments = incoming.path.strip(b"/").split(b"/")
    # An index's name never begins with an underscore, an API's always does.
    index = b"" if segments[0].startswith(b"_") and segments[0] != b"_all" else segments.pop(0)
    plain = tuple(unquote_to_bytes(segment) for segment in segments)
    name = index.decode("ascii")
    if plain in _APIS:
        methods, api = _APIS[plain]
        return Route(api, name) if incoming.method in methods else OTHER
    if index and len(plain) == 2 and plain[0] == b"_explain" and incoming.method in _READS:
        return Route(Api.EXPLAIN, name, segments[1].decode("ascii"))
    if index and plain and plain[0] in _OF_A_DOCUMENT and incoming.method in _WRITES and len(plain) <= 2:
        api = _OF_A_DOCUMENT[plain[0]]
        document = segments[1].decode("ascii") if len(segments) == 2 else ""
        return Route(api, name, document) if document or api is Api.DOCUMENT else OTHER
    return OTHER


# Parts of paths by which names come to stand for other indices, or indices for other mappings.
_OF_INDICES = frozenset({
    b"_alias", b"_aliases", b"_clone", b"_close", b"_component_template", b"_data_stream", b"_index_template",
    b"_mapping", b"_mappings", b"_open", b"_restore", b"_rollover", b"_shrink", b"_split", b"_template",
})  # fmt: skip


def changes_indices(incoming: Incoming) -> bool:
    """Whether a request may change what is known of indices; others that do are noticed a little later."""
    if incoming.method not in ("PUT", "POST", "DELETE"):
        return False
    segments = [unquote_to_bytes(segment) for segment in incoming.path.strip(b"/").split(b"/")]
    is_index = len(segments) == 1 and not segments[0].startswith(b"_")
    return is_index or not _OF_INDICES.isdisjoint(segments)
