"""Send a bulk request with vectors, in parts if it has become too large, and join the responses."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson

from es_sbert.engines.rest import Json
from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.errors import error_object, http_status, response_headers
from es_sbert.gateway.forward import (
    TOO_LARGE,
    BufferedResponse,
    OutgoingRequest,
    enlarged_error,
    fetch_response,
)
from es_sbert.gateway.incoming_request import IncomingRequest, UnreadableJson, parse_object, write_object
from es_sbert.gateway.upstream import Upstream
from es_sbert.gateway.writes.bulk_items import BulkItem
from es_sbert.index.document_vectors import group_actions

# Approximate bytes of an item's result.
_RESULT_BYTES = 200


class BulkRejectedError(Exception):
    """The engine rejected the first part of a request, so that nothing was written; its response is forwarded."""

    def __init__(self, answer: BufferedResponse) -> None:
        super().__init__(answer.status)
        self.answer = answer


# The limit that is learned from refused requests never falls below this.
_MIN_PART_BYTES = 64 * 1024


class PartLimit:
    """The maximum size of a bulk request to the engine, shared by all requests and lowered when the engine refuses one.

    Args:
        limit: The initial limit.

    Attributes:
        bytes: The limit.
    """

    def __init__(self, limit: int) -> None:
        self.bytes = limit

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
        self._size = 0  # approximate bytes of the joined response
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
        """Send the next items. A part that is refused as too large is sent in smaller ones.

        Args:
            rejected: Number of an item that is not sent → its error.

        Raises:
            BulkRejectedError: the engine rejected the first part.
            EngineUnreachable: the engine did not respond to the first part.
        """
        answers = [answer for part in await self.parts(items, rejected) for answer in await self._send(part)]
        await self._add(answers, items, rejected)

    async def send_refused(self, items: Sequence[BulkItem]) -> None:
        """Send items in smaller parts, because all of them together were refused as too large.

        Raises:
            BulkRejectedError, EngineUnreachable: see `send`.
        """
        await self._add(await self._send_smaller(items), items, {})

    async def reject(self, items: Sequence[BulkItem], error: EsSbertError) -> None:
        """Reject the next items without sending them: add an error result for each."""
        if isinstance(error, EngineUnreachable):
            self._failures.append(error)
        await self._add((), items, dict.fromkeys(range(len(items)), error))

    async def joined_response(self) -> BufferedResponse:
        """The response to the client."""
        return BufferedResponse(200, self._headers, await offload_if_large(self._size, self._joined.body))

    async def _add(
        self, answers: Sequence[Json], items: Sequence[BulkItem], rejected: Mapping[int, EsSbertError]
    ) -> None:
        size = len(items) * _RESULT_BYTES
        self._size += size
        await offload_if_large(size, self._joined.add, answers, items, rejected)

    async def _send(self, part: Sequence[BulkItem]) -> list[Json]:
        """Send a part, and return the responses; several if it had to be split."""
        answer = await self._post(await join_items(part))
        if isinstance(answer, BufferedResponse) and answer.status == TOO_LARGE:
            return await self._send_smaller(part)
        return [await _part_response(part, answer)]

    async def _send_smaller(self, part: Sequence[BulkItem]) -> list[Json]:
        """Send a refused part in parts of half its size; a single item fails, because it cannot be split."""
        if len(part) == 1:
            error = enlarged_error("the document", len(part[0].source))
            return [failed_part_response(part, http_status(error), error_object(error))]
        size = sum(len(item.body) for item in part)
        self._limit.refused(size)
        smaller: list[list[BulkItem]] = await offload_if_large(size, list, group_actions(part, size // 2))
        return [answer for each in smaller for answer in await self._send(each)]

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


async def _part_response(part: Sequence[BulkItem], answer: BufferedResponse | EngineUnreachable) -> Json:
    """Return a part's contribution to the joined response, even if the engine rejected the part."""
    if isinstance(answer, EngineUnreachable):
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
        self._errors = self._has_items = False
        self._results: list[bytes] = []  # compressed: results of a hundred thousand items take a hundred megabytes

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
            self._has_items |= "items" in answer
            self._durations.update({name: answer[name] for name in _DURATIONS if name in answer})
        results = _merge_results(answers, items, rejected)
        self._errors |= any("error" in result for result_by_action in results for result in result_by_action.values())
        if results:
            self._results.append(zlib.compress(b",".join(map(write_object, results)), _ZLIB_LEVEL))

    def body(self) -> bytes:
        """Return the joined response."""
        members = {**self._members, **self._durations}
        if "errors" in members:
            members["errors"] = self._errors
        head = write_object(members)[:-1]
        if not self._has_items:
            return head + b"}"
        results = b",".join(map(zlib.decompress, self._results))
        return b"".join((head, b"," if members else b"", b'"items":[', results, b"]}"))


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
