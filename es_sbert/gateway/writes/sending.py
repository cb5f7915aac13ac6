"""Bulk requests with vectors on their way: in parts where they have become too large, without what was refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from starlette.types import Send

from es_sbert.engines.protocol import Json
from es_sbert.errors import EngineUnreachable, EsSbertError
from es_sbert.gateway.failures import answer_headers, error_object, status_of
from es_sbert.gateway.wire.forward import Answer, Outgoing, fetch, forward, reply
from es_sbert.gateway.wire.incoming import Incoming
from es_sbert.gateway.wire.json_bodies import NotPlainJson, parse_object, write_object
from es_sbert.gateway.wire.upstream import Upstream
from es_sbert.gateway.writes.answers import failed_part, joined
from es_sbert.gateway.writes.items import Bulk, Item
from es_sbert.index.bulk_lines import bodies


async def send_bulk(incoming: Incoming, send: Send, upstream: Upstream, bulk: Bulk,
                    refused: Mapping[int, EsSbertError], most_bytes: int) -> int:  # fmt: skip
    """Send a bulk request on and its answer back.

    Args:
        bulk: With vectors.
        refused: Number of an item that is not sent → what its result says.
        most_bytes: Of one request to the engine: vectors make a request larger than the client meant it to be.

    Returns:
        The answer's status; 0 where the caller did not wait for it.

    Raises:
        EngineUnreachable: no answer came to the first part.
    """
    sent = [item for number, item in enumerate(bulk.items) if number not in refused]
    parts = list(bodies(sent, most_bytes))
    if len(parts) == 1 and not refused:
        return await forward(incoming, send, upstream, Outgoing.rewritten(incoming, bulk.body))
    answers: list[Json] = []
    headers = answer_headers(upstream.flavour, 0)
    for number, part in enumerate(parts):
        outgoing = _answered_in_json(Outgoing.rewritten(incoming, b"".join(item.body for item in part)))
        try:
            answer = await fetch(upstream, outgoing)
        except EngineUnreachable as error:
            if number == 0:
                raise
            answers.append(failed_part(part, status_of(error), error_object(error)))
            continue
        whole = _parsed(answer)
        if answer.status != 200 and number == 0:
            # Nothing was written: what the engine has against the request it has against all of it.
            return await reply(send, answer)
        if answer.status != 200 or whole is None:
            whole = _failed(part, answer, whole)
        elif number == 0:
            headers = answer.headers
        answers.append(whole)
    return await reply(send, Answer(200, headers, write_object(joined(answers, bulk.items, refused))))


def _answered_in_json(outgoing: Outgoing) -> Outgoing:
    """The same request with an answer that can be put together with others: YAML, CBOR and SMILE are asked for by
    header or by the parameter `format`."""
    headers = [(name, value) for name, value in outgoing.headers if name != b"accept" or b"json" in value.lower()]
    path, mark, query = outgoing.target.partition(b"?")
    asked = b"&".join(pair for pair in query.split(b"&") if not pair.startswith(b"format="))
    return replace(outgoing, headers=headers, target=path + mark + asked)


def _parsed(answer: Answer) -> Json | None:
    try:
        return parse_object(answer.body)
    except NotPlainJson:
        return None


def _failed(part: list[Item], answer: Answer, whole: Json | None) -> Json:
    """What a later part adds that the engine refused as a whole: others are written already."""
    reason = {
        "type": "es_sbert_part_refused",
        "reason": f"the engine answered a part of the request with {answer.status}",
    }
    error = reason if whole is None else whole.get("error", reason)
    return failed_part(part, answer.status if answer.status >= 400 else 502, error)
