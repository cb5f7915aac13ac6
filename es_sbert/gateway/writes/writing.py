"""Requests that write documents: passed on with vectors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote

from starlette.types import Send

from es_sbert.clock import Clock
from es_sbert.engines.protocol import EngineInfo
from es_sbert.errors import EngineUnreachable, EsSbertError, IndexMismatch
from es_sbert.gateway.embedding.models import Models
from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.indices import Indices
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.searches.reading import MODE_HEADER, is_json
from es_sbert.gateway.searches.scope import Mode
from es_sbert.gateway.settings import GatewaySettings, OnEmbeddingFailure
from es_sbert.gateway.wire.forward import Outgoing, forward
from es_sbert.gateway.wire.incoming import Headers, Incoming, decompressed
from es_sbert.gateway.wire.json_bodies import in_utf8, lines_in_utf8
from es_sbert.gateway.wire.routes import Api, Route
from es_sbert.gateway.wire.upstream import Upstream
from es_sbert.gateway.writes.destinations import Destination, Destinations
from es_sbert.gateway.writes.items import Bulk, Item, Operation, read_bulk, single_item
from es_sbert.gateway.writes.request import Changed, Ready, changed_items, read_items, with_vectors
from es_sbert.gateway.writes.sending import send_bulk
from es_sbert.gateway.writes.standing import standing_documents
from es_sbert.gateway.writes.vectors import Vectorizer, refusal
from es_sbert.gateway.writes.written import Written

logger = logging.getLogger(__name__)

_OPERATIONS = {Api.DOCUMENT: Operation.INDEX, Api.CREATE: Operation.CREATE, Api.UPDATE: Operation.UPDATE}


@dataclass(frozen=True)
class _Understood:
    """What a request changes, as far as it was possible to find out.

    Attributes:
        changed: Items whose vectors change.
        problems: Number of an item → why what it changes cannot be known.
    """

    changed: list[Changed]
    problems: Mapping[int, EsSbertError]


class Writing:
    """Handles `_bulk`, `_doc`, `_create` and `_update`.

    Args:
        settings: The operator's.
        upstream: The engine.
        indices: Looks mappings up.
        models: The models of the vector fields.
        metrics: Told what becomes of documents.
    """

    def __init__(self, settings: GatewaySettings, upstream: Upstream, indices: Indices, models: Models,
                 metrics: GatewayMetrics) -> None:  # fmt: skip
        self._policy = settings.meaning.on_embedding_failure
        self._most_bytes = settings.limits.body_bytes
        self._upstream = upstream
        self._destinations = Destinations(upstream, indices)
        self._vectorize = Vectorizer(models, settings.embedding.waiting_texts)
        self._metrics = metrics
        self._clock = Clock()

    def forget(self) -> None:
        """Look indices up anew from now on."""
        self._destinations.forget()

    async def answer(self, incoming: Incoming, route: Route, send: Send) -> int:
        """Send the request on and its answer back; the very request where no vector in it changes.

        Returns:
            The answer's status; 0 where the caller did not wait for it.

        Raises:
            EsSbertError: the engine cannot be asked, or a single document's vector cannot be made.
        """
        raw = await incoming.body()
        bulk = await self._read(raw, incoming, route)
        try:
            ready = None if bulk is None else await self._ready(bulk.items, incoming.headers)
        except EngineUnreachable:
            raise
        except EsSbertError as error:
            if self._policy is OnEmbeddingFailure.FAIL:
                raise
            logger.warning("a request passes without vectors: %s. %s", error.message, error.remedy)
            ready = None
        if bulk is None or ready is None:
            return await forward(incoming, send, self._upstream, Outgoing.same(incoming, raw))
        refused = ready.problems if self._policy is OnEmbeddingFailure.FAIL else {}
        self._tell(ready, len(refused))
        if route.api is Api.BULK:
            ready_bulk = Bulk(ready.items, bulk.rest)
            return await send_bulk(incoming, send, self._upstream, ready_bulk, refused, self._most_bytes)
        for problem in refused.values():
            raise problem
        return await forward(incoming, send, self._upstream, Outgoing.rewritten(incoming, ready.items[0].body))

    async def _read(self, raw: bytes, incoming: Incoming, route: Route) -> Bulk | None:
        """The request's actions; None where the engine alone shall deal with it."""
        if not is_json(incoming) or incoming.header(MODE_HEADER).strip().lower() == Mode.OFF.encode():
            return None
        try:
            plain = decompressed(raw, incoming)
        except BadRequest:
            return None
        if plain is None:
            return None
        index = unquote(route.index)
        routing = parse_qs(incoming.query.decode("ascii")).get("routing", [None])[-1]
        if route.api is Api.BULK:
            return await asyncio.to_thread(read_bulk, lines_in_utf8(plain), index, routing)
        document = unquote(route.id) if route.id else None
        return Bulk([single_item(_OPERATIONS[route.api], index, document, routing, in_utf8(plain))])

    async def _ready(self, items: Sequence[Item], headers: Headers) -> Ready | None:
        """The items with their vectors; None where none changes.

        Raises:
            EsSbertError: the engine cannot be asked.
        """
        # What is no object brings no text, and is the engine's to refuse.
        names = sorted({item.index for item in items if item.index and item.source.startswith(b"{")})
        known = await self._look_up(names, headers, fresh=False)
        while True:
            if not any(destination.targets for destination in known.values()):
                return None
            targets = {name: destination.targets for name, destination in known.items()}
            written = await asyncio.to_thread(read_items, items, targets)
            understood = await self._understand(written, known, headers)
            if not understood.changed:
                return None
            made = await self._vectorize([text for one in understood.changed for text in one.wanted])
            # An alias may stand for another index by now: vectors of one model must not get among those of another.
            latest = await self._look_up([name for name in names if known[name].targets], headers, fresh=True)
            if all(known[name] == destination for name, destination in latest.items()):
                break
            known |= latest
        ready = await asyncio.to_thread(
            with_vectors, items, understood.changed, made, self._engine(), self._clock.now()
        )
        return Ready(ready.items, {**understood.problems, **ready.problems}, ready.embedded)

    async def _look_up(self, names: Sequence[str], headers: Headers, *, fresh: bool) -> dict[str, Destination]:
        look = self._destinations.now if fresh else self._destinations.known
        try:
            return dict(zip(names, await asyncio.gather(*(look(name, headers) for name in names)), strict=True))
        except IndexMismatch as error:
            # Nothing is wrong with the documents: once the index is mended, the same request succeeds.
            raise refusal(error) from error

    async def _understand(
        self, written: Mapping[int, Written], known: Mapping[str, Destination], headers: Headers
    ) -> _Understood:
        places = {name: destination.index for name, destination in known.items()}
        found, problems = await standing_documents(self._upstream, written.values(), places, headers)
        changed = await asyncio.to_thread(changed_items, written, found)
        unknown = {
            one.number: problems[one.written.key]
            for one in changed
            if one.written.key in problems and one.written.needed
        }
        return _Understood(changed, unknown)

    def _engine(self) -> EngineInfo:
        # Its version is not asked for, which needs privileges that a writer may lack: lists of numbers suit all.
        return EngineInfo(self._upstream.known_flavour, (0, 0, 0), self._upstream.url)

    def _tell(self, ready: Ready, refused: int) -> None:
        without = len(ready.problems) - refused
        self._metrics.documents(embedded=ready.embedded, without=without, refused=refused)
        if ready.problems:
            error = next(iter(ready.problems.values()))
            done = "are refused" if refused else "pass without a vector"
            logger.warning("%d documents %s: %s. %s", len(ready.problems), done, error.message, error.remedy)
