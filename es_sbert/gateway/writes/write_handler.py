"""Handler of `_bulk`, `_doc`, `_create` and `_update`: embed the documents, then forward or send the request.

A bulk request with vectors is sent in parts if it has become too large, and the responses are joined.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from urllib.parse import parse_qs, unquote

import orjson
from starlette.types import Send

from es_sbert.engines.bulk_request import BulkOutcome, classify_result, group_actions, split_in_half
from es_sbert.engines.rest import Json
from es_sbert.errors import EngineUnreachable, EsSbertError, RequestTooLarge
from es_sbert.gateway.concurrency import offload_if_large, offload_steps
from es_sbert.gateway.engine_routes import EngineApi, EngineRoute
from es_sbert.gateway.errors import error_object, http_status, response_headers
from es_sbert.gateway.forward import (
    TOO_LARGE,
    BufferedResponse,
    OutgoingRequest,
    RefusedAsTooLargeError,
    ResponseHooks,
    enlarged_error,
    fetch_response,
    forward,
    send_response,
)
from es_sbert.gateway.incoming_request import (
    Headers,
    IncomingRequest,
    UnreadableJson,
    parse_object,
    read_json,
    write_object,
)
from es_sbert.gateway.index_lookup import IndexLookup
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.model_registry import ModelRegistry
from es_sbert.gateway.search.incoming_search import RewriteMode, requested_mode
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.upstream import Upstream
from es_sbert.gateway.writes.bulk_items import ActionWeight, BulkBody, BulkItem, OpType, count_lines_in_steps
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
        outgoing, is_enlarged = await incoming.cancel_on_disconnect(self._prepare_document(incoming, route))
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
        id, operation = unquote(route.id) if route.id else None, _OP_TYPES[route.api]
        item = BulkItem.from_bytes(operation, unquote(route.index), id, _routing(incoming), plain)
        prepared = await self._preparer.prepare([item], incoming.headers)
        if prepared is None:
            return OutgoingRequest.unchanged(incoming, raw), False
        for error in prepared.rejected.values():
            raise error
        return OutgoingRequest.with_body(incoming, prepared.items[0].body), True

    async def _answer_bulk(self, incoming: IncomingRequest, route: EngineRoute, send: Send) -> int:
        sender = BulkSender(incoming, self._upstream, self._part_limit)
        try:
            prepared = await incoming.cancel_on_disconnect(self._prepare_bulk(incoming, route, sender))
            if prepared is not None:
                outgoing, items = prepared
                try:
                    return await forward(incoming, send, self._upstream, outgoing, ResponseHooks(enlarged=bool(items)))
                except RefusedAsTooLargeError:
                    self._part_limit.refused(len(outgoing.body or b""))
                    await incoming.cancel_on_disconnect(sender.send(items, {}))
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
        if not any(destination.has_vectors or destination.refused for destination in destinations.values()):
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
    reading = BulkBody.read_in_steps(plain, unquote(route.index), _routing(incoming))
    return await offload_steps(len(plain), reading)


def _routing(incoming: IncomingRequest) -> str | None:
    values = parse_qs(incoming.query.decode("ascii")).get("routing")
    return values[-1] if values else None


# Approximate bytes of an item's result.
_RESULT_BYTES = 200


class BulkRejectedError(Exception):
    """The engine rejected the first part of a request, so that nothing was written; its response is forwarded."""

    def __init__(self, answer: BufferedResponse) -> None:
        super().__init__(answer.status)
        self.answer = answer


# The limit that is learned from refused requests never falls below this.
_MIN_PART_BYTES = 64 * 1024


@dataclass
class PartLimit:
    """The maximum size of a bulk request to the engine, shared by all requests and lowered when the engine refuses one.

    Attributes:
        bytes: The limit.
    """

    bytes: int

    def refused(self, size: int) -> None:
        """Lower the limit: the engine, or a proxy before it, has refused a request of this size."""
        self.bytes = min(self.bytes, max(_MIN_PART_BYTES, size // 2))


class BulkSender:
    """Sends the items of one bulk request in order and joins the responses.

    Args:
        incoming: The request.
        upstream: The engine.
        limit: Limits the requests to the engine: vectors make a request larger than the client sent it.

    Attributes:
        started: Whether the engine has accepted a part.
    """

    def __init__(self, incoming: IncomingRequest, upstream: Upstream, limit: PartLimit) -> None:
        self._incoming = incoming
        self._upstream = upstream
        self._limit = limit
        self._joined = JoinedBulkResponse()
        self._headers = response_headers(upstream.engine_type, 0)
        self._failures: list[EngineUnreachable] = []  # since the last response
        self.started = False

    @property
    def unreachable(self) -> EngineUnreachable | None:
        """The error after which no more parts are sent: the engine did not respond twice in a row."""
        return self._failures[-1] if len(self._failures) > 1 else None

    async def parts(self, items: Sequence[BulkItem], rejected: Mapping[int, EsSbertError]) -> list[list[BulkItem]]:
        """Split the items into the parts to send.

        Args:
            rejected: Number of an item that is not sent → its error.
        """
        accepted = [item for number, item in enumerate(items) if number not in rejected]
        return await offload_if_large(_source_bytes(accepted), list, group_actions(accepted, self._limit.bytes))

    async def send(self, items: Sequence[BulkItem], rejected: Mapping[int, EsSbertError]) -> None:
        """Send the next items. A part that is refused is sent in smaller ones.

        Args:
            rejected: Number of an item that is not sent → its error.

        Raises:
            BulkRejectedError: the engine rejected the first part.
            EngineUnreachable: the engine did not respond to the first part.
        """
        answers: list[Json] = []
        parts = await self.parts(items, rejected)
        while parts:
            part = parts.pop(0)
            answer = await self._post(await join_items(part))
            status = answer.status if isinstance(answer, BufferedResponse) else 0
            if classify_result(status, actions=len(part)) is BulkOutcome.SPLIT:
                size = sum(len(item.body) for item in part)
                if status == TOO_LARGE:
                    self._limit.refused(size)
                parts[:0] = await offload_if_large(size, split_in_half, part)
            else:
                answers.append(await _part_response(part, answer))
        await self._add(answers, items, rejected)

    async def reject(self, items: Sequence[BulkItem], error: EsSbertError) -> None:
        """Reject the next items without sending them: add an error result for each."""
        if isinstance(error, EngineUnreachable):
            self._failures.append(error)
        await self._add((), items, dict.fromkeys(range(len(items)), error))

    async def reply(self, send: Send) -> int:
        """Send the joined response to the client, in parts: all of it may take a hundred megabytes."""
        length, parts = self._joined.response()
        headers = [(name, value) for name, value in self._headers if name.lower() != b"content-length"]
        headers.append((b"content-length", b"%d" % length))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while (part := await offload_if_large(length, next, parts, None)) is not None:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return 200

    async def _add(
        self, answers: Sequence[Json], items: Sequence[BulkItem], rejected: Mapping[int, EsSbertError]
    ) -> None:
        await offload_if_large(len(items) * _RESULT_BYTES, self._joined.add, answers, items, rejected)

    async def _post(self, body: bytes) -> BufferedResponse | EngineUnreachable:
        """Send a part; return the response, or the error if the engine did not respond to a later part."""
        try:
            answer = await fetch_response(
                self._upstream, _with_json_response(OutgoingRequest.with_body(self._incoming, body))
            )
        except EngineUnreachable as error:
            if not self.started:
                raise
            self._failures.append(error)
            return error
        self._failures.clear()
        if not self.started and answer.status != TOO_LARGE:
            if answer.status != 200:
                # The engine rejects the request as a whole.
                raise BulkRejectedError(answer)
            self._headers = answer.headers
            self.started = True
        return answer


async def join_items(items: Sequence[BulkItem]) -> bytes:
    """Join items into the body of a request."""
    return await offload_if_large(_source_bytes(items), lambda: b"".join([item.body for item in items]))


def _source_bytes(items: Sequence[BulkItem]) -> int:
    return sum(len(item.source) for item in items)


def _with_json_response(outgoing: OutgoingRequest) -> OutgoingRequest:
    """Remove the headers and parameters that ask for a response in YAML, CBOR or SMILE."""
    headers = [(name, value) for name, value in outgoing.headers if name != b"accept" or b"json" in value.lower()]
    path, mark, query = outgoing.target.partition(b"?")
    parameters = b"&".join(pair for pair in query.split(b"&") if not pair.startswith(b"format="))
    return replace(outgoing, headers=headers, target=path + mark + parameters)


async def _part_response(part: Sequence[BulkItem], answer: BufferedResponse | EsSbertError) -> Json:
    """Return a part's contribution to the joined response, even if the engine rejected the part."""
    if isinstance(answer, BufferedResponse) and answer.status == TOO_LARGE:  # one item, which cannot be split
        answer = enlarged_error("the document", len(part[0].source))
    if isinstance(answer, EsSbertError):
        return failed_part_response(part, http_status(answer), error_object(answer))
    whole = await offload_if_large(len(answer.body), parse_bulk_response, answer.body)
    if answer.status == 200 and whole is not None:
        return whole
    message = f"the engine responded to a part of the request with status {answer.status}"
    reason = {"type": "es_sbert_part_refused", "reason": message}
    error = reason if whole is None else whole.get("error", reason)
    return failed_part_response(part, answer.status if answer.status >= 400 else 502, error)


# The fastest level. It is sufficient, because results are similar.
_ZLIB_LEVEL = 1
# Members with a time in milliseconds, which are summed up.
_DURATIONS = ("took", "ingest_took")


class JoinedBulkResponse:
    """The joined response to a bulk request, in the order of its items. Not thread-safe.

    The engine applies `filter_path` to its own results; error results that the gateway adds are complete.
    """

    def __init__(self) -> None:
        self._members: Json = {}
        self._durations: Counter[str] = Counter()
        self._errors = self._has_items = self._lacks_took = False
        # Compressed, with their lengths: results of a hundred thousand items take a hundred megabytes.
        self._results: list[tuple[bytes, int]] = []

    def add(self, answers: Sequence[Json], items: Sequence[BulkItem], rejected: Mapping[int, EsSbertError]) -> None:
        """Add the results of the next items.

        Args:
            answers: Responses to the parts in which the items were sent, in order; empty if nothing was sent.
            items: The items.
            rejected: Number of an item that was not sent → its error.
        """
        for answer in [*answers, failed_part_response((), 0, None)] if rejected else answers:
            self._members = {name: value for name, value in answer.items() if name != "items"} | self._members
            self._errors |= answer.get("errors", False)
            self._lacks_took |= "took" not in answer
            self._has_items |= "items" in answer
            self._durations.update({name: answer[name] for name in _DURATIONS if name in answer})
        results = _merge_results(answers, items, rejected)
        self._errors |= any("error" in result for result_by_action in results for result in result_by_action.values())
        if results:
            joined = b",".join(map(write_object, results))
            self._results.append((zlib.compress(joined, _ZLIB_LEVEL), len(joined)))

    def response(self) -> tuple[int, Iterator[bytes]]:
        """Return the length of the joined response, and the response in parts."""
        members = {**self._members, **self._durations}
        if self._lacks_took:
            members.pop("took", None)
        if "errors" in members:
            members["errors"] = self._errors
        head = write_object(members)[:-1]
        if not self._has_items:
            return len(head) + 1, iter((head, b"}"))
        head += (b"," if members else b"") + b'"items":['
        commas = max(0, len(self._results) - 1)
        length = len(head) + sum(length for _, length in self._results) + commas + len(b"]}")
        results = ((b"," if number else b"") + zlib.decompress(part) for number, (part, _) in enumerate(self._results))
        return length, chain([head], results, [b"]}"])


def parse_bulk_response(body: bytes) -> Json | None:
    """Parse a response; None if it is neither a bulk response nor an error."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            # Results may contain lone surrogates.
            answer = parse_object(body)
        except UnreadableJson:
            return None
    if not isinstance(answer, dict) or not all(isinstance(answer.get(name, 0), int) for name in _DURATIONS):
        return None
    items = answer.get("items", [])
    is_valid = isinstance(items, list) and all(
        isinstance(item, dict) and all(isinstance(result, dict) for result in item.values()) for item in items
    )
    return answer if is_valid else None


def failed_part_response(items: Sequence[BulkItem], status: int, error: object) -> Json:
    """Return the contribution to the joined response of a part that the engine rejected as a whole."""
    return {"took": 0, "errors": True, "items": [_error_result(item, status, error) for item in items]}


def _error_result(item: BulkItem, status: int, error: object) -> Json:
    return {str(item.operation): {"_index": item.index, "_id": item.id, "status": status, "error": error}}


def _merge_results(
    answers: Sequence[Json], items: Sequence[BulkItem], rejected: Mapping[int, EsSbertError]
) -> list[Json]:
    received = [result for answer in answers for result in answer.get("items", ())]
    error_results = {
        number: _error_result(items[number], http_status(error), error_object(error))
        for number, error in sorted(rejected.items())
    }
    if len(received) + len(error_results) != len(items):
        # It is unknown which items these results of an unusual response belong to.
        return [*received, *error_results.values()]
    others = iter(received)
    return [error_results[number] if number in error_results else next(others) for number in range(len(items))]
