"""Bulk requests with vectors on their way: in parts where they have become too large, without what was refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from starlette.types import Send

from es_sbert.engines.protocol import Json
from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.failures import answer_headers, error_object, status_of
from es_sbert.gateway.tasks import run_by_size
from es_sbert.gateway.wire.forward import Answer, Outgoing, fetch
from es_sbert.gateway.wire.incoming import Incoming
from es_sbert.gateway.wire.upstream import Upstream
from es_sbert.gateway.writes.answers import AnswerText, JoinedAnswer, failed_part, read_answer
from es_sbert.gateway.writes.items import Item
from es_sbert.index.bulk_lines import bodies

# Bytes of an item's result, about.
_RESULT = 200


class RequestRefused(Exception):
    """The engine refused the first part of a request, before anything was written: its answer is that to all parts."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class BulkSender:
    """Sends the items of one bulk request, in their order, and joins the answers to one.

    Args:
        incoming: The request.
        upstream: The engine.
        most_bytes: Of one request to the engine: vectors make a request larger than the client meant it to be.

    Attributes:
        began: Whether the engine has taken a part.
    """

    def __init__(self, incoming: Incoming, upstream: Upstream, most_bytes: int) -> None:
        self._incoming = incoming
        self._upstream = upstream
        self._most_bytes = most_bytes
        self._joined = JoinedAnswer()
        self._headers = answer_headers(upstream.flavour, 0)
        self._failures: list[EngineUnreachable] = []  # since the last answer
        self.began = False

    @property
    def lost(self) -> EngineUnreachable | None:
        """Why no more need be tried: the engine has not answered for two times."""
        return self._failures[-1] if len(self._failures) > 1 else None

    async def parts(self, items: Sequence[Item], refused: Mapping[int, EsSbertError]) -> list[list[Item]]:
        """The items in the parts that are sent.

        Args:
            refused: Number of an item that is not sent → what its result says.
        """
        sent = [item for number, item in enumerate(items) if number not in refused]
        return await run_by_size(_size(sent), _parts, sent, self._most_bytes)

    async def send(self, items: Sequence[Item], refused: Mapping[int, EsSbertError]) -> None:
        """Send the next items.

        Args:
            refused: Number of an item that is not sent → what its result says.

        Raises:
            RequestRefused: the engine refused the first part.
            EngineUnreachable: no answer came to the first part.
        """
        answers = [await self._send(part) for part in await self.parts(items, refused)]
        await run_by_size(len(items) * _RESULT, self._joined.add, answers, items, refused)

    async def send_as_it_came(self, body: bytes, items: Callable[[], Sequence[Item]]) -> None:
        """Send the next items, none of which is refused.

        Args:
            body: Their bytes.
            items: Reads them, where their results must be told apart.

        Raises:
            RequestRefused: the engine refused the first part.
            EngineUnreachable: no answer came to the first part.
        """
        answer = await self._post(body)
        if isinstance(answer, Answer) and answer.status == 200:
            text = AnswerText.of(answer.body)
            if text is not None:
                await run_by_size(len(text.results), self._joined.add_text, text)
                return
        sent = await run_by_size(len(body), items)
        await run_by_size(len(body), self._joined.add, [await _results(sent, answer)], sent, {})

    async def refuse(self, items: Sequence[Item], error: EsSbertError) -> None:
        """Add results for the next items, none of which is sent."""
        if isinstance(error, EngineUnreachable):
            self._failures.append(error)
        refused = dict.fromkeys(range(len(items)), error)
        await run_by_size(len(items) * _RESULT, self._joined.add, (), items, refused)

    async def reply(self, send: Send) -> int:
        """Send the joined answer to the caller."""
        headers = [(name, value) for name, value in self._headers if name.lower() != b"content-length"]
        headers.append((b"content-length", b"%d" % self._joined.length))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        parts = self._joined.body()
        while (part := await run_by_size(self._joined.length, next, parts, None)) is not None:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return 200

    async def _send(self, part: list[Item]) -> Json:
        return await _results(part, await self._post(await joined_body(part)))

    async def _post(self, body: bytes) -> Answer | EngineUnreachable:
        """The answer to a part, or why there is none to a later one."""
        try:
            answer = await fetch(self._upstream, _answered_in_json(Outgoing.rewritten(self._incoming, body)))
        except EngineUnreachable as error:
            if not self.began:
                raise
            self._failures.append(error)
            return error
        self._failures.clear()
        if not self.began:
            if answer.status != 200:
                # What the engine has against the request it has against all of it.
                raise RequestRefused(answer)
            self._headers = answer.headers
            self.began = True
        return answer


async def joined_body(items: Sequence[Item], rest: bytes = b"") -> bytes:
    """The bytes of a request with these items.

    Args:
        rest: What follows them.
    """
    return await run_by_size(_size(items), _joined_body, items, rest)


def _joined_body(items: Sequence[Item], rest: bytes) -> bytes:
    return b"".join([*(item.body for item in items), rest])


def _parts(items: Sequence[Item], most_bytes: int) -> list[list[Item]]:
    return list(bodies(items, most_bytes))


def _size(items: Sequence[Item]) -> int:
    return sum(len(item.source) for item in items)


def _answered_in_json(outgoing: Outgoing) -> Outgoing:
    """The same request with an answer that can be put together with others: YAML, CBOR and SMILE are asked for by
    header or by the parameter `format`."""
    headers = [(name, value) for name, value in outgoing.headers if name != b"accept" or b"json" in value.lower()]
    path, mark, query = outgoing.target.partition(b"?")
    asked = b"&".join(pair for pair in query.split(b"&") if not pair.startswith(b"format="))
    return replace(outgoing, headers=headers, target=path + mark + asked)


async def _results(part: Sequence[Item], answer: Answer | EngineUnreachable) -> Json:
    """What a part adds to the answer. Where the engine refused a later one as a whole, others are written already."""
    if isinstance(answer, EngineUnreachable):
        return failed_part(part, status_of(answer), error_object(answer))
    whole = await run_by_size(len(answer.body), read_answer, answer.body)
    if answer.status == 200 and whole is not None:
        return whole
    reason = {
        "type": "es_sbert_part_refused",
        "reason": f"the engine answered a part of the request with {answer.status}",
    }
    error = reason if whole is None else whole.get("error", reason)
    return failed_part(part, answer.status if answer.status >= 400 else 502, error)
