"""Items of a request get their vectors: what they change is found out of the engine, and the vectors are made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from es_sbert.clock import Clock
from es_sbert.engines.protocol import EngineInfo
from es_sbert.errors import EsSbertError, IndexMismatch
from es_sbert.gateway.settings import OnEmbeddingFailure
from es_sbert.gateway.tasks import gather_all, run_by_size
from es_sbert.gateway.throttled_log import ThrottledLog
from es_sbert.gateway.wire.incoming import Headers
from es_sbert.gateway.wire.upstream import Upstream
from es_sbert.gateway.writes.destinations import Destination, Destinations
from es_sbert.gateway.writes.items import Item
from es_sbert.gateway.writes.refusals import TextUnknown, log_detail, mapping_refusal
from es_sbert.gateway.writes.request import Changed, Ready, changed_items, read_items, with_vectors
from es_sbert.gateway.writes.standing import standing_documents
from es_sbert.gateway.writes.vectors import Embedded, Vectorizer
from es_sbert.gateway.writes.written import Written

logger = logging.getLogger(__name__)

# Indices of a request that are looked up at the same time.
_LOOK_UPS = 16


@dataclass(frozen=True)
class _Understood:
    """What a request changes, as far as it was possible to find out.

    Attributes:
        changed: Items whose vectors change.
        problems: Number of an item → why what it changes cannot be known.
    """

    changed: list[Changed]
    problems: Mapping[int, EsSbertError]


class Preparer:
    """Prepares items for the engine.

    Args:
        upstream: The engine.
        destinations: Finds out where items go.
        vectorize: Makes vectors.
        policy: What becomes of items whose vectors cannot be made.
    """

    def __init__(
        self, upstream: Upstream, destinations: Destinations, vectorize: Vectorizer, policy: OnEmbeddingFailure
    ) -> None:
        self._upstream = upstream
        self._destinations = destinations
        self._vectorize = vectorize
        self._policy = policy
        self._log = ThrottledLog(logger)
        self._clock = Clock()

    async def look_up(self, names: Iterable[str], headers: Headers, *, fresh: bool = False) -> dict[str, Destination]:
        """Where writes to these names go.

        Args:
            headers: The caller's.
            fresh: Whether to ask even where an answer is remembered.

        Raises:
            EsSbertError: the engine cannot be asked, or the mapping is damaged.
        """
        look = self._destinations.now if fresh else self._destinations.known
        at_once = asyncio.Semaphore(_LOOK_UPS)

        async def look_one_up(name: str) -> Destination:
            async with at_once:
                return await look(name, headers)

        wanted = sorted(names)
        try:
            return dict(zip(wanted, await gather_all(map(look_one_up, wanted)), strict=True))
        except IndexMismatch as error:
            # Nothing is wrong with the documents: once the index is repaired, the same request succeeds.
            raise mapping_refusal(error) from error

    async def ready(self, items: Sequence[Item], headers: Headers) -> Ready | None:
        """The items with their vectors; None where none changes, and none lacks a vector.

        Args:
            headers: The caller's.

        Raises:
            EsSbertError: the engine cannot be asked, or a mapping is damaged.
        """
        # What is not an object has no text, and the engine refuses it.
        names = {item.index for item in items if item.index and item.source.startswith(b"{")}
        known = await self.look_up(names, headers)
        size = sum(len(item.source) for item in items)
        while True:
            if not any(destination.has_vectors for destination in known.values()):
                return None
            written = await run_by_size(size, read_items, items, known)
            self._tell_of_partial_documents(written)
            understood = await self._understand(written, known, headers, size)
            if not understood.changed and not understood.problems:
                return None
            made = await self._vectorize([text for one in understood.changed for text in one.wanted])
            # An alias may point to another index by now: vectors of one model must not get among those of another.
            changing = [name for name, destination in known.items() if destination.has_vectors]
            latest = await self.look_up(changing, headers, fresh=True)
            if all(known[name] == destination for name, destination in latest.items()):
                break
            known |= latest
        vectors = sum(one.vectors.nbytes for one in made if isinstance(one, Embedded))
        ready = await run_by_size(
            size + vectors, with_vectors, items, understood.changed, made, self._engine(), self._clock.now()
        )
        return Ready(ready.items, {**understood.problems, **ready.problems}, ready.embedded)

    async def _understand(
        self, written: Mapping[int, Written], known: Mapping[str, Destination], headers: Headers, size: int
    ) -> _Understood:
        places = {name: destination.index for name, destination in known.items()}
        found, unread = await standing_documents(self._upstream, written.values(), places, headers)
        changed = await run_by_size(size, changed_items, written, found)
        problems: dict[int, EsSbertError] = {
            number: TextUnknown() for number, one in written.items() if one.lacks_vector
        }
        problems |= {
            one.number: unread[one.written.key] for one in changed if one.written.key in unread and one.written.needed
        }
        if self._policy is OnEmbeddingFailure.FAIL:
            # These are not sent.
            changed = [one for one in changed if one.number not in problems]
        return _Understood(changed, problems)

    def _tell_of_partial_documents(self, written: Mapping[int, Written]) -> None:
        """Partial documents pass: what they change of a text that is not known cannot be told."""
        for name in {one.item.index for one in written.values() if one.without_text and one.is_partial}:
            message = "partial updates of documents in %s pass without a new vector: %s"
            self._log.warning(message, name, log_detail(TextUnknown()))

    def _engine(self) -> EngineInfo:
        # Its version is not asked for, which needs privileges that a writer may lack: lists of numbers suit all.
        return EngineInfo(self._upstream.known_flavour, (0, 0, 0), self._upstream.url)
