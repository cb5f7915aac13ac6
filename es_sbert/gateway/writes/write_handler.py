"""Handler of `_bulk`, `_doc`, `_create` and `_update`: embed the documents, then forward or send the request."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs, unquote

from starlette.types import Send

from es_sbert.errors import EsSbertError, RequestTooLarge
from es_sbert.gateway.concurrency import cancel_on_disconnect, offload_if_large, offload_steps
from es_sbert.gateway.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.forward import (
    OutgoingRequest,
    RefusedAsTooLargeError,
    ResponseHooks,
    enlarged_error,
    forward,
    send_response,
)
from es_sbert.gateway.incoming_request import Headers, IncomingRequest, read_json, to_utf8
from es_sbert.gateway.index_lookup import IndexLookup
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.model_registry import ModelRegistry
from es_sbert.gateway.search.incoming_search import RewriteMode, requested_mode
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.upstream import Upstream
from es_sbert.gateway.writes.bulk_items import ActionWeight, BulkBody, BulkItem, OpType, count_lines_in_steps
from es_sbert.gateway.writes.bulk_sender import BulkRejectedError, BulkSender, PartLimit, join_items
from es_sbert.gateway.writes.destinations import DestinationResolver
from es_sbert.gateway.writes.missing_vectors import MissingVectors, UnreadReason
from es_sbert.gateway.writes.prepare_items import ItemPreparer

_OP_TYPES = {EngineApi.DOCUMENT: OpType.INDEX, EngineApi.CREATE: OpType.CREATE, EngineApi.UPDATE: OpType.UPDATE}
# Size of a window: the part of a bulk request that is processed at once.
_WINDOW_ITEMS = 1000
_WINDOW_BYTES = 16 * 1024 * 1024
# Memory of an action as a multiple of its bytes: the input, objects, vectors and the output. If its index was not
# looked up, its field may have chunks, whose vectors take far more memory than the text.
_MEMORY_FACTOR = 4
_MEMORY_FACTOR_WITH_VECTORS = 64


class WriteHandler:
    """Handles `_bulk`, `_doc`, `_create` and `_update`.

    Args:
        settings: Settings of the gateway.
        upstream: The engine.
        indices: Resolves mappings.
        models: The models of the vector fields.
        metrics: Counts documents.

    Attributes:
        destinations: Cached destinations of writes.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        upstream: Upstream,
        indices: IndexLookup,
        models: ModelRegistry,
        metrics: GatewayMetrics,
    ) -> None:
        self._max_actions = settings.limits.bulk_actions
        self._part_limit = PartLimit(settings.limits.body_bytes)
        self._upstream = upstream
        self._missing = MissingVectors(metrics)
        self.destinations = DestinationResolver(upstream, indices, self._missing)
        self._preparer = ItemPreparer(settings, upstream, self.destinations, models, metrics, self._missing)

    async def answer(self, incoming: IncomingRequest, route: EngineRoute, send: Send) -> int:
        """Embed the documents and send the request; unchanged if no vector changes.

        Returns:
            Status of the response; 0 if the client disconnected.

        Raises:
            EsSbertError: the engine is not available, the gateway cannot read the body, or a single document cannot be
                embedded.
        """
        if requested_mode(incoming) is RewriteMode.OFF:
            status = await forward(incoming, send, self._upstream, OutgoingRequest.unchanged(incoming))
            self.record_unread(route, UnreadReason.OFF, status)
            return status
        if route.api is EngineApi.BULK:
            return await self._answer_bulk(incoming, route, send)
        outgoing, is_enlarged = await cancel_on_disconnect(incoming, self._prepare_document(incoming, route))
        try:
            return await forward(incoming, send, self._upstream, outgoing, ResponseHooks(enlarged=is_enlarged))
        except RefusedAsTooLargeError:
            raise enlarged_error("the document", len(outgoing.body or b"")) from None

    def record_unread(self, route: EngineRoute, reason: UnreadReason, status: int) -> None:
        """Count and log a request that wrote documents and was not read.

        Args:
            status: Status of the engine's response: a refused request wrote nothing.
        """
        if 200 <= status < 300:
            self._missing.record_unread(unquote(route.index), reason)

    async def _prepare_document(self, incoming: IncomingRequest, route: EngineRoute) -> tuple[OutgoingRequest, bool]:
        """Create the request to the engine; return it, and whether it has vectors that the gateway added."""
        raw = await incoming.body()
        plain = to_utf8(await read_json(incoming, raw))
        id, operation = unquote(route.id) if route.id else None, _OP_TYPES[route.api]
        item = BulkItem.from_bytes(operation, unquote(route.index), id, _parameter(incoming, "routing"), plain)
        prepared = await self._preparer.prepare([item], incoming.headers)
        if prepared is None:
            return OutgoingRequest.unchanged(incoming, raw), False
        for error in prepared.rejected.values():
            raise error
        return OutgoingRequest.with_body(incoming, prepared.items[0].body), True

    async def _answer_bulk(self, incoming: IncomingRequest, route: EngineRoute, send: Send) -> int:
        sender = BulkSender(incoming, self._upstream, self._part_limit)
        try:
            prepared = await cancel_on_disconnect(incoming, self._prepare_bulk(incoming, route, sender))
            if prepared is not None:
                outgoing, items = prepared
                try:
                    return await forward(incoming, send, self._upstream, outgoing, ResponseHooks(enlarged=bool(items)))
                except RefusedAsTooLargeError:
                    await cancel_on_disconnect(incoming, sender.send_refused(items))
        except BulkRejectedError as rejected:
            return await send_response(send, rejected.answer)
        return await send_response(send, await sender.joined_response())

    async def _prepare_bulk(
        self, incoming: IncomingRequest, route: EngineRoute, sender: BulkSender
    ) -> tuple[OutgoingRequest, Sequence[BulkItem]] | None:
        """Create the request to the engine, and return it with the items to which it adds vectors.

        None if the sender has sent it, because it has several windows or parts, or rejected items.
        """
        raw = await incoming.body()
        body = await _bulk_body(raw, incoming, route, self._max_actions)
        weight = None if body is None else await self._action_weight(body, incoming.headers)
        if body is None or weight is None:
            return OutgoingRequest.unchanged(incoming, raw), ()
        items, end = await _window(body, 0, weight)
        if end < len(body.body):
            del raw, items  # frees memory if the request was compressed
            await self._send_windows(body, weight, incoming.headers, sender)
            return None
        prepared = await self._preparer.prepare(items, incoming.headers)
        if prepared is None:
            return OutgoingRequest.unchanged(incoming, raw), ()
        if prepared.rejected or len(await sender.parts(*prepared)) > 1:
            await sender.send(*prepared)
            return None
        return OutgoingRequest.with_body(incoming, await join_items(prepared.items)), prepared.items

    async def _action_weight(self, body: BulkBody, headers: Headers) -> ActionWeight | None:
        """Return the function that estimates the memory of actions; None if no vector changes."""
        if body.names is None:
            return lambda name, size, listed: _MEMORY_FACTOR_WITH_VECTORS * size
        try:
            destinations = await self._preparer.resolve(body.names, headers)
        except EsSbertError as error:
            counts = await offload_if_large(len(body.body), body.count_documents)
            self._preparer.report_refused(error, counts.total())
            raise
        if not any(destination.has_vectors for destination in destinations.values()):
            if any(destination.missing for destination in destinations.values()):
                counts = await offload_if_large(len(body.body), body.count_documents)
                self._preparer.report_missing_fields(destinations, counts)
            return None

        def weight(name: str, size: int, listed: int) -> int:
            vectors = destinations[name].vector_bytes(size, listed) if name in destinations else 0
            return _MEMORY_FACTOR * size + vectors

        return weight

    async def _send_windows(self, body: BulkBody, weight: ActionWeight, headers: Headers, sender: BulkSender) -> None:
        """Embed and send a request window by window, so that updates see what earlier windows have written.

        The memory for a request then depends neither on its vectors nor on the number of its actions.
        """
        position = 0
        while position < len(body.body):
            items, position = await _window(body, position, weight)
            error: EsSbertError | None = sender.unreachable
            if error is None:
                try:
                    prepared = await self._preparer.prepare(items, headers)
                except EsSbertError as failure:
                    if not sender.started:
                        raise
                    error = failure
                else:
                    await sender.send(*(prepared or (items, {})))
                    continue
            await sender.reject(items, error)


async def _window(body: BulkBody, start: int, weight: ActionWeight) -> tuple[list[BulkItem], int]:
    return await offload_if_large(len(body.body), body.window, start, weight, _WINDOW_ITEMS, _WINDOW_BYTES)


async def _bulk_body(raw: bytes, incoming: IncomingRequest, route: EngineRoute, most: int) -> BulkBody | None:
    """Read the body of a bulk request; None if the engine rejects it.

    Raises:
        BadRequest: the gateway cannot read the body.
        RequestTooLarge: the body has more than `most` actions. Reading and sending them would take minutes.
    """
    plain = await read_json(incoming, raw)
    lines = await offload_steps(len(plain), count_lines_in_steps(plain))
    # An action is a line or two.
    if lines > 2 * most:
        raise RequestTooLarge(
            f"the bulk request has {lines:,} lines; the limit is {most:,} actions",
            "Send several requests of a few thousand actions each.",
        )
    reading = BulkBody.read_in_steps(plain, unquote(route.index), _parameter(incoming, "routing"))
    return await offload_steps(len(plain), reading)


def _parameter(incoming: IncomingRequest, name: str) -> str | None:
    values = parse_qs(incoming.query.decode("ascii")).get(name)
    return values[-1] if values else None
