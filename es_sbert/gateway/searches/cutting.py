"""How near the k-th document of all is, asked where a query by itself would keep k of each shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlencode

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Json
from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.indices import EXPRESSION_OPTIONS
from es_sbert.gateway.rewrite.cut import kth_body, least_cosine, needs_cut
from es_sbert.gateway.rewrite.queries import Filters
from es_sbert.gateway.rewrite.semantic import Semantic
from es_sbert.gateway.searches.scope import Scope
from es_sbert.gateway.tasks import gather_all
from es_sbert.gateway.wire.callers import identity
from es_sbert.gateway.wire.upstream import REFUSALS, Upstream

# Parameters that decide which shards a search looks at.
_SAME_SHARDS = (*EXPRESSION_OPTIONS, "routing", "preference")
# What the k-th document depends on → how near it is; None where there are fewer than k.
LeastCosines = dict[str, float | None]

# Of one request: others have searches to be made too.
_AT_A_TIME = 8


class Cutting:
    """Asks the engine for k-th documents.

    Args:
        upstream: The engine.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def least(
        self,
        asked: Iterable[tuple[Semantic, Filters]],
        vector: Callable[[Semantic], Vectors],
        body: Json,
        scope: Scope,
    ) -> LeastCosines:
        """How near the k-th document is, for each query by meaning that would match more than k.

        Args:
            asked: The queries of a search, with what must match beside each.
            vector: Of a query's text, *shape:* ``(dimensions,)``.
            body: The search.
            scope: Where it looks.

        Raises:
            BadRequest: the indices do not let the k-th document be looked for.
            EngineUnreachable, RequestFailed: the engine cannot be asked.
        """
        flavour = self._upstream.known_flavour
        different = {
            cut_key(semantic, filters): (semantic, filters)
            for semantic, filters in asked
            if filters is not None and needs_cut(flavour, semantic)
        }
        bodies = [
            kth_body(flavour, semantic, vector(semantic), filters, body) for semantic, filters in different.values()
        ]
        few = asyncio.Semaphore(_AT_A_TIME)

        async def ask(kth: Json) -> Json | None:
            async with few:
                return await self._ask(kth, body, scope)

        answers = await gather_all(map(ask, bodies))
        with self._upstream.reading("POST _search"):
            return {
                key: least_cosine(flavour, told)
                for key, told in zip(different, answers, strict=True)
                if told is not None
            }

    async def _ask(self, kth: Json, body: Json, scope: Scope) -> Json | None:
        """The engine's answer; None where the search itself is refused alike, in the engine's own words."""
        options = {name: value for name, value in scope.options.items() if name in _SAME_SHARDS}
        # A point in time says by itself where to look.
        target = "/_search" if "pit" in body else f"/{scope.expression or '_all'}/_search?{urlencode(options)}"
        answer = await self._upstream.ask("POST", target, identity(scope.headers), kth)
        if answer.status not in REFUSALS:
            return self._upstream.needed(answer, "POST _search")
        why = str(answer.body)
        if "max_result_window" in why:
            raise BadRequest(
                f"k is {kth['from'] + 1}, more than the index.max_result_window of an index that is searched",
                "Ask for fewer documents, by k in the request or -k of es-sbert serve, or raise the setting.",
            )
        if "too_long_http_line" in why:
            raise BadRequest(
                "the names of the indices are too long for a search of the gateway's own",
                "Name them by a pattern or an alias.",
            )
        return None


def cut_key(semantic: Semantic, filters: Sequence[Json]) -> str:
    """What the k-th document depends on."""
    return repr((semantic, list(filters)))
