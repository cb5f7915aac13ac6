"""Resolve an index expression to concrete indices and their vector fields, limited to what the caller may see."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, urlencode

from cachetools import TTLCache

from es_sbert.engines.protocol import EngineType, Json
from es_sbert.errors import AccessDenied
from es_sbert.gateway.callers import CallerCacheKeys, CallerPermissions, credential_headers
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.proxy.incoming_request import Headers
from es_sbert.gateway.proxy.upstream import CLIENT_ERROR_STATUSES, Upstream
from es_sbert.index.mapping import VectorFieldMeta, vector_fields

# How the engine reads an expression of indices; what a request says of it holds for the question too.
EXPRESSION_OPTIONS = ("allow_no_indices", "expand_wildcards", "ignore_unavailable")
_FILTER_PATH = (
    "*.mappings._meta.es_sbert", "*.settings.index.number_of_shards", "*.aliases.*.filter",
    # Ordinary fields of the virtual field's name: with a type, with fields inside, with a dot in the name, at run time.
    "*.mappings.properties.{0}*.type", "*.mappings.properties.{0}.properties", "*.mappings.runtime.{0}*.type",
)  # fmt: skip
# `cluster:index`; not `<date{math:with colons}>`, nor the selector `index::failures`.
_REMOTE_NAME = re.compile(r"-?[^<:]+:(?!:)")
_CACHE_SIZE = 1000
# Characters of an expression: the rest of a line is for what is asked.
_MAX_EXPRESSION_LENGTH = 3000


@dataclass(frozen=True)
class ResolvedIndices:
    """What an expression of indices stands for.

    Attributes:
        fields: Concrete index → its vector fields by name; indices without any are left out.
        shards: Concrete index → its primary shards.
        exists: Whether there is any such index, with vectors or without.
        ordinary: Whether the virtual field's name may mean an ordinary field in one of them.
        remote: Whether all of them are of other clusters, which are not looked into.
        filters: Concrete index → what its alias narrows it down to, where the engine's kNN does not mind by itself.
    """

    fields: dict[str, dict[str, VectorFieldMeta]]
    shards: dict[str, int]
    exists: bool = True
    ordinary: bool = True
    remote: bool = False
    filters: dict[str, Json] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.fields)


NO_MAPPINGS = ResolvedIndices({}, {})
MISSING_INDICES = ResolvedIndices({}, {}, exists=False)
REMOTE_INDICES = ResolvedIndices({}, {}, ordinary=False, remote=True)


class IndexLookup:
    """Looks indices up, and remembers for a moment.

    Mappings are read with the gateway's own credentials where it has any, else with the caller's. Of what they say, a
    caller only ever gets to know indices that the engine lets it search or write (`rights.py`).

    Args:
        upstream: The engine.
        virtual_field: Name that may mean an ordinary field where there are no vectors.
        remember_seconds: How old an answer may be where a caller does not ask for a new one.
    """

    def __init__(self, upstream: Upstream, virtual_field: str, remember_seconds: float = 10.0) -> None:
        self._upstream = upstream
        self._virtual = virtual_field
        self._told = ",".join(_FILTER_PATH).format(virtual_field)
        self._rights = CallerPermissions(upstream, remember_seconds)
        self._keys = CallerCacheKeys()
        self._known: TTLCache[bytes, ResolvedIndices] = TTLCache(_CACHE_SIZE, remember_seconds)
        self._pending_lookups: dict[bytes, asyncio.Task[ResolvedIndices]] = {}

    async def known(
        self, expression: str, options: Mapping[str, str], headers: Headers, *, listed: bool = False
    ) -> ResolvedIndices:
        """What an expression stands for, or stood for a moment ago. As `now`."""
        found = self._known.get(self._cache_key(expression, options, headers, listed=listed))
        return await self.now(expression, options, headers, listed=listed) if found is None else found

    async def now(
        self, expression: str, options: Mapping[str, str], headers: Headers, *, listed: bool = False
    ) -> ResolvedIndices:
        """What an expression stands for, of that what the caller may search.

        Callers who ask the same at the same time share one question.

        Args:
            expression: Percent-encoded, as in a path; empty for all indices.
            options: Parameters of the request that decide how the expression is read.
            headers: The caller's.
            listed: Whether the engine itself has told the caller these concrete names.

        Raises:
            BadRequest: more indices than can be asked about.
            AccessDenied: neither the caller nor the gateway may see mappings.
            IndexMismatch: a damaged `_meta.es_sbert`.
            EngineUnreachable, RequestFailed: the engine cannot be asked.
        """
        key = self._cache_key(expression, options, headers, listed=listed)
        asking = self._pending_lookups.get(key)
        if asking is None:
            asking = asyncio.create_task(self._search_scope(key, expression, options, headers, listed=listed))
            self._pending_lookups[key] = asking
            asking.add_done_callback(lambda _: self._pending_lookups.pop(key, None))
        # One caller who goes away must not end the question of the others.
        return await asyncio.shield(asking)

    async def for_write(self, name: str, headers: Headers) -> ResolvedIndices | None:
        """What a name stands for that documents are written to; None where the engine would not take them.

        Args:
            name: Index, alias or data stream, not percent-encoded.
            headers: The caller's.

        Raises:
            EsSbertError: as `now`.
        """
        told = await self._mappings([quote(name, safe="")], {}, self.lookup_credentials(headers), name)
        # Privileges are not asked for by a name with a date in it, but by what it stands for today.
        today = [] if isinstance(told, ResolvedIndices) or not name.startswith("<") else list(told)
        if not await self._rights.may_write(today[0] if len(today) == 1 else name, headers):
            return None
        if isinstance(told, ResolvedIndices):
            return told
        with self._upstream.reading("GET /INDEX"):
            return resolve_mappings(told, self._virtual)

    def lookup_credentials(self, headers: Headers) -> Headers:
        """With whose rights indices are looked up: the gateway's own where it has any, else the caller's."""
        own = self._upstream.own_authorization
        return credential_headers(headers) if own is None else [(b"authorization", own.encode())]

    def forget(self) -> None:
        """Ask anew from now on: something about indices is being changed."""
        self._known.clear()
        self._rights.forget()

    async def _search_scope(
        self, key: bytes, expression: str, options: Mapping[str, str], headers: Headers, *, listed: bool
    ) -> ResolvedIndices:
        wanted = {name: options[name] for name in EXPRESSION_OPTIONS if name in options}
        here = local_indices(expression)
        if here is None:
            return REMOTE_INDICES
        parts = split_expression(here or "_all")
        asked_by = self.lookup_credentials(headers)
        # Asked first: a caller without any right costs the engine one question.
        limited = not listed and self._rights.may_restrict(headers)
        allowed = await self._rights.searchable_indices(parts, wanted, headers) if limited else None
        if limited and allowed is None:
            return MISSING_INDICES
        told = await self._mappings(parts, wanted, asked_by, expression)
        if isinstance(told, ResolvedIndices):
            return told
        if allowed is not None:
            if allowed.known is not None and told.keys() - allowed.known:
                # An index has been made since.
                allowed = await self._rights.searchable_indices(parts, wanted, headers, fresh=True)
                if allowed is None:
                    return MISSING_INDICES
            allowed.known = frozenset(told)
            told = {index: state for index, state in told.items() if index in allowed.indices}
        if not told:
            return MISSING_INDICES
        filters: dict[str, Json] = {}
        # Elasticsearch's kNN applies an alias's filter while it searches, OpenSearch's afterwards.
        opensearch = self._upstream.engine_type_or_default is EngineType.OPENSEARCH
        with self._upstream.reading("GET /INDEX"):
            searched = resolve_mappings(told, self._virtual)
            with_aliases = any("aliases" in state for state in told.values())
        if opensearch and with_aliases:
            for part in parts:
                filters |= await self._filters(f"/{part}", wanted, asked_by)
        if filters and len(parts) > 1:
            raise _expression_too_long(expression, "aliases with filters are among them")
        searched = replace(searched, filters=filters)
        self._known[key] = searched
        return searched

    async def _mappings(
        self, parts: Sequence[str], options: Mapping[str, str], asked_by: Headers, called: str
    ) -> Json | ResolvedIndices:
        """Concrete index → what is needed of its mapping, settings and aliases; or what holds where there is no answer.

        Args:
            parts: Of an expression, each short enough for the path of a request.
            called: The expression as the caller wrote it.
        """
        query = urlencode({**options, "filter_path": self._told})
        told: Json = {}
        for part in parts:
            answer = await self._upstream.ask("GET", f"/{part}?{query}", asked_by)
            if answer.status == 404:
                return MISSING_INDICES
            if answer.status in CLIENT_ERROR_STATUSES - {403}:
                # No such user, or nothing that has a mapping: the engine itself says so to the caller.
                return NO_MAPPINGS
            if answer.status == 403:
                raise AccessDenied(
                    f"the mapping of {called or 'the indices'}, which says what is embedded there, may not be read",
                    "Give the caller the index privilege view_index_metadata, or the gateway credentials of its own.",
                )
            told |= self._upstream.needed(answer, "GET /INDEX")
        return told

    async def _filters(self, path: str, wanted: dict[str, str], asked_by: Headers) -> dict[str, Json]:
        """Concrete index → filter of the aliases by which the expression names it."""
        target = f"{path}/_search_shards"
        answer = await self._upstream.ask("GET", f"{target}?{urlencode(wanted | {'filter_path': 'indices'})}", asked_by)
        if answer.status == 403:
            raise AccessDenied(
                f"the filters of the aliases of {path.removeprefix('/')} may not be read",
                "Allow the caller indices:admin/shards/search_shards, or give the gateway credentials of its own.",
            )
        told = self._upstream.needed(answer, "GET /INDEX/_search_shards")
        with self._upstream.reading("GET /INDEX/_search_shards"):
            return {index: said["filter"] for index, said in told.get("indices", {}).items() if "filter" in said}

    def _cache_key(self, expression: str, options: Mapping[str, str], headers: Headers, *, listed: bool) -> bytes:
        said = (f"{name}={options.get(name)}" for name in EXPRESSION_OPTIONS)
        return self._keys.key(headers, expression, str(listed), *said)


def local_indices(expression: str) -> str | None:
    """The part of an expression that names indices of this cluster; None where there is none.

    Args:
        expression: Percent-encoded; empty for all indices.
    """
    names = expression.split(",")
    here = [name for name in names if not _REMOTE_NAME.match(unquote(name))]
    return ",".join(here) if here else None


def split_expression(expression: str) -> list[str]:
    """An expression of indices in parts that fit into the first line of a request.

    A search by a point in time or in an `_msearch` may name more indices than the path of a request holds, which
    engines limit to 4096 bytes.

    Args:
        expression: Percent-encoded.

    Raises:
        BadRequest: it takes indices away again, which is only understood as a whole.
    """
    if len(expression) <= _MAX_EXPRESSION_LENGTH:
        return [expression]
    names = expression.split(",")
    if any(unquote(name).startswith("-") for name in names):
        raise _expression_too_long(expression, "some of them are taken away again")
    parts = [""]
    for name in names:
        if parts[-1] and len(parts[-1]) + len(name) >= _MAX_EXPRESSION_LENGTH:
            parts.append("")
        parts[-1] += f",{name}" if parts[-1] else name
    return parts


def _expression_too_long(expression: str, why: str) -> BadRequest:
    """Where only the whole expression tells which documents are meant."""
    return BadRequest(
        f"the names of the indices have {len(expression):,} characters, and {why}",
        "Name them by one pattern or alias.",
    )


def resolve_mappings(answer: Json, virtual_field: str) -> ResolvedIndices:
    """The engine's answer to `GET /EXPRESSION`.

    Args:
        virtual_field: A field of that name, of any type, is an ordinary one.

    Raises:
        IndexMismatch: a damaged `_meta.es_sbert`.
    """
    found = {index: vector_fields(state.get("mappings", {}), index) for index, state in answer.items()}
    fields = {index: fields for index, fields in found.items() if fields}
    shards = {
        index: int(answer[index].get("settings", {}).get("index", {}).get("number_of_shards", 1)) for index in fields
    }
    ordinary = any(
        name == virtual_field or name.startswith(f"{virtual_field}.")
        for state in answer.values()
        for of_kind in ("properties", "runtime")
        for name in state.get("mappings", {}).get(of_kind, {})
    )
    return ResolvedIndices(fields, shards, ordinary=ordinary or not answer)
