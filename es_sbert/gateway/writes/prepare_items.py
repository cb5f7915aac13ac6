"""Add vectors to the items of a write request: resolve indices, read previous documents, detect changes, embed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from es_sbert.clock import Clock
from es_sbert.engines.protocol import EngineInfo, Json
from es_sbert.errors import EsSbertError, IndexMismatch
from es_sbert.gateway.concurrency import gather_or_cancel, offload_if_large
from es_sbert.gateway.errors import ThrottledLog, UnknownTextError, log_detail, public_mapping_error
from es_sbert.gateway.proxy.forward import BufferedResponse, OutgoingRequest, fetch_response
from es_sbert.gateway.proxy.incoming_request import Headers, credential_headers
from es_sbert.gateway.proxy.upstream import Upstream, UpstreamReply
from es_sbert.gateway.settings import OnEmbeddingFailure
from es_sbert.gateway.writes.bulk_items import BulkItem
from es_sbert.gateway.writes.destinations import Destination, DestinationResolver
from es_sbert.gateway.writes.document_changes import (
    NoPreviousDocument,
    PreviousDocument,
    VectorChange,
    WriteItem,
    WriteKey,
    previous_documents,
)
from es_sbert.gateway.writes.document_embedder import DocumentEmbedder, EmbeddedText
from es_sbert.index.document_vectors import EmbeddingProvenance, EmbeddingTarget, VectorFieldValue

logger = logging.getLogger(__name__)

# Indices of a request that are looked up at the same time.
_MAX_CONCURRENT_LOOKUPS = 16


@dataclass(frozen=True)
class _DetectedChanges:
    """What a request changes, as far as it was possible to find out.

    Attributes:
        changed: Items whose vectors change.
        problems: Number of an item → why what it changes cannot be known.
    """

    changed: list[ChangedItem]
    problems: Mapping[int, EsSbertError]


class ItemPreparer:
    """Prepares items for the engine.

    Args:
        upstream: The engine.
        destinations: Finds out where items go.
        vectorize: Makes vectors.
        policy: What becomes of items whose vectors cannot be made.
    """

    def __init__(
        self,
        upstream: Upstream,
        destinations: DestinationResolver,
        vectorize: DocumentEmbedder,
        policy: OnEmbeddingFailure,
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
        at_once = asyncio.Semaphore(_MAX_CONCURRENT_LOOKUPS)

        async def look_one_up(name: str) -> Destination:
            async with at_once:
                return await look(name, headers)

        wanted = sorted(names)
        try:
            return dict(zip(wanted, await gather_or_cancel(map(look_one_up, wanted)), strict=True))
        except IndexMismatch as error:
            # Nothing is wrong with the documents: once the index is repaired, the same request succeeds.
            raise public_mapping_error(error) from error

    async def ready(self, items: Sequence[BulkItem], headers: Headers) -> PreparedItems | None:
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
            written = await offload_if_large(size, parse_items, items, known)
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
        vectors = sum(one.vectors.nbytes for one in made if isinstance(one, EmbeddedText))
        ready = await offload_if_large(
            size + vectors, add_vectors, items, understood.changed, made, self._engine(), self._clock.now()
        )
        return PreparedItems(ready.items, {**understood.problems, **ready.problems}, ready.embedded)

    async def _understand(
        self, written: Mapping[int, WriteItem], known: Mapping[str, Destination], headers: Headers, size: int
    ) -> _DetectedChanges:
        places = {name: destination.index for name, destination in known.items()}
        found, unread = await read_previous_documents(self._upstream, written.values(), places, headers)
        changed = await offload_if_large(size, detect_vector_changes, written, found)
        problems: dict[int, EsSbertError] = {
            number: UnknownTextError() for number, one in written.items() if one.lacks_vector
        }
        problems |= {
            one.number: unread[one.written.key] for one in changed if one.written.key in unread and one.written.needed
        }
        if self._policy is OnEmbeddingFailure.FAIL:
            # These are not sent.
            changed = [one for one in changed if one.number not in problems]
        return _DetectedChanges(changed, problems)

    def _tell_of_partial_documents(self, written: Mapping[int, WriteItem]) -> None:
        """Partial documents pass: what they change of a text that is not known cannot be told."""
        for name in {one.item.index for one in written.values() if one.without_text and one.is_partial}:
            message = "partial updates of documents in %s pass without a new vector: %s"
            self._log.warning(message, name, log_detail(UnknownTextError()))

    def _engine(self) -> EngineInfo:
        # Its version is not asked for, which needs privileges that a writer may lack: lists of numbers suit all.
        return EngineInfo(self._upstream.engine_type_or_default, (0, 0, 0), self._upstream.url)


_MGET = "POST /_mget"


async def read_previous_documents(
    upstream: Upstream, written: Iterable[WriteItem], indices: Mapping[str, str], headers: Headers
) -> tuple[dict[WriteKey, PreviousDocument], dict[WriteKey, EsSbertError]]:
    """Look up what updates need to know, in one request with the caller's rights.

    Args:
        indices: Index as items call it → the name by which one document can be looked up.
        headers: The caller's.

    Returns:
        The documents, and why some could not be read.

    Raises:
        EngineUnreachable: no answer came.
    """
    wanted: dict[WriteKey, Json] = {}
    for one in written:
        if one.key is not None and one.needed:
            place = {"_index": indices[one.item.index], "_id": one.item.id}
            routing = {} if one.item.routing is None else {"routing": one.item.routing}
            known = wanted.setdefault(one.key, {**place, **routing, "_source": []})
            known["_source"] = list(dict.fromkeys([*known["_source"], *one.needed]))
    if not wanted:
        return {}, {}
    answer = await _multi_get(upstream, headers, {"docs": list(wanted.values())})
    if answer.status != 200 or not isinstance(answer.body, dict):
        error = upstream.reply_error(answer, _MGET)
        return dict.fromkeys(wanted, NoPreviousDocument.UNKNOWN), dict.fromkeys(wanted, error)
    found: dict[WriteKey, PreviousDocument] = {}
    problems: dict[WriteKey, EsSbertError] = {}
    with upstream.parsing(_MGET):
        for key, document in zip(wanted, answer.body["docs"], strict=True):
            found[key] = _previous_document(document)
            if found[key] is NoPreviousDocument.UNKNOWN:
                problems[key] = upstream.reply_error(UpstreamReply(_item_status(document), document), _MGET)
    return found, problems


async def _multi_get(upstream: Upstream, headers: Headers, body: Json) -> UpstreamReply:
    """As `Upstream.ask`, with a large answer read in a thread: it holds as many documents as a request updates."""
    sent = [*credential_headers(headers), (b"content-type", b"application/json"), (b"accept", b"application/json")]
    answer = await fetch_response(upstream, OutgoingRequest("POST", b"/_mget", sent, orjson.dumps(body)))
    return await offload_if_large(len(answer.body), _parse_reply, answer)


def _parse_reply(answer: BufferedResponse) -> UpstreamReply:
    try:
        # Not orjson: documents may hold lone surrogates.
        return UpstreamReply(answer.status, json.loads(answer.body))
    except (ValueError, RecursionError):
        return UpstreamReply(answer.status, None)


def _previous_document(document: Json) -> PreviousDocument:
    if "error" in document:
        missing = document["error"].get("type") == "index_not_found_exception"
        return NoPreviousDocument.MISSING if missing else NoPreviousDocument.UNKNOWN
    source: Any = document.get("_source")
    if not document.get("found"):
        return NoPreviousDocument.MISSING
    return source if isinstance(source, dict) else NoPreviousDocument.UNKNOWN


def _item_status(document: Json) -> int:
    denied = document.get("error", {}).get("type") == "security_exception"
    return 403 if denied else 503


@dataclass(frozen=True)
class ChangedItem:
    """An item whose vectors change.

    Attributes:
        number: Its place in the request.
        written: What was read of it.
        changes: What becomes of vectors, by the item's member that is a document.
    """

    number: int
    written: WriteItem
    changes: Mapping[str, VectorChange]

    @property
    def wanted(self) -> list[tuple[EmbeddingTarget, str]]:
        """The texts that vectors are made of."""
        return [one for change in self.changes.values() for one in change.wanted]


@dataclass(frozen=True)
class PreparedItems:
    """What goes to the engine.

    Attributes:
        items: All items of the request; those that change with their vectors.
        problems: Number of an item → why it lacks a vector.
        embedded: How many documents got vectors.
    """

    items: list[BulkItem]
    problems: Mapping[int, EsSbertError]
    embedded: int


def parse_items(items: Sequence[BulkItem], destinations: Mapping[str, Destination]) -> dict[int, WriteItem]:
    """The items for indices with vector fields, by their place in the request.

    Args:
        destinations: Of each index, as items call it.
    """
    found = ((number, item, destinations.get(item.index)) for number, item in enumerate(items))
    return {
        number: WriteItem.of(item, destination.targets, destination.without_text)
        for number, item, destination in found
        if destination is not None and destination.has_vectors
    }


def detect_vector_changes(
    written: Mapping[int, WriteItem], found: Mapping[WriteKey, PreviousDocument]
) -> list[ChangedItem]:
    """Those whose vectors change.

    Args:
        found: The documents that updates of a part of a text are about, as they stood before the request.
    """
    before = previous_documents(list(written.values()), found)
    changed = [
        ChangedItem(number, one, one.changes(standing))
        for (number, one), standing in zip(written.items(), before, strict=True)
    ]
    return [one for one in changed if one.changes]


def add_vectors(
    items: Sequence[BulkItem],
    changed: Sequence[ChangedItem],
    made: Sequence[EmbeddedText | EsSbertError],
    info: EngineInfo,
    embedded_at: str,
) -> PreparedItems:
    """The items as they are sent; one whose vector could not be made goes without it.

    Args:
        made: For each wanted text of `changed`, in their order.
        info: The engine, for the form of a vector.
        embedded_at: When the vectors were made.
    """
    result = list(items)
    problems: dict[int, EsSbertError] = {}
    embedded = 0
    vectors = iter(made)
    for one in changed:
        filled: dict[str, list[VectorFieldValue]] = {}
        for member, change in one.changes.items():
            origins = EmbeddingProvenance(change.document_hash, embedded_at)
            filled[member] = list(_filled_fields(change, vectors, info, origins, one.number, problems))
        embedded += any(filled.values()) and one.number not in problems
        result[one.number] = one.written.with_vectors(one.changes, filled)
    return PreparedItems(result, problems, embedded)


def _filled_fields(
    change: VectorChange,
    vectors: Iterator[EmbeddedText | EsSbertError],
    info: EngineInfo,
    origins: EmbeddingProvenance,
    number: int,
    problems: dict[int, EsSbertError],
) -> Iterator[VectorFieldValue]:
    for _ in change.wanted:
        made = next(vectors)
        if isinstance(made, EsSbertError):
            problems[number] = made
        else:
            yield made.field(info, origins)
