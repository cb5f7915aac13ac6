"""Leave vectors and their metadata out of the hits of searches, unless the caller asks for them.

Only requests are changed: a search gets `_source.excludes`, and the engine leaves the fields out. Searches that copy
documents, with a scroll or a point in time, are left alone, and so are the APIs that read one document by its id:
what they return may be written back, or kept as a backup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from es_sbert.engines.rest import Json
from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.engine_routes import EngineApi
from es_sbert.gateway.incoming_request import UnreadableJson, parse_object, write_object
from es_sbert.gateway.index_lookup import IndexExpression, IndexLookup, split_remote
from es_sbert.gateway.search.compound_queries import objects_at, objects_in
from es_sbert.gateway.search.incoming_search import RewriteContext
from es_sbert.gateway.settings import HideVectors, SemanticSettings
from es_sbert.index.document_vectors import append_members
from es_sbert.index.mapping import document_meta_field

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


Parameters = list[tuple[str, str]]
# What describes hits, its source filter, and where that filter comes from.
_Hits = tuple[Json, Any, Json]


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
        self._enabled = self._policy is HideVectors.ALWAYS or (self._policy is HideVectors.AUTO and settings.writes)

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
            members: dict[str, set[str]] = {}  # the name of a field → the indices in which it is a vector field
            for name in {name for fields in indices.fields.values() for name in fields}:
                owners = {index: fields[name] for index, fields in indices.fields.items() if name in fields}
                if self._policy is HideVectors.ALWAYS or all(meta.text is not None for meta in owners.values()):
                    members |= {member: set(owners) for member in (name, document_meta_field(name))}
            if members and indices.is_mixed:
                elsewhere = await self._indices.mapped_elsewhere(names, members)
                members = {name: owner for name, owner in members.items() if name not in elsewhere}
        except EngineUnreachable:
            raise
        except EsSbertError:
            return ()  # the engine answers the unchanged search, or rejects it
        return tuple(sorted(members))

    async def hide(
        self, body: Json, params: Parameters, context: RewriteContext, api: EngineApi, raw: bytes | None
    ) -> Parameters | None:
        """Leave the vectors out of the hits of a parsed search, which is changed; see `hide_in_search`.

        Args:
            raw: The search as sent; None if it comes from a template.
        """
        if not self.applies(api, context.options):
            return None
        # Most searches that have to be parsed say which fields they want: no index is looked up for them.
        hits = await offload_if_large(context.size, _described_hits, body, params, raw)
        if not _changes(hits, ("",)):
            return None
        return hide_in_search(body, params, await self.fields(context), hits)


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
    return body if hide_in_search(search, [], fields) is None else write_object(search)


def hide_in_search(
    body: Json, params: Parameters, fields: Sequence[str], hits: Sequence[_Hits] | None = None
) -> Parameters | None:
    """Leave fields out of the hits of a search, which is changed.

    The caller's own filter wins if it names what to return, or one of the fields. Otherwise the fields are added to
    what it excludes.

    Returns:
        The parameters that are still needed: one that filters the source moves to the body, and replaces the filter
        there. None if nothing changes.
    """
    changes = _changes(_described_hits(body, params) if hits is None else hits, fields) if fields else []
    for described, source in changes:
        described["_source"] = source
    if not any(described is body for described, _ in changes):
        return params if changes else None
    return [(name, value) for name, value in params if name != "_source_excludes"]


def _changes(hits: Sequence[_Hits], fields: Sequence[str]) -> list[tuple[Json, Json]]:
    """Return the objects whose hits would have the fields, each with the source filter that leaves them out."""
    return [
        (described, new)
        for described, source, asked in hits
        if (new := _source_without(source, asked, fields)) is not None
    ]


def _described_hits(body: Json, params: Parameters, raw: bytes | None = None) -> list[_Hits]:
    """Return the parts of a search that describe hits, unless it copies documents; see `hide`."""
    if "pit" in body:
        return []
    options = dict(params)
    has_inner = raw is None or any(mark in raw for mark in _INNER_MARKS)
    found: list[_Hits] = [(hits, hits.get("_source", {}), hits) for hits in (_inner_hits(body) if has_inner else ())]
    names_fields = "_source" in options or "_source_includes" in options
    has_none = str(options.get("size", body.get("size"))) == "0" or options.get("_source_exclude_vectors") == "false"
    if not names_fields and not has_none:
        if "_source_excludes" in options:
            found.append((body, {"excludes": options["_source_excludes"].split(",")}, {"_source": True}))
        elif "stored_fields" not in options or "_source" in body:
            found.append((body, body.get("_source", {}), body))
    return found


def _source_without(source: Any, hits: Json, fields: Sequence[str]) -> Json | None:
    """Add fields to what a source filter excludes; None if it stays as it is.

    Args:
        hits: Describes the hits: those with stored or script fields have no source unless it is asked for.
    """
    if "_source" not in hits:
        stored = hits.get("stored_fields", "_source")
        if "script_fields" in hits or "_source" not in (stored if isinstance(stored, list) else [stored]):
            return None
    if source == []:
        source = {}
    if not isinstance(source, dict) or source.get("exclude_vectors") is False:
        return None
    if source.get("includes") or source.get("include"):
        return None
    member = "exclude" if "exclude" in source else "excludes"
    excluded = source.get(member) or []
    excluded = [excluded] if isinstance(excluded, str) else excluded
    if not isinstance(excluded, list) or any(_names_one(pattern, fields) for pattern in excluded):
        return None
    return source | {member: [*excluded, *fields]}


def _names_one(pattern: object, fields: Sequence[str]) -> bool:
    """Whether a pattern of a source filter is one of the fields, or a part of one."""
    return isinstance(pattern, str) and any(pattern == name or pattern.startswith(f"{name}.") for name in fields)


# Parts of a search whose `inner_hits` are whole documents; those of `nested` are parts of one.
_WITH_INNER_DOCUMENTS = ("collapse", "has_child", "has_parent")
# Parts of a body without which it describes no hits but its own. A wrapped query is encoded.
_INNER_MARKS = (b"inner_hits", b"top_hits", b'"wrapper"', b"\\u")


def _inner_hits(body: Json) -> Iterator[Json]:
    """Yield the objects that describe hits other than those of the search: of `top_hits`, `collapse` and joins."""
    pending: list[Any] = [body]
    while pending:  # not recursive: a body may be nested as deep as the parser allows
        parent = pending.pop()
        for name in ("aggs", "aggregations"):
            for aggregations, key in objects_in(parent.get(name)):
                pending.append(aggregations[key])
                if isinstance(top_hits := aggregations[key].get("top_hits"), dict):
                    yield top_hits
    pending = [{name: body.get(name) for name in ("query", "post_filter", "retriever", "collapse")}]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            for name in _WITH_INNER_DOCUMENTS:
                if name in value:
                    for holder, key in objects_at(value[name], "inner_hits"):
                        yield holder[key]
            pending += [inner for inner in value.values() if isinstance(inner, (dict, list))]
        elif value and not isinstance(value[0], (int, float)):  # not a vector
            pending += [inner for inner in value if isinstance(inner, (dict, list))]
