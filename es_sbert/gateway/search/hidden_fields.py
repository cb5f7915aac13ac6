"""Leave vectors and their metadata out of the hits of searches, unless the caller asks for them.

Only requests are changed: a search gets `_source.excludes`, and the engine leaves the fields out. Searches that copy
documents, with a scroll or a point in time, are left alone, and so are the APIs that read one document by its id:
what they return may be written back, or kept as a backup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from es_sbert.engines.rest import Json
from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.index_lookup import IndexExpression, IndexLookup, split_remote
from es_sbert.gateway.proxy.engine_routes import EngineApi
from es_sbert.gateway.proxy.incoming_request import UnreadableJson, parse_object, write_object
from es_sbert.gateway.search.compound_queries import map_clauses, map_members
from es_sbert.gateway.search.incoming_search import RewriteContext
from es_sbert.gateway.settings import HideVectors, OnEmbeddingFailure, SemanticSettings
from es_sbert.index.document_vectors import append_members
from es_sbert.index.mapping import VectorFieldMeta, document_meta_field

# APIs whose responses have hits with a `_source`.
_HIT_APIS = frozenset({
    EngineApi.SEARCH, EngineApi.ASYNC_SEARCH, EngineApi.SEARCH_TEMPLATE, EngineApi.MULTI_SEARCH,
    EngineApi.MULTI_SEARCH_TEMPLATE,
})  # fmt: skip
# Reasons to parse a search: it may filter its source, return none, copy documents, return hits in other places, or have
# comments. Any name may be written with escapes.
_MARKS = re.compile(
    rb'_source|stored_fields|script_fields|"pit"|top_hits|inner_hits|\\u|source=|"size"\s*:\s*0\s*[,}]|size=0|//|/\*'
)
# Engines limit the first line of a request to 4096 bytes.
_MAX_TARGET_LENGTH = 4000


# A field that no filter of the caller can name. It shows whether fields would be left out of hits at all, before they
# are looked up.
_ANY_FIELD = ("",)
Parameters = list[tuple[str, str]]


class VectorHider:
    """Determines which fields are left out of the hits of a search.

    Args:
        settings: Settings of the gateway.
        indices: Resolves index expressions.
    """

    def __init__(self, settings: SemanticSettings, indices: IndexLookup) -> None:
        self._policy = settings.hide_vectors
        self._indices = indices
        # A document that is written back without its vector must get the vector again.
        restores = settings.writes and settings.on_embedding_failure is OnEmbeddingFailure.FAIL
        self._enabled = self._policy is HideVectors.ALWAYS or (self._policy is HideVectors.AUTO and restores)

    def applies(self, api: EngineApi, options: Mapping[str, str]) -> bool:
        """Whether fields may be left out of the hits of a request.

        Args:
            options: Parameters of the request.
        """
        return self._enabled and api in _HIT_APIS and "scroll" not in options

    async def fields(self, names: IndexExpression) -> tuple[str, ...]:
        """The fields to leave out of the hits of a search on these indices: vector fields and their metadata.

        No field is left out if an index is remote, because its mapping cannot be read, or if the caller or the gateway
        may not read the mappings.

        Raises:
            EngineUnreachable: the engine did not respond.
        """
        if split_remote(names.expression)[1] is not None:
            return ()
        try:
            indices = await self._indices.get(names)
            if not indices:
                return ()
            owners: dict[str, set[str]] = {}
            not_hidden: set[str] = set()
            for index, fields in indices.fields.items():
                for name, meta in fields.items():
                    owners.setdefault(name, set()).add(index)
                    if not self._may_hide(meta):
                        not_hidden.add(name)
            hidden = {name: index_names for name, index_names in owners.items() if name not in not_hidden}
            members = {member: owner for name, owner in hidden.items() for member in (name, document_meta_field(name))}
            if members and indices.is_mixed:
                elsewhere = await self._indices.mapped_elsewhere(names, members)
                members = {name: owner for name, owner in members.items() if name not in elsewhere}
        except EngineUnreachable:
            raise
        except EsSbertError:
            return ()  # the engine answers the unchanged search, or rejects it
        return tuple(sorted(members))

    async def hide(
        self, body: Json, params: Parameters, context: RewriteContext, api: EngineApi
    ) -> tuple[Json, Parameters]:
        """Leave the vectors out of the hits of a parsed search; the identical objects if nothing changes."""
        if not self.applies(api, context.options):
            return body, params
        hide = partial(offload_if_large, context.size, hide_in_search, body, params)
        # Most searches that have to be parsed say which fields they want: no index is looked up for them.
        if (await hide(_ANY_FIELD))[0] is body:
            return body, params
        fields = await self.fields(context)
        return await hide(fields) if fields else (body, params)

    def _may_hide(self, meta: VectorFieldMeta) -> bool:
        return self._policy is HideVectors.ALWAYS or meta.text is not None


def must_parse(plain: bytes, query: bytes) -> bool:
    """Whether a search must be parsed to know what its hits return; otherwise they return their whole source.

    Args:
        plain: The body.
        query: The query string of the request.
    """
    return _MARKS.search(plain) is not None or _MARKS.search(query) is not None


def hide_by_parameter(target: bytes, fields: Sequence[str]) -> bytes | None:
    """Add `_source_excludes` to the target of a search that need not be parsed; None if it would be too long."""
    parameter = urlencode({"_source_excludes": ",".join(fields)}, quote_via=quote).encode()
    path, _, query = target.partition(b"?")
    longer = path + b"?" + (query + b"&" + parameter if query else parameter)
    return longer if len(longer) <= _MAX_TARGET_LENGTH else None


def hide_in_bodies(bodies: Sequence[bytes], fields: Sequence[str], max_parsed_bytes: int) -> list[bytes]:
    """Leave fields out of the hits of searches; the identical object where nothing changes.

    Args:
        bodies: Without white space around them.
        max_parsed_bytes: A larger body that must be parsed is left unchanged.
    """
    return [_hide_in_body(body, fields, max_parsed_bytes) for body in bodies]


def _hide_in_body(body: bytes, fields: Sequence[str], max_parsed_bytes: int) -> bytes:
    if not must_parse(body, b""):
        # The engine rejects what is not an object.
        is_object = body.startswith(b"{") and body.endswith(b"}")
        return append_members(body, {"_source": {"excludes": list(fields)}}) if is_object else body
    if len(body) > max_parsed_bytes:
        return body
    try:
        search = parse_object(body)
    except UnreadableJson:  # the engine refuses it, or its hits keep their vectors
        return body
    hidden, _ = hide_in_search(search, [], fields)
    return body if hidden is search else write_object(hidden)


def hide_in_search(body: Json, params: Parameters, fields: Sequence[str]) -> tuple[Json, Parameters]:
    """Leave fields out of the hits of a search; the identical body and parameters if nothing changes.

    The caller's own filter wins if it names what to return, or one of the fields. Otherwise the fields are added to
    what it excludes.
    """
    try:
        return _hide_in_parsed(body, params, fields)
    except RecursionError:
        return body, params  # the engine rejects such deep queries


def _hide_in_parsed(body: Json, params: Parameters, fields: Sequence[str]) -> tuple[Json, Parameters]:
    if "pit" in body:
        return body, params
    options = dict(params)
    exclude = _with_excludes(fields)
    aggregations = _hide_in_aggregations(exclude)
    joins = _hide_in_inner_hits(exclude)
    hidden = map_members(
        body,
        {
            "aggs": aggregations,
            "aggregations": aggregations,
            "query": joins,
            "post_filter": joins,
            "retriever": joins,
            "collapse": lambda collapse: joins({"collapse": collapse})["collapse"],
        },
    )
    if "_source" in options or "_source_includes" in options or options.get("_source_exclude_vectors") == "false":
        return hidden, params
    if str(options.get("size", hidden.get("size"))) == "0":
        return hidden, params
    if "_source_excludes" not in options:
        without_source = "stored_fields" in options and "_source" not in hidden
        return hidden if without_source else exclude(hidden), params
    # The parameter replaces the filter in the body.
    source = {"excludes": options["_source_excludes"].split(",")}
    filtered = exclude(hidden | {"_source": source})
    if filtered["_source"] is source:
        return hidden, params
    return filtered, [(name, value) for name, value in params if name != "_source_excludes"]


def _with_excludes(fields: Sequence[str]) -> Callable[[Json], Json]:
    """Return a function that leaves the fields out of the source of hits, given the object that describes them."""

    def exclude(hits: Json) -> Json:
        if "_source" not in hits:
            # Hits with stored or script fields have no source unless it is asked for.
            stored = hits.get("stored_fields", "_source")
            if "script_fields" in hits or "_source" not in (stored if isinstance(stored, list) else [stored]):
                return hits
        source = hits.get("_source", {})
        if isinstance(source, list) and not source:
            source = {}
        if not isinstance(source, dict) or source.get("exclude_vectors") is False:
            return hits
        if source.get("includes") or source.get("include"):
            return hits
        member = "exclude" if "exclude" in source else "excludes"
        excluded = source.get(member) or []
        excluded = [excluded] if isinstance(excluded, str) else excluded
        if not isinstance(excluded, list) or any(_names_one(pattern, fields) for pattern in excluded):
            return hits
        return hits | {"_source": source | {member: [*excluded, *fields]}}

    return exclude


def _names_one(pattern: object, fields: Sequence[str]) -> bool:
    """Whether a pattern of a source filter is one of the fields, or a part of one."""
    return isinstance(pattern, str) and any(pattern == name or pattern.startswith(f"{name}.") for name in fields)


def _hide_in_aggregations(exclude: Callable[[Json], Json]) -> Callable[[Any], Any]:
    """Return a function that applies `exclude` to each `top_hits`."""

    def top_hits(value: Any) -> Any:
        return exclude(value) if isinstance(value, dict) else value

    def aggregation(value: Any) -> Any:
        return map_members(value, {"top_hits": top_hits, "aggs": aggregations, "aggregations": aggregations})

    def aggregations(value: Any) -> Any:
        return map_members(value, dict.fromkeys(value, aggregation)) if isinstance(value, dict) else value

    return aggregations


# Parts of a search whose `inner_hits` are whole documents; those of `nested` are parts of one.
_WITH_INNER_DOCUMENTS = frozenset({"collapse", "has_child", "has_parent"})


def _hide_in_inner_hits(exclude: Callable[[Json], Json]) -> Callable[[Any], Any]:
    """Return a function that applies `exclude` to the `inner_hits` that are whole documents."""

    def part(value: Any) -> Any:
        if isinstance(value, list):
            new = [part(inner) for inner in value]
            return new if any(after is not before for after, before in zip(new, value, strict=True)) else value
        if not isinstance(value, dict):
            return value
        return map_members(value, {name: with_documents if name in _WITH_INNER_DOCUMENTS else part for name in value})

    def with_documents(value: Any) -> Any:
        return map_members(part(value), {"inner_hits": lambda hits: map_clauses(hits, exclude)})

    return part
