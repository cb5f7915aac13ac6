"""What a caller may search and write, as the engine itself says.

The gateway may read mappings with credentials of its own. Which of them concern a caller is decided here, by questions
that are asked with the caller's credentials: nothing that the engine would not tell a caller gets into an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from cachetools import TTLCache

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.errors import AccessDenied
from es_sbert.gateway.wire.callers import CallerKeys, identity
from es_sbert.gateway.wire.incoming import Headers
from es_sbert.gateway.wire.upstream import REFUSALS, Upstream

_MOST_KEPT = 1000
# Any of these lets a caller write whole documents.
_WRITE_PRIVILEGES = ("create_doc", "index")
_NO_HITS: Json = {"size": 0, "query": {"match_none": {}}, "track_total_hits": False}


@dataclass
class Searchable:
    """The indices of an expression that a caller may search.

    Attributes:
        indices: Their concrete names.
        known: Concrete indices that the expression stood for at that time, whoever may search them; None until that was
            looked up. An index that is not among them is newer than this answer.
    """

    indices: frozenset[str]
    known: frozenset[str] | None = field(default=None)


class CallerRights:
    """Asks the engine what callers may do, and remembers for a moment.

    Args:
        upstream: The engine.
        remember_seconds: How old an answer may be. What the engine allows is checked by the engine itself with every
            request; an old answer can only name indices wrongly that existed and were visible to this caller.
    """

    def __init__(self, upstream: Upstream, remember_seconds: float = 10.0) -> None:
        self._upstream = upstream
        self._keys = CallerKeys()
        self._searchable: TTLCache[bytes, Searchable] = TTLCache(_MOST_KEPT, remember_seconds)
        self._writable: TTLCache[bytes, bool] = TTLCache(_MOST_KEPT, remember_seconds)

    def matter(self, headers: Headers) -> bool:
        """Whether the caller's rights may differ from those that mappings are read with.

        Without credentials on either side, both are the same.
        """
        return self._upstream.own_authorization is not None or bool(identity(headers))

    async def searchable(
        self, parts: Sequence[str], options: Mapping[str, str], headers: Headers, *, fresh: bool = False
    ) -> Searchable | None:
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
            answer = await self._upstream.ask("GET", target, identity(headers))
            if answer.status == 403 and await self._may_search(part, options, headers):
                raise AccessDenied(
                    "the indices that this search concerns may not be listed by the caller",
                    "Give the caller the index privilege read, which allows searching and listing.",
                )
            if answer.status in REFUSALS:
                return None
            # Left out of an answer without any index.
            told = self._upstream.needed(answer, "GET /_field_caps")
            with self._upstream.reading("GET /_field_caps"):
                indices.update(told.get("indices", ()))
        found = Searchable(frozenset(indices))
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
            elasticsearch = self._upstream.known_flavour is Flavour.ELASTICSEARCH
            asked = self._elasticsearch_allows(name, headers) if elasticsearch else self._signed_in(headers)
            self._writable[key] = await asked
        return self._writable[key]

    def forget(self) -> None:
        """Ask anew from now on: something about indices is being changed."""
        self._searchable.clear()
        self._writable.clear()

    async def _may_search(self, part: str, options: Mapping[str, str], headers: Headers) -> bool:
        target = f"/{part}/_search?{urlencode(options)}"
        return (await self._upstream.ask("POST", target, identity(headers), _NO_HITS)).status == 200

    async def _elasticsearch_allows(self, name: str, headers: Headers) -> bool:
        question: Json = {"index": [{"names": [name], "privileges": list(_WRITE_PRIVILEGES)}]}
        answer = await self._upstream.ask("POST", "/_security/user/_has_privileges", identity(headers), question)
        if answer.status in (401, 403):
            return False
        if answer.status != 200:
            return True  # the engine has no users
        told = self._upstream.needed(answer, "POST /_security/user/_has_privileges")
        with self._upstream.reading("POST /_security/user/_has_privileges"):
            return any(told.get("index", {}).get(name, {}).values())

    async def _signed_in(self, headers: Headers) -> bool:
        answer = await self._upstream.ask("GET", "/_plugins/_security/authinfo", identity(headers))
        return answer.status not in (401, 403)
