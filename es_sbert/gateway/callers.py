"""Callers: the credentials they send, cache keys that keep them apart, and what they may search and write.

The gateway may read mappings with its own credentials. What a caller may see of them is decided by requests sent with
the caller's credentials, so a response never reveals anything that the engine would not tell that caller.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from cachetools import TTLCache

from es_sbert.engines.protocol import EngineType, Json
from es_sbert.errors import AccessDenied
from es_sbert.gateway.proxy.incoming_request import Headers
from es_sbert.gateway.proxy.upstream import CLIENT_ERROR_STATUSES, Upstream

_CACHE_SIZE = 1000
# Any of these lets a caller write whole documents.
_WRITE_PRIVILEGES = ("create_doc", "index")
_MATCH_NONE: Json = {"size": 0, "query": {"match_none": {}}, "track_total_hits": False}


@dataclass
class SearchableIndices:
    """The indices of an expression that a caller may search.

    Attributes:
        indices: Their concrete names.
        known: Concrete indices that the expression stood for at that time, whoever may search them; None until that was
            looked up. An index that is not among them is newer than this answer.
    """

    indices: frozenset[str]
    known: frozenset[str] | None = field(default=None)


class CallerPermissions:
    """Asks the engine what callers may do, and remembers for a moment.

    Args:
        upstream: The engine.
        remember_seconds: How old an answer may be. What the engine allows is checked by the engine itself with every
            request; an old answer can only name indices wrongly that existed and were visible to this caller.
    """

    def __init__(self, upstream: Upstream, remember_seconds: float = 10.0) -> None:
        self._upstream = upstream
        self._keys = CallerCacheKeys()
        self._searchable: TTLCache[bytes, SearchableIndices] = TTLCache(_CACHE_SIZE, remember_seconds)
        self._writable: TTLCache[bytes, bool] = TTLCache(_CACHE_SIZE, remember_seconds)

    def may_restrict(self, headers: Headers) -> bool:
        """Whether the caller's rights may differ from those that mappings are read with.

        Without credentials on either side, both are the same.
        """
        return self._upstream.own_authorization is not None or bool(credential_headers(headers))

    async def searchable_indices(
        self, parts: Sequence[str], options: Mapping[str, str], headers: Headers, *, fresh: bool = False
    ) -> SearchableIndices | None:
        """The indices that the caller may search; None where the engine refuses the caller, or knows no such index.

        Args:
            parts: An expression of indices, percent-encoded, in parts that fit into the path of a request.
            options: Parameters that decide how the expression is read.
            headers: The caller's.
            fresh: Whether to ask even where an answer is remembered.

        Raises:
            AccessDenied: the caller may search, and may not list what it searches.
            EngineUnreachable, RequestFailed: the engine cannot be asked.
        """
        key = self._keys.key(headers, *parts, urlencode(sorted(options.items())))
        found = None if fresh else self._searchable.get(key)
        if found is not None:
            return found
        query = urlencode({**options, "fields": "_id", "filter_path": "indices"})
        indices: set[str] = set()
        for part in parts:
            target = f"/{part}/_field_caps?{query}"
            answer = await self._upstream.request("GET", target, credential_headers(headers))
            if answer.status == 403 and await self._may_search(part, options, headers):
                raise AccessDenied(
                    "the indices that this search concerns may not be listed by the caller",
                    "Give the caller the index privilege read, which allows searching and listing.",
                )
            if answer.status in CLIENT_ERROR_STATUSES:
                return None
            # Left out of an answer without any index.
            told = self._upstream.require_object(answer, "GET /_field_caps")
            with self._upstream.parsing("GET /_field_caps"):
                indices.update(told.get("indices", ()))
        found = SearchableIndices(frozenset(indices))
        self._searchable[key] = found
        return found

    async def may_write(self, name: str, headers: Headers) -> bool:
        """Whether the engine would take documents from the caller, so that vectors may be made for them.

        OpenSearch does not tell its users their privileges: there, whoever can sign in counts.

        Args:
            name: Index, alias or data stream.
            headers: The caller's.

        Raises:
            EngineUnreachable: the engine cannot be asked.
        """
        if self._upstream.own_authorization is None:
            return True  # mappings are read with the caller's own rights
        key = self._keys.key(headers, name)
        if key not in self._writable:
            elasticsearch = self._upstream.engine_type_or_default is EngineType.ELASTICSEARCH
            asked = self._elasticsearch_allows(name, headers) if elasticsearch else self._signed_in(headers)
            self._writable[key] = await asked
        return self._writable[key]

    def invalidate(self) -> None:
        """Ask anew from now on: something about indices is being changed."""
        self._searchable.clear()
        self._writable.clear()

    async def _may_search(self, part: str, options: Mapping[str, str], headers: Headers) -> bool:
        target = f"/{part}/_search?{urlencode(options)}"
        return (await self._upstream.request("POST", target, credential_headers(headers), _MATCH_NONE)).status == 200

    async def _elasticsearch_allows(self, name: str, headers: Headers) -> bool:
        question: Json = {"index": [{"names": [name], "privileges": list(_WRITE_PRIVILEGES)}]}
        answer = await self._upstream.request(
            "POST", "/_security/user/_has_privileges", credential_headers(headers), question
        )
        if answer.status in (401, 403):
            return False
        if answer.status != 200:
            return True  # the engine has no users
        told = self._upstream.require_object(answer, "POST /_security/user/_has_privileges")
        with self._upstream.parsing("POST /_security/user/_has_privileges"):
            return any(told.get("index", {}).get(name, {}).values())

    async def _signed_in(self, headers: Headers) -> bool:
        answer = await self._upstream.request("GET", "/_plugins/_security/authinfo", credential_headers(headers))
        return answer.status not in (401, 403)


# Headers that say who asks: a question on the caller's behalf carries these.
_CREDENTIAL_HEADERS = frozenset({
    b"authorization", b"cookie", b"es-client-authentication", b"es-secondary-authorization",
    b"es-security-runas-user", b"securitytenant", b"x-proxy-roles", b"x-proxy-user",
})  # fmt: skip


def credential_headers(headers: Headers) -> Headers:
    """The headers by which the engine knows the caller."""
    return [(name, value) for name, value in headers if name in _CREDENTIAL_HEADERS]


class CallerCacheKeys:
    """Keys for what is remembered of a caller: an expression means different indices to different callers.

    Credentials are not kept: a hash under a secret that only this object knows stands for them.
    """

    def __init__(self) -> None:
        self._secret = os.urandom(32)

    def key(self, headers: Headers, *parts: str) -> bytes:
        """The key of something that this caller asked.

        Args:
            headers: The caller's.
            parts: What was asked.
        """
        digest = hashlib.blake2b(key=self._secret, digest_size=16)
        for part in parts:
            digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
        for name, value in sorted(credential_headers(headers)):
            digest.update(name + b":" + value + b"\0")
        return digest.digest()
