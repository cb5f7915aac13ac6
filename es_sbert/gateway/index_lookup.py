"""Resolve an index expression to concrete indices and their vector fields, limited to what the caller may see.

Mappings may be read with the gateway's own credentials. Requests with the caller's credentials decide what the caller
may see of them, so a response never reveals anything that the engine would not return to that caller.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, urlencode

from cachetools import TLRUCache, TTLCache

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.error_mapping import failed_index, response_error
from es_sbert.engines.index_state import IndexState, find_write_index, read_aliases
from es_sbert.engines.rest import Json, is_remote_name
from es_sbert.errors import AccessDenied, IndexMismatch
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.incoming_request import Headers, caller_cache_key, credential_headers
from es_sbert.gateway.upstream import CLIENT_ERROR_STATUSES, Upstream
from es_sbert.index.derived_fields import DerivedField, derived_fields
from es_sbert.index.mapping import VECTOR_TYPES, VectorFieldMeta, vector_fields
from es_sbert.index.source_mode import name_form
from es_sbert.index.vector_field import mapped_field_meta

_CACHE_SIZE = 1000
_CACHE_SECONDS = 10.0
# Seconds after which a vector field that is added to an index is seen by searches and writes.
NEW_FIELD_SECONDS = 1.0
# Either of these allows writing whole documents.
_WRITE_PRIVILEGES = ("create_doc", "index")
_MATCH_NONE: Json = {"size": 0, "query": {"match_none": {}}, "track_total_hits": False}


@dataclass
class SearchableIndices:
    """The indices that a caller may search, among those of an expression.

    Attributes:
        indices: Concrete names.
        known: All concrete indices of the expression at that time; None until they are looked up. Any other index is
            newer than this result.
    """

    indices: frozenset[str]
    known: frozenset[str] | None = None


_FIELD_CAPS = "GET /_field_caps"
_HAS_PRIVILEGES = "_security/user/_has_privileges"


class CallerPermissions:
    """Checks permissions of callers by requests to the engine, with a cache of a few seconds.

    The engine still checks every request itself; a stale result can only name indices that were visible to this caller
    before.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._searchable: TTLCache[bytes, SearchableIndices] = TTLCache(_CACHE_SIZE, _CACHE_SECONDS)
        self._writable: TTLCache[bytes, bool] = TTLCache(_CACHE_SIZE, _CACHE_SECONDS)

    async def searchable_indices(
        self, parts: Sequence[str], options: Mapping[str, str], headers: Headers, *, fresh: bool = False
    ) -> SearchableIndices | None:
        """Look up the indices that the caller may search; None if the engine rejects the caller or has no such index.

        Args:
            parts: An index expression, percent-encoded, in parts that fit into the path of a request.
            options: Parameters that change how the expression is resolved.
            headers: The caller's headers.
            fresh: Do not use a cached result.

        Raises:
            AccessDenied: the caller may search the indices, but not list them.
            EngineUnreachable, RequestFailed: the request failed.
        """
        key = caller_cache_key(headers, *parts, urlencode(sorted(options.items())))
        cached = None if fresh else self._searchable.get(key)
        if cached is not None:
            return cached
        query = urlencode({**options, "fields": "_id", "filter_path": "indices,failures.failure.error"})
        indices: set[str] = set()
        for part in parts:
            target = f"/{part}/_field_caps?{query}"
            reply = await self._upstream.request("GET", target, credential_headers(headers))
            if reply.status == 403:
                target = f"/{part}/_search?{urlencode(options)}"
                if (await self._upstream.search(target, credential_headers(headers), _MATCH_NONE)).status == 200:
                    raise AccessDenied(
                        "the caller may not list the indices of this search",
                        "Grant the caller the index privilege read, which allows searching and listing.",
                    )
            if reply.status in CLIENT_ERROR_STATUSES:
                return None
            answer = self._upstream.require_answer(reply, _FIELD_CAPS)
            with self._upstream.parsing(_FIELD_CAPS):
                if answer.get("failures"):
                    # The engine leaves out indices whose shards do not respond. They must not look missing.
                    raise response_error(503, answer["failures"][0]["failure"], label="the engine", action=_FIELD_CAPS)
                indices.update(answer.get("indices", ()))  # the member is missing if there is no index
        self._searchable[key] = SearchableIndices(frozenset(indices))
        return self._searchable[key]

    async def may_write(self, name: str, headers: Headers) -> bool:
        """Whether the caller may write documents, so that the gateway may embed them.

        OpenSearch does not reveal privileges to users: there, every authenticated caller counts.

        Args:
            name: Index, alias or data stream.
            headers: The caller's headers.

        Raises:
            EngineUnreachable: the request failed.
        """
        if not self._upstream.own_credentials:
            return True  # mappings are read with the caller's credentials
        key, credentials = caller_cache_key(headers, name), credential_headers(headers)
        if key in self._writable:
            return self._writable[key]
        if self._upstream.engine_type_or_default is EngineType.OPENSEARCH:
            reply = await self._upstream.request("GET", "/_plugins/_security/authinfo", credentials)
            may_write = reply.status not in (401, 403)
        else:
            body: Json = {"index": [{"names": [name], "privileges": list(_WRITE_PRIVILEGES)}]}
            reply = await self._upstream.request("POST", f"/{_HAS_PRIVILEGES}", credentials, body)
            may_write = reply.status not in (200, 401, 403)  # any other: security is disabled
            if reply.status == 200:
                answer = self._upstream.require_answer(reply, f"POST /{_HAS_PRIVILEGES}")
                with self._upstream.parsing(f"POST /{_HAS_PRIVILEGES}"):
                    may_write = any(answer.get("index", {}).get(name, {}).values())
        self._writable[key] = may_write
        return may_write

    def invalidate(self) -> None:
        """Drop cached results, because indices are about to change."""
        self._searchable.clear()
        self._writable.clear()


# Request parameters that change how the engine resolves an index expression; lookups use the request's values.
EXPRESSION_OPTIONS = ("allow_no_indices", "expand_wildcards", "ignore_unavailable")
_FILTER_PATH = (
    "*.mappings._meta.es_sbert", "*.mappings._source", "*.settings.index.number_of_shards",
    # How the name is resolved.
    "*.aliases.*.filter", "*.aliases.*.index_routing", "*.aliases.*.is_write_index", "*.data_stream",
    # The form of names in `_source`.
    "*.mappings.subobjects", "*.settings.index.mode", "*.settings.index.mapping.source.mode",
    # Ordinary fields of the virtual field's name: with a type, with subfields, with a dot in the name, runtime fields.
    "*.mappings.properties.{0}*.type", "*.mappings.properties.{0}.properties", "*.mappings.runtime.{0}*.type",
    # Aliases and targets of copy_to, by which queries name the texts and vectors of other fields.
    "*.mappings.properties.**.path", "*.mappings.properties.**.copy_to",
    # How vectors are indexed and compared.
    "*.mappings.properties.*.dim*", "*.mappings.properties.*.index*", "*.mappings.properties.*.*_type",
    "*.mappings.properties.*.similarity", "*.mappings.properties.*.method", "*.mappings.properties.*.mode",
    "*.mappings.properties.*.compression_level", "*.mappings.properties.*.properties.vector",
    "*.settings.index.knn", "*.settings.index.version.created",
)  # fmt: skip
# Maximum characters of an expression in a request line; the rest of the line is for the parameters.
MAX_EXPRESSION_LENGTH = 3000


@dataclass(frozen=True)
class IndexExpression:
    """The indices of a search, as the caller wrote them.

    Attributes:
        expression: Percent-encoded, as in a path; empty for all indices.
        options: Parameters of the request; `EXPRESSION_OPTIONS` of these are used.
        headers: The caller's headers.
        listed: Whether these are concrete names that the engine itself returned to the caller.
    """

    expression: str
    options: Mapping[str, str]
    headers: Headers
    listed: bool = field(default=False, kw_only=True)

    @property
    def lookup_options(self) -> dict[str, str]:
        """The options that change how the expression is resolved."""
        return {name: self.options[name] for name in EXPRESSION_OPTIONS if name in self.options}


@dataclass(frozen=True)
class ResolvedIndices:
    """The indices of an expression.

    Attributes:
        fields: Concrete index → its vector fields by name; only indices that have any.
        shards: Concrete index → number of primary shards.
        exists: Whether any index matches, with vector fields or without.
        ordinary: Whether the virtual field's name may be an ordinary field in one of them.
        remote: Names and patterns of remote indices (`cluster:index`); empty without any. No engine returns mappings
            across clusters, so their vector fields are unknown.
        filters: Concrete index → filter of the alias, where the engine does not apply it to a kNN search.
        derived: Concrete index → its aliases of fields and targets of `copy_to`, by name.
        is_mixed: Whether the vector fields of the local indices differ.
        missing: If none exists, the index that the engine names in its error, with date math resolved.
    """

    fields: dict[str, dict[str, VectorFieldMeta]]
    shards: dict[str, int]
    exists: bool = True
    ordinary: bool = True
    remote: str = ""
    filters: dict[str, Json] = field(default_factory=dict)
    derived: dict[str, dict[str, DerivedField]] = field(default_factory=dict)
    is_mixed: bool = field(default=False, compare=False)
    missing: str = field(default="", compare=False)

    def __bool__(self) -> bool:
        return bool(self.fields)


NO_MAPPINGS = ResolvedIndices({}, {})
MISSING_INDICES = ResolvedIndices({}, {}, exists=False)


@dataclass(frozen=True)
class WrittenIndices:
    """The indices of a name that documents are written to.

    Attributes:
        indices: All of them, with their vector fields.
        index: The one that receives the documents; None if none of them has vector fields, or if no write index was
            found.
        is_only: Whether the name resolves to this index alone.
    """

    indices: ResolvedIndices
    index: IndexState | None
    is_only: bool = False


class IndexLookup:
    """Resolves index expressions, with a cache of a few seconds.

    Mappings are read with the gateway's own credentials if it has any, else with the caller's. A caller only learns of
    indices that the engine lets that caller search or write.

    Args:
        upstream: The engine.
        virtual_field: Name that may be an ordinary field in an index without vectors.
    """

    def __init__(self, upstream: Upstream, virtual_field: str) -> None:
        self._upstream = upstream
        self._virtual = virtual_field
        # Encode the filter path only once: escaping it takes as long as the rest of a request.
        self._filter_path = urlencode({"filter_path": ",".join(_FILTER_PATH).format(virtual_field)}, safe="*,")
        self._permissions = CallerPermissions(upstream)
        self._cache: TLRUCache[bytes, ResolvedIndices] = TLRUCache(
            _CACHE_SIZE, ttu=lambda _, indices, now: now + (_CACHE_SECONDS if indices else NEW_FIELD_SECONDS)
        )
        self._pending: dict[bytes, asyncio.Task[ResolvedIndices]] = {}
        self._elsewhere: TTLCache[bytes, frozenset[str]] = TTLCache(_CACHE_SIZE, _CACHE_SECONDS)

    async def get(self, names: IndexExpression, *, fresh: bool = False) -> ResolvedIndices:
        """Resolve an expression to the indices that the caller may search. Concurrent equal lookups share one request.

        Args:
            fresh: Do not use a cached result.

        Raises:
            BadRequest: the expression is too long.
            AccessDenied: neither the caller nor the gateway may read mappings.
            IndexMismatch: `_meta.es_sbert` of a mapping is invalid.
            EngineTooOld: there are vector fields, and the engine's version is not supported.
            EngineUnreachable, RequestFailed: the lookup failed.
        """
        key = caller_cache_key(names.headers, names.expression, str(names.listed), urlencode(names.lookup_options))
        cached = None if fresh else self._cache.get(key)
        if cached is not None:
            return cached
        if key not in self._pending:
            self._pending[key] = asyncio.create_task(self._resolve(key, names))
            self._pending[key].add_done_callback(lambda _: self._pending.pop(key, None))
        # Shield the lookup: other callers may wait for it when one disconnects.
        return await asyncio.shield(self._pending[key])

    async def mapped_elsewhere(self, names: IndexExpression, owners: Mapping[str, Collection[str]]) -> frozenset[str]:
        """Find the fields that other local indices of an expression map as ordinary fields.

        Args:
            owners: Field → the indices that are excluded from the search for it.

        Raises:
            EngineUnreachable, RequestFailed: the lookup failed.
        """
        options = names.lookup_options
        owner_key = json.dumps({name: sorted(indices) for name, indices in sorted(owners.items())})
        key = caller_cache_key(names.headers, names.expression, urlencode(options), owner_key)
        if key not in self._elsewhere:
            fields = quote(",".join(f"{name},{name}.*" for name in owners), safe=",*")
            query = urlencode({**options, "filter_path": "*.mappings.*.full_name"})
            found: set[str] = set()
            for part in split_expression(names.expression or "_all"):
                target = f"/{part}/_mapping/field/{fields}?{query}"
                reply = await self._upstream.request("GET", target, self.lookup_credentials(names.headers))
                answer = self._upstream.require_answer(reply, "GET /INDEX/_mapping/field")
                with self._upstream.parsing("GET /INDEX/_mapping/field"):
                    for index, state in answer.items():
                        paths = [f"{path}." for path in state["mappings"]]
                        mapped = [name for name in owners if any(path.startswith(f"{name}.") for path in paths)]
                        found.update(name for name in mapped if index not in owners[name])
            self._elsewhere[key] = frozenset(found)
        return self._elsewhere[key]

    async def get_for_write(self, name: str, headers: Headers) -> WrittenIndices | None:
        """Resolve a name that documents are written to; None if the caller may not write there.

        Args:
            name: Index, alias or data stream, not percent-encoded.
            headers: The caller's headers.

        Raises:
            EsSbertError: see `get`.
        """
        mappings = await self._mappings([quote(name, safe="")], {}, self.lookup_credentials(headers), name)
        if name.startswith("<"):
            name = await self._resolve_date_math(name, mappings, headers)
        if not await self._permissions.may_write(name, headers):
            return None
        if isinstance(mappings, ResolvedIndices):
            return WrittenIndices(mappings, None)
        with self._upstream.parsing("GET /INDEX"):
            resolved = resolve_mappings(mappings, self._virtual, self._upstream.engine_type_or_default)
            streams = sorted({state["data_stream"] for state in mappings.values() if "data_stream" in state})
        if not resolved.fields:
            return WrittenIndices(resolved, None)
        await self._upstream.check_version(self.lookup_credentials(headers))
        stream_aliases: Json = {}
        if streams and name not in (*streams, *mappings):
            path = f"/{quote(','.join(streams), safe=',')}/_alias"
            reply = await self._upstream.request("GET", path, self.lookup_credentials(headers))
            stream_aliases = self._upstream.require_answer(reply, "GET /STREAM/_alias")
        with self._upstream.parsing("GET /INDEX"):
            states = [
                IndexState(index, {}, {}, read_aliases(state, stream_aliases), state.get("data_stream"))
                for index, state in mappings.items()
            ]
            return WrittenIndices(resolved, find_write_index(name, states), is_only=len(states) == 1)

    async def _resolve_date_math(self, name: str, mappings: Json | ResolvedIndices, headers: Headers) -> str:
        """Resolve date math to today's index, alias or data stream, which alone has privileges and a write index."""
        if isinstance(mappings, ResolvedIndices):
            return mappings.missing or name
        path = f"/_resolve/index/{quote(name, safe='')}"
        reply = await self._upstream.request("GET", path, self.lookup_credentials(headers))
        answer = self._upstream.require_answer(reply, "GET /_resolve/index")
        with self._upstream.parsing("GET /_resolve/index"):
            kinds = ("indices", "aliases", "data_streams")
            [resolved] = [str(found["name"]) for kind in kinds for found in answer[kind]]
            return resolved

    def lookup_credentials(self, headers: Headers) -> Headers:
        """Credentials that mappings are read with: the gateway's own if it has any, else the caller's."""
        return self._upstream.own_credentials or credential_headers(headers)

    def invalidate(self) -> None:
        """Drop cached results, because indices are about to change."""
        self._cache.clear()
        self._elsewhere.clear()
        self._permissions.invalidate()

    async def _resolve(self, key: bytes, names: IndexExpression) -> ResolvedIndices:
        local, remote = split_remote(names.expression)
        resolved = MISSING_INDICES if local is None else await self._resolve_local(local, names)
        if remote is not None:
            found = resolved if resolved.exists else ResolvedIndices({}, {}, ordinary=False)
            resolved = replace(found, remote=unquote(remote))
        if resolved.fields:
            await self._upstream.check_version(self.lookup_credentials(names.headers))
        if resolved not in (MISSING_INDICES, NO_MAPPINGS):
            self._cache[key] = resolved
        return resolved

    async def _resolve_local(self, local: str, names: IndexExpression) -> ResolvedIndices:
        parts, options = split_expression(local or "_all"), names.lookup_options
        credentials = self.lookup_credentials(names.headers)
        # Check permissions first, so that a caller without permissions costs the engine only one request. Without the
        # gateway's own credentials there is nothing to check: the mappings are read with the caller's permissions.
        restricted = not names.listed and bool(credentials)
        allowed = await self._permissions.searchable_indices(parts, options, names.headers) if restricted else None
        if restricted and allowed is None:
            return MISSING_INDICES
        mappings = await self._mappings(parts, options, credentials, names.expression)
        if isinstance(mappings, ResolvedIndices):
            return mappings
        if allowed is not None:
            if allowed.known is not None and mappings.keys() - allowed.known:
                # An index was created in the meantime.
                allowed = await self._permissions.searchable_indices(parts, options, names.headers, fresh=True)
                if allowed is None:
                    return MISSING_INDICES
            allowed.known = frozenset(mappings)
            mappings = {index: state for index, state in mappings.items() if index in allowed.indices}
        if not mappings:
            return MISSING_INDICES
        with self._upstream.parsing("GET /INDEX"):
            resolved = resolve_mappings(mappings, self._virtual, self._upstream.engine_type_or_default)
            aliases = [alias for state in mappings.values() for alias in state.get("aliases", {}).values()]
            has_filters = any("filter" in alias for alias in aliases)
        # Elasticsearch applies an alias's filter during the kNN search, OpenSearch afterwards.
        if has_filters and self._upstream.engine_type_or_default is EngineType.OPENSEARCH:
            filters: dict[str, Json] = {}
            for part in parts:
                filters |= await self._alias_filters(f"/{part}", options, credentials)
            if filters and len(parts) > 1:
                raise _expression_too_long(names.expression, "it contains aliases with filters")
            resolved = replace(resolved, filters=filters)
        return resolved

    async def _mappings(
        self, parts: Sequence[str], options: Mapping[str, str], credentials: Headers, name: str
    ) -> Json | ResolvedIndices:
        """Read the relevant parts of the mapping, settings and aliases of each concrete index.

        If no mapping can be read, the result of the lookup is returned instead.

        Args:
            parts: An expression in parts that each fit into the path of a request.
            name: The expression, for messages.
        """
        query = f"{urlencode(options)}&{self._filter_path}" if options else self._filter_path
        mappings: Json = {}
        for part in parts:
            reply = await self._upstream.request("GET", f"/{part}?{query}", credentials)
            if reply.status == 404:
                return replace(MISSING_INDICES, missing=failed_index(reply.body))
            if reply.status in CLIENT_ERROR_STATUSES - {403}:
                # Unknown user, or nothing that has a mapping: the caller's own request gets the same error.
                return NO_MAPPINGS
            if reply.status == 403:
                is_opensearch = self._upstream.engine_type_or_default is EngineType.OPENSEARCH
                needed = "permission indices:admin/get" if is_opensearch else "privilege view_index_metadata"
                raise AccessDenied(
                    f"the mapping of {name or 'the indices'}, which describes the vector fields, may not be read",
                    f"Grant the caller the index {needed}, or set credentials for the gateway.",
                )
            mappings |= self._upstream.require_answer(reply, "GET /INDEX")
        return mappings

    async def _alias_filters(self, path: str, options: dict[str, str], credentials: Headers) -> dict[str, Json]:
        """Read, for each concrete index, the filter of the aliases through which the expression names it."""
        query = urlencode(options | {"filter_path": "indices"})
        reply = await self._upstream.request("GET", f"{path}/_search_shards?{query}", credentials)
        if reply.status == 403:
            raise AccessDenied(
                f"the filters of the aliases of {path.removeprefix('/')} may not be read",
                "Grant the caller indices:admin/shards/search_shards, or set credentials for the gateway.",
            )
        answer = self._upstream.require_answer(reply, "GET /INDEX/_search_shards")
        with self._upstream.parsing("GET /INDEX/_search_shards"):
            indices = answer.get("indices", {})
            return {index: state["filter"] for index, state in indices.items() if "filter" in state}


def split_remote(expression: str) -> tuple[str | None, str | None]:
    """Split an expression into its local and its remote indices; None for a part without any.

    Args:
        expression: Percent-encoded; empty for all local indices.
    """
    names = expression.split(",")
    remote = [name for name in names if is_remote_name(unquote(name))]
    local = [name for name in names if not is_remote_name(unquote(name))]
    if all(name.startswith("-") for name in remote):
        remote = []  # exclusions alone select nothing
    return ",".join(local) if local else None, ",".join(remote) if remote else None


def split_expression(expression: str) -> list[str]:
    """Split an index expression into parts that each fit into a request line, which engines limit to 4096 bytes.

    A search with a point in time, or in an `_msearch`, may name more indices than that.

    Args:
        expression: Percent-encoded.

    Raises:
        BadRequest: the expression is too long, and cannot be split because it excludes indices.
    """
    if len(expression) <= MAX_EXPRESSION_LENGTH:
        return [expression]
    names = expression.split(",")
    if any(unquote(name).startswith("-") for name in names):
        raise _expression_too_long(expression, "it excludes indices")
    parts = [""]
    for name in names:
        if parts[-1] and len(parts[-1]) + len(name) >= MAX_EXPRESSION_LENGTH:
            parts.append("")
        parts[-1] += f",{name}" if parts[-1] else name
    return parts


def _expression_too_long(expression: str, reason: str) -> BadRequest:
    return BadRequest(
        f"the index expression has {len(expression):,} characters and cannot be split, because {reason}",
        "Use a pattern or an alias that covers the indices.",
    )


def read_vector_fields(state: Json, index: str, engine_type: EngineType) -> dict[str, VectorFieldMeta]:
    """Read the vector fields from the mapping and the settings of an index or a template.

    Raises:
        IndexMismatch: `_meta.es_sbert` of the mapping is invalid.
    """
    mappings, settings = state.get("mappings", {}), state.get("settings", {}).get("index", {})
    properties = mappings.get("properties", {})
    fields = {name: meta for name, meta in vector_fields(mappings, index).items() if name in properties}
    flat = {
        "index.mode": settings.get("mode"),
        "index.mapping.source.mode": settings.get("mapping", {}).get("source", {}).get("mode"),
        "index.knn": str(settings.get("knn")).lower(),
        "index.version.created": settings.get("version", {}).get("created", "0"),
    }
    # The lookup does not read the types, which would be those of all fields.
    typed = {
        name: {"type": "nested" if "properties" in properties[name] else VECTOR_TYPES[engine_type]} | properties[name]
        for name in fields
    }
    found = IndexState(index, mappings | {"properties": typed}, flat)
    form = name_form(found)
    for name, meta in fields.items():
        try:
            fields[name] = mapped_field_meta(engine_type, found, name).model_copy(update={"name_form": form})
        except IndexMismatch as error:
            # Only semantic queries on the field are refused: documents are written, and found by other queries.
            problem = error.message, error.remedy
            fields[name] = meta.model_copy(update={"name_form": form, "problem": problem})
    return fields


def resolve_mappings(answer: Json, virtual_field: str, engine_type: EngineType) -> ResolvedIndices:
    """Read the vector fields from a response to `GET /EXPRESSION`.

    Args:
        virtual_field: A mapped field of that name, of any type, is an ordinary field.

    Raises:
        IndexMismatch: see `read_vector_fields`.
    """
    by_index = {index: read_vector_fields(state, index, engine_type) for index, state in answer.items()}
    fields = {index: fields for index, fields in by_index.items() if fields}
    shards = {
        index: int(answer[index].get("settings", {}).get("index", {}).get("number_of_shards", 1)) for index in fields
    }
    derived = {index: derived_fields(answer[index].get("mappings", {})) for index in fields}
    ordinary = any(
        name == virtual_field or name.startswith(f"{virtual_field}.")
        for state in answer.values()
        for section in ("properties", "runtime")
        for name in state.get("mappings", {}).get(section, {})
    )
    named = {index: names for index, names in derived.items() if names}
    is_mixed = len({frozenset(by_index[index]) for index in by_index}) > 1
    return ResolvedIndices(fields, shards, ordinary=ordinary or not answer, derived=named, is_mixed=is_mixed)
