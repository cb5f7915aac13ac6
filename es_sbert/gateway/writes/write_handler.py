"""Handler of `_bulk`, `_doc`, `_create` and `_update`: embed the documents, then forward or send the request."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs, unquote

from starlette.types import Send

from es_sbert.errors import EngineUnreachable, EsSbertError, RequestTooLarge
from es_sbert.gateway.concurrency import cancel_on_disconnect, offload_if_large, offload_steps
from es_sbert.gateway.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.errors import BadRequest, ThrottledLog, log_detail
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
from es_sbert.gateway.settings import GatewaySettings, OnEmbeddingFailure
from es_sbert.gateway.upstream import Upstream
from es_sbert.gateway.writes.bulk_items import (
    BulkBody,
    BulkItem,
    OpType,
    WindowLimits,
    count_lines_in_steps,
)
from es_sbert.gateway.writes.bulk_sender import BulkRejectedError, BulkSender, PartLimit, join_items
from es_sbert.gateway.writes.destinations import Destination, DestinationResolver
from es_sbert.gateway.writes.missing_vectors import MissingVectors, NoVectorReason, UnreadReason, failure_reason
from es_sbert.gateway.writes.prepare_items import ItemPreparer, PreparedItems, parse_items

logger = logging.getLogger(__name__)

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
        self._policy = settings.semantic.on_embedding_failure
        self._max_actions = settings.limits.bulk_actions
        self._part_limit = PartLimit(settings.limits.body_bytes)
        self._upstream = upstream
        self._missing = MissingVectors(metrics)
        self.destinations = DestinationResolver(upstream, indices, self._missing)
        self._preparer = ItemPreparer(settings, upstream, self.destinations, models, self._missing)
        self._metrics = metrics
        self._log = ThrottledLog(logger)

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
        plain = await read_json(incoming, raw)
        prepared = await self._prepare([_read_document_item(plain, incoming, route)], incoming.headers)
        if prepared is None:
            return OutgoingRequest.unchanged(incoming, raw), False
        for error in self._rejected(prepared).values():
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
        return await sender.reply(send)

    async def _prepare_bulk(
        self, incoming: IncomingRequest, route: EngineRoute, sender: BulkSender
    ) -> tuple[OutgoingRequest, Sequence[BulkItem]] | None:
        """Create the request to the engine, and return it with the items to which it adds vectors.

        None if the sender has sent it, because it has several windows or parts, or rejected items.
        """
        raw = await incoming.body()
        body = await _bulk_body(raw, incoming, route, self._max_actions)
        limits = None if body is None else await self._limits(body, incoming.headers)
        if body is None or limits is None:
            return OutgoingRequest.unchanged(incoming, raw), ()
        window = await offload_if_large(len(body.body), body.window, 0, limits)
        if window.end < len(body.body):
            del raw, window  # frees memory if the request was compressed
            await self._send_windows(body, limits, incoming.headers, sender)
            return None
        prepared = await self._prepare(window.items, incoming.headers)
        if prepared is None:
            return OutgoingRequest.unchanged(incoming, raw), ()
        rejected = self._rejected(prepared)
        if rejected or len(await sender.parts(prepared.items, rejected)) > 1:
            await sender.send(prepared.items, rejected)
            return None
        joined = await join_items(prepared.items, window.rest)
        return OutgoingRequest.with_body(incoming, joined), prepared.items

    async def _limits(self, body: BulkBody, headers: Headers) -> WindowLimits | None:
        """Determine the limits of a window; None if no vector changes."""
        destinations: dict[str, Destination] = {}
        if body.names is not None:
            try:
                destinations = await self._preparer.resolve(body.names, headers)
            except EsSbertError as error:
                counts = await offload_if_large(len(body.body), body.count_documents)
                self._count_or_raise(error, counts.total())
                return None
            if not any(destination.has_vectors for destination in destinations.values()):
                await self._report_unchanged(body, destinations)
                return None

        def weight(name: str, size: int, listed: int) -> int:
            if body.names is None:
                return _MEMORY_FACTOR_WITH_VECTORS * size
            vectors = destinations[name].vector_bytes(size, listed) if name in destinations else 0
            return _MEMORY_FACTOR * size + vectors

        return WindowLimits(_WINDOW_ITEMS, _WINDOW_BYTES, weight)

    async def _report_unchanged(self, body: BulkBody, destinations: Mapping[str, Destination]) -> None:
        """Report documents of an unchanged request whose index lacks the vector field, or has an unreadable mapping."""
        size = len(body.body)
        if unreadable := [name for name, destination in destinations.items() if destination.is_unreadable]:
            counts = await offload_if_large(size, body.count_documents)
            self._missing.count([NoVectorReason.MAPPING_UNREADABLE], sum(counts[name] for name in unreadable))
        if any(destination.lacking for destination in destinations.values()):
            limits = WindowLimits(_WINDOW_ITEMS, _WINDOW_BYTES, lambda name, size, listed: _MEMORY_FACTOR * size)
            position = 0
            while position < size:
                window = await offload_if_large(size, body.window, position, limits)
                position = window.end
                _, lacking = await offload_if_large(size, parse_items, window.items, destinations)
                self._preparer.report_lacking(lacking)

    async def _send_windows(self, body: BulkBody, limits: WindowLimits, headers: Headers, sender: BulkSender) -> None:
        """Embed and send a request window by window, so that updates see what earlier windows have written.

        The memory for a request then depends neither on its vectors nor on the number of its actions.
        """
        position = 0
        while position < len(body.body):
            window = await offload_if_large(len(body.body), body.window, position, limits)
            position = window.end
            if sender.unreachable is not None:
                await sender.reject(window.items, sender.unreachable)
                continue
            try:
                prepared = await self._prepare(window.items, headers)
            except EsSbertError as error:
                if not sender.started:
                    raise
                await sender.reject(window.items, error)
                continue
            if prepared is None:
                await sender.send(window.items, {})
            else:
                await sender.send(prepared.items, self._rejected(prepared))

    async def _prepare(self, items: Sequence[BulkItem], headers: Headers) -> PreparedItems | None:
        """Add vectors to items; None if they are sent unchanged.

        Raises:
            EsSbertError: the engine is not available, or the settings reject documents without vectors.
        """
        try:
            prepared = await self._preparer.prepare(items, headers)
        except EsSbertError as error:
            self._count_or_raise(error, sum(item.has_document for item in items))
            return None
        if prepared is not None:
            self._report(prepared)
        return prepared

    def _count_or_raise(self, error: EsSbertError, documents: int) -> None:
        """Count the documents of a request whose vector fields are unknown, and raise the error if it is refused."""
        if isinstance(error, EngineUnreachable):
            raise error
        if self._policy is OnEmbeddingFailure.FAIL:
            self._log.warning("requests are rejected: %s", log_detail(error))
            self._metrics.documents.labels("refused").inc(documents)
            raise error
        self._log.warning("requests pass without vectors: %s", log_detail(error))
        self._missing.count([NoVectorReason.MAPPING_UNREADABLE], documents)

    def _rejected(self, prepared: PreparedItems) -> Mapping[int, EsSbertError]:
        """The errors of the items that are not sent: under either policy, those of items that cannot be read."""
        if self._policy is OnEmbeddingFailure.FAIL:
            return prepared.errors
        return {number: error for number, error in prepared.errors.items() if isinstance(error, BadRequest)}

    def _report(self, prepared: PreparedItems) -> None:
        rejected = self._rejected(prepared)
        self._metrics.documents.labels("embedded").inc(prepared.embedded)
        self._metrics.documents.labels("refused").inc(len(rejected))
        for number, error in prepared.errors.items():
            name, reason = prepared.items[number].index, failure_reason(error)
            if number in rejected:
                self._log.warning("documents for %s are rejected: %s", name, log_detail(error))
            elif reason is NoVectorReason.TEXT_UNKNOWN:
                self._missing.record(name, [reason])
            else:
                self._missing.count([reason])
                self._log.warning("documents for %s pass without a vector: %s", name, log_detail(error))


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


def _read_document_item(plain: bytes, incoming: IncomingRequest, route: EngineRoute) -> BulkItem:
    """Create the item of a request to a document API."""
    document = unquote(route.id) if route.id else None
    operation = _OP_TYPES[route.api]
    return BulkItem.from_bytes(
        operation, unquote(route.index), document, _parameter(incoming, "routing"), to_utf8(plain)
    )


def _parameter(incoming: IncomingRequest, name: str) -> str | None:
    values = parse_qs(incoming.query.decode("ascii")).get(name)
    return values[-1] if values else None
