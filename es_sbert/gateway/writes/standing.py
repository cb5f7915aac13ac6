"""The documents that updates of a part of a text are about, as the engine has them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from es_sbert.engines.protocol import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.tasks import run_by_size
from es_sbert.gateway.wire.callers import identity
from es_sbert.gateway.wire.forward import Answer, Outgoing, fetch
from es_sbert.gateway.wire.incoming import Headers
from es_sbert.gateway.wire.upstream import Reply, Upstream
from es_sbert.gateway.writes.changes import Absent, Standing
from es_sbert.gateway.writes.written import Key, Written

_ACTION = "POST /_mget"


async def standing_documents(
    upstream: Upstream, written: Iterable[Written], indices: Mapping[str, str], headers: Headers
) -> tuple[dict[Key, Standing], dict[Key, EsSbertError]]:
    """Look up what updates need to know, in one request with the caller's rights.

    Args:
        indices: Index as items call it → the name by which one document can be looked up.
        headers: The caller's.

    Returns:
        The documents, and why some could not be read.

    Raises:
        EngineUnreachable: no answer came.
    """
    wanted: dict[Key, Json] = {}
    for one in written:
        if one.key is not None and one.needed:
            place = {"_index": indices[one.item.index], "_id": one.item.id}
            routing = {} if one.item.routing is None else {"routing": one.item.routing}
            known = wanted.setdefault(one.key, {**place, **routing, "_source": []})
            known["_source"] = list(dict.fromkeys([*known["_source"], *one.needed]))
    if not wanted:
        return {}, {}
    answer = await _asked(upstream, headers, {"docs": list(wanted.values())})
    if answer.status != 200 or not isinstance(answer.body, dict):
        error = upstream.refusal(answer, _ACTION)
        return dict.fromkeys(wanted, Absent.UNKNOWN), dict.fromkeys(wanted, error)
    found: dict[Key, Standing] = {}
    problems: dict[Key, EsSbertError] = {}
    with upstream.reading(_ACTION):
        for key, document in zip(wanted, answer.body["docs"], strict=True):
            found[key] = _standing(document)
            if found[key] is Absent.UNKNOWN:
                problems[key] = upstream.refusal(Reply(_status(document), document), _ACTION)
    return found, problems


async def _asked(upstream: Upstream, headers: Headers, body: Json) -> Reply:
    """As `Upstream.ask`, with a large answer read in a thread: it holds as many documents as a request updates."""
    sent = [*identity(headers), (b"content-type", b"application/json"), (b"accept", b"application/json")]
    answer = await fetch(upstream, Outgoing("POST", b"/_mget", sent, orjson.dumps(body)))
    return await run_by_size(len(answer.body), _read, answer)


def _read(answer: Answer) -> Reply:
    try:
        # Not orjson: documents may hold lone surrogates.
        return Reply(answer.status, json.loads(answer.body))
    except (ValueError, RecursionError):
        return Reply(answer.status, None)


def _standing(document: Json) -> Standing:
    if "error" in document:
        missing = document["error"].get("type") == "index_not_found_exception"
        return Absent.MISSING if missing else Absent.UNKNOWN
    source: Any = document.get("_source")
    if not document.get("found"):
        return Absent.MISSING
    return source if isinstance(source, dict) else Absent.UNKNOWN


def _status(document: Json) -> int:
    denied = document.get("error", {}).get("type") == "security_exception"
    return 403 if denied else 503
