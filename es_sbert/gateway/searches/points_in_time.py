"""The indices behind a point in time, which a search by it does not name."""

from __future__ import annotations

from urllib.parse import quote

from cachetools import LRUCache

from es_sbert.engines.protocol import Json
from es_sbert.gateway.wire.callers import CallerKeys, identity
from es_sbert.gateway.wire.incoming import Incoming
from es_sbert.gateway.wire.upstream import REFUSALS, Upstream

_MOST_KEPT = 1000
_MOST_INDICES = 10_000
# No index has such a name.
_NOTHING = "_none"


class PointsInTime:
    """Asks the engine itself, so that a point in time opened elsewhere (or through another gateway) works too.

    Args:
        upstream: The engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._keys = CallerKeys()
        self._known: LRUCache[bytes, str] = LRUCache(_MOST_KEPT)

    async def expression(self, body: Json, incoming: Incoming) -> str:
        """The indices of a search's point in time as a path names them.

        Indices without a document in it are left out: nothing can be found in them.

        Raises:
            EngineUnreachable, RequestFailed: the engine cannot be asked.
        """
        pit = body["pit"]
        opened = pit.get("id") if isinstance(pit, dict) else None
        if not isinstance(opened, str):
            return _NOTHING
        # Of this caller: another one who has got hold of the id may not learn what it stands for.
        key = self._keys.key(incoming.headers, opened)
        if key not in self._known:
            expression = await self._ask(opened, incoming)
            if expression is None:
                return _NOTHING
            self._known[key] = expression
        return self._known[key]

    async def _ask(self, opened: str, incoming: Incoming) -> str | None:
        """None where the point in time is over, or is not the caller's: the engine says so to the search itself."""
        names: Json = {"terms": {"field": "_index", "size": _MOST_INDICES}}
        question: Json = {"size": 0, "track_total_hits": False, "pit": {"id": opened}, "aggs": {"indices": names}}
        answer = await self._upstream.ask("POST", "/_search", identity(incoming.headers), question)
        if answer.status in REFUSALS:
            return None
        told = self._upstream.needed(answer, "POST /_search")
        with self._upstream.reading("POST /_search"):
            found = [bucket["key"] for bucket in told["aggregations"]["indices"]["buckets"]]
            return ",".join(quote(name, safe="") for name in found) or _NOTHING
