"""Handler of `_bulk`, `_doc`, `_create` and `_update`: embed the documents, then forward or send the request."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from urllib.parse import parse_qs, unquote

from starlette.types import Send

from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.concurrency import cancel_on_disconnect, offload_if_large, offload_steps
from es_sbert.gateway.embedding.model_registry import ModelRegistry
from es_sbert.gateway.errors import BadRequest, ThrottledLog, log_detail
from es_sbert.gateway.index_lookup import IndexLookup
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.proxy.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.proxy.forward import OutgoingRequest, forward, send_response
from es_sbert.gateway.proxy.incoming_request import Headers, IncomingRequest
from es_sbert.gateway.proxy.json_bodies import to_utf8
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.search.incoming_search import MODE_HEADER, RewriteMode, decompress_offloaded, has_json_body
from es_sbert.gateway.settings import GatewaySettings, OnEmbeddingFailure
from es_sbert.gateway.writes.bulk_items import BulkBody, BulkItem, BulkWindow, OpType, WindowLimits, document_item
from es_sbert.gateway.writes.destinations import Destination, DestinationResolver
from es_sbert.gateway.writes.document_embedder import DocumentEmbedder
from es_sbert.gateway.writes.prepare_items import ItemPreparer, PreparedItems
from es_sbert.gateway.writes.send_bulk import BulkRejectedError, BulkSender, join_items

logger = logging.getLogger(__name__)

_OP_TYPES = {EngineApi.DOCUMENT: OpType.INDEX, EngineApi.CREATE: OpType.CREATE, EngineApi.UPDATE: OpType.UPDATE}
# How much of a bulk request is worked on at a time.
_WINDOW_ITEMS = 1000
_WINDOW_BYTES = 16 * 1024 * 1024
# A request without vectors that is cut into more parts than these is sent in parts.
_MAX_UNSPLIT_PARTS = 4
# An action takes its bytes this many times: as they came, as objects, with vectors, and as they are sent. Where its
# index was not looked up, it may have passages and so many vectors that they take far more than the text.
_MEMORY_FACTOR = 4
_MEMORY_FACTOR_WITH_VECTORS = 64


class WriteHandler:
    """Handles `_bulk`, `_doc`, `_create` and `_update`.

    Args:
        settings: The operator's.
        upstream: The engine.
        indices: Looks mappings up.
        models: The models of the vector fields.
        metrics: Told what becomes of documents.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        upstream: Upstream,
        indices: IndexLookup,
        models: ModelRegistry,
        metrics: GatewayMetrics,
    ) -> None:
        self._policy = settings.semantic.on_embedding_failure
        self._most_bytes = settings.limits.body_bytes
        self._upstream = upstream
        self._destinations = DestinationResolver(upstream, indices)
        vectorize = DocumentEmbedder(models, settings.embedding.waiting_texts)
        self._preparer = ItemPreparer(upstream, self._destinations, vectorize, self._policy)
        self._metrics = metrics
        self._log = ThrottledLog(logger)

    def invalidate(self) -> None:
        """Look indices up anew from now on."""
        self._destinations.invalidate()

    async def answer(self, incoming: IncomingRequest, route: EngineRoute, send: Send) -> int:
        """Send the request on and its answer back; the very request where no vector in it changes.

        Returns:
            The answer's status; 0 where the caller did not wait for it.

        Raises:
            EsSbertError: the engine cannot be asked, or a single document's vector cannot be made.
            CallerGone: the caller did not wait until the request was sent.
        """
        if not has_json_body(incoming) or incoming.header(MODE_HEADER).strip().lower() == RewriteMode.OFF.encode():
            return await forward(incoming, send, self._upstream, OutgoingRequest.unchanged(incoming))
        if route.api is EngineApi.BULK:
            return await self._answer_bulk(incoming, route, send)
        return await self._answer_document(incoming, route, send)

    async def _answer_document(self, incoming: IncomingRequest, route: EngineRoute, send: Send) -> int:
        outgoing = await cancel_on_disconnect(incoming, self._document_outgoing(incoming, route))
        return await forward(incoming, send, self._upstream, outgoing)

    async def _document_outgoing(self, incoming: IncomingRequest, route: EngineRoute) -> OutgoingRequest:
        raw = await incoming.body()
        plain = await _decompressed_or_none(raw, incoming)
        ready = (
            None
            if plain is None
            else await self._ready([_read_document_item(plain, incoming, route)], incoming.headers)
        )
        if ready is None:
            return OutgoingRequest.unchanged(incoming, raw)
        for problem in self._refused(ready).values():
            raise problem
        return OutgoingRequest.with_body(incoming, ready.items[0].body)

    async def _answer_bulk(self, incoming: IncomingRequest, route: EngineRoute, send: Send) -> int:
        sender = BulkSender(incoming, self._upstream, self._most_bytes)
        try:
            outgoing = await cancel_on_disconnect(incoming, self._bulk_outgoing(incoming, route, sender))
        except BulkRejectedError as refused:
            return await send_response(send, refused.answer)
        if outgoing is None:
            return await sender.reply(send)
        return await forward(incoming, send, self._upstream, outgoing)

    async def _bulk_outgoing(
        self, incoming: IncomingRequest, route: EngineRoute, sender: BulkSender
    ) -> OutgoingRequest | None:
        """The request to the engine; None where it went in parts, by the sender."""
        raw = await incoming.body()
        body = await _bulk_body(raw, incoming, route)
        if body is None:
            return OutgoingRequest.unchanged(incoming, raw)
        limits = await self._limits(body, incoming.headers)
        if limits is None:
            if len(body.cuts) <= _MAX_UNSPLIT_PARTS + 1 or _waits_for_refresh(incoming):
                return OutgoingRequest.unchanged(incoming, raw)
            del raw
            await self._send_parts(body, sender)
            return None
        window = await offload_if_large(len(body.body), body.window, 0, limits)
        if window.end == len(body.body):
            return await self._only_window(window, incoming, raw, sender)
        del raw, window  # of which body has a copy, where they were compressed
        await self._send_windows(body, limits, incoming.headers, sender)
        return None

    async def _limits(self, body: BulkBody, headers: Headers) -> WindowLimits | None:
        """How much of a request is worked on at a time; None where no vector in it changes."""
        known: dict[str, Destination] = {}
        if body.names is not None:
            try:
                known = await self._preparer.look_up(body.names, headers)
            except EsSbertError as error:
                self._pass_or_raise(error)
                return None
            if not any(destination.has_vectors for destination in known.values()):
                return None

        def weight(name: str, size: int) -> int:
            if body.names is None:
                return _MEMORY_FACTOR_WITH_VECTORS * size
            return _MEMORY_FACTOR * size + (known[name].vector_bytes(size) if name in known else 0)

        return WindowLimits(_WINDOW_ITEMS, _WINDOW_BYTES, weight)

    async def _only_window(
        self, window: BulkWindow, incoming: IncomingRequest, raw: bytes, sender: BulkSender
    ) -> OutgoingRequest | None:
        """The request to the engine; None where it was sent already, since it had to be in several parts or none."""
        ready = await self._ready(window.items, incoming.headers)
        if ready is None:
            return OutgoingRequest.unchanged(incoming, raw)
        refused = self._refused(ready)
        if not refused and len(await sender.parts(ready.items, refused)) == 1:
            return OutgoingRequest.with_body(incoming, await join_items(ready.items, window.rest))
        await sender.send(ready.items, refused)
        return None

    async def _send_parts(self, body: BulkBody, sender: BulkSender) -> None:
        """Send a request as it came, but in parts: the engine answers others between them."""
        for start, end in pairwise(body.cuts):
            items = partial(body.items, start, end)
            if sender.lost is None:
                await sender.send_unchanged(body.body[start:end], items)
            else:
                await sender.refuse(await offload_if_large(end - start, items), sender.lost)

    async def _send_windows(self, body: BulkBody, limits: WindowLimits, headers: Headers, sender: BulkSender) -> None:
        """Embed and send a request window by window: updates see what the windows before have written.

        The memory for a request then grows neither with its vectors nor with the number of its actions.
        """
        position = 0
        while position < len(body.body):
            window = await offload_if_large(len(body.body), body.window, position, limits)
            position = window.end
            if sender.lost is not None:
                await sender.refuse(window.items, sender.lost)
                continue
            try:
                ready = await self._ready(window.items, headers)
            except EsSbertError as error:
                if not sender.began:
                    raise
                await sender.refuse(window.items, error)
                continue
            if ready is None:
                await sender.send(window.items, {})
            else:
                await sender.send(ready.items, self._refused(ready))

    async def _ready(self, items: Sequence[BulkItem], headers: Headers) -> PreparedItems | None:
        """Items with their vectors; None where they are sent as they came.

        Raises:
            EsSbertError: the engine cannot be asked, or the operator wants no documents without vectors.
        """
        try:
            ready = await self._preparer.ready(items, headers)
        except EsSbertError as error:
            self._pass_or_raise(error)
            return None
        if ready is not None:
            self._tell(ready)
        return ready

    def _pass_or_raise(self, error: EsSbertError) -> None:
        if isinstance(error, EngineUnreachable):
            raise error
        if self._policy is OnEmbeddingFailure.FAIL:
            self._log.warning("requests are refused: %s", log_detail(error))
            raise error
        self._log.warning("requests pass without vectors: %s", log_detail(error))

    def _refused(self, ready: PreparedItems) -> Mapping[int, EsSbertError]:
        return ready.problems if self._policy is OnEmbeddingFailure.FAIL else {}

    def _tell(self, ready: PreparedItems) -> None:
        refused = len(self._refused(ready))
        self._metrics.documents(embedded=ready.embedded, without=len(ready.problems) - refused, refused=refused)
        done = "are refused" if refused else "pass without a vector"
        for number, error in ready.problems.items():
            name = ready.items[number].index
            self._log.warning(f"documents for %s {done}: %s", name, log_detail(error))


async def _decompressed_or_none(raw: bytes, incoming: IncomingRequest) -> bytes | None:
    """A body without its content encoding; None where the engine alone deals with it.

    Raises:
        RequestTooLarge: it is beyond the limit then.
    """
    try:
        return await decompress_offloaded(raw, incoming)
    except BadRequest:
        return None


async def _bulk_body(raw: bytes, incoming: IncomingRequest, route: EngineRoute) -> BulkBody | None:
    """The body of a bulk request; None where the engine alone deals with it."""
    plain = await _decompressed_or_none(raw, incoming)
    if plain is None:
        return None
    reading = BulkBody.read_in_steps(plain, unquote(route.index), _routing(incoming))
    return await offload_steps(len(plain), reading)


def _read_document_item(plain: bytes, incoming: IncomingRequest, route: EngineRoute) -> BulkItem:
    """The action of a request to a document API."""
    document = unquote(route.id) if route.id else None
    operation = _OP_TYPES[route.api]
    return document_item(operation, unquote(route.index), document, _routing(incoming), to_utf8(plain))


def _routing(incoming: IncomingRequest) -> str | None:
    return _parameter(incoming, "routing")


def _waits_for_refresh(incoming: IncomingRequest) -> bool:
    """Whether each request waits for the next refresh, up to a second: too long for every part of a request."""
    return _parameter(incoming, "refresh") == "wait_for"


def _parameter(incoming: IncomingRequest, name: str) -> str | None:
    values = parse_qs(incoming.query.decode("ascii")).get(name)
    return values[-1] if values else None
