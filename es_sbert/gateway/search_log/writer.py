"""Writes records of searches into the index of their month."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from es_sbert.engines.failures import failed_request, root_cause
from es_sbert.errors import EngineUnreachable, EsSbertError, RequestFailed
from es_sbert.gateway.search_log.record import SearchRecord, Wording, bulk_lines, month_index
from es_sbert.mappings import read_body

# Method, path, body, content type → status and parsed answer, by the gateway's own credentials. Raises EsSbertError
# where no answer comes.
Ask = Callable[[str, str, bytes, str], Awaitable[tuple[int, Any]]]

_JSON, _NDJSON = "application/json", "application/x-ndjson"
_BUSY = frozenset({429, 502, 503, 504})
# A month's index that somebody deletes would come back by itself, without its mapping: it is made sure of again.
_SURE_SECONDS = 60.0
# Nobody waits for these requests: an engine that takes longer is asked again later.
_SECONDS = 30.0
_LABEL = "the engine of the search log"


@dataclass(frozen=True)
class Written:
    """What became of a batch.

    Attributes:
        written: Records that are in the log.
        refused: Records that will never be.
        reason: The engine's, for the last of them.
        again: Records that the engine was too busy for.
    """

    written: int
    refused: int
    reason: str
    again: list[SearchRecord]


class SearchWriter:
    """The indices of a log.

    Args:
        name: Their name without the month.
        wording: What is written of texts.
        gateway: Which gateway it is.
        ask: Speaks to the engine.
    """

    def __init__(self, name: str, wording: Wording, gateway: str, ask: Ask) -> None:
        self._name = name
        self._wording = wording
        self._gateway = gateway
        self._ask = ask
        self._sure: dict[str, float] = {}

    async def prepare(self) -> None:
        """Make the index of this month.

        Raises:
            EsSbertError: no answer, or a refusal.
        """
        await self._make_sure(month_index(self._name, datetime.now(UTC)))

    async def write(self, batch: Sequence[SearchRecord]) -> Written:
        """One bulk request.

        Raises:
            EsSbertError: it failed as a whole.
        """
        for index in dict.fromkeys(month_index(self._name, search.at) for search in batch):
            await self._make_sure(index)
        body = bulk_lines(batch, self._name, self._wording, self._gateway)
        status, answer = await self._asked("POST", "/_bulk?filter_path=items.*.status,items.*.error", body, _NDJSON)
        if not 200 <= status < 300:
            raise failed_request(status, answer, label=_LABEL, action="POST /_bulk")
        items = answer.get("items", []) if isinstance(answer, dict) else []
        if len(items) != len(batch):
            raise EngineUnreachable(f"{_LABEL} broke off its answer", "Check the network, and any proxy in between.")
        return _sorted_out(batch, [item["create"] for item in items])

    async def _asked(self, method: str, path: str, body: bytes, content_type: str) -> tuple[int, Any]:
        try:
            async with asyncio.timeout(_SECONDS):
                return await self._ask(method, path, body, content_type)
        except TimeoutError:
            raise EngineUnreachable(
                f"{_LABEL} did not answer within {_SECONDS:g} seconds", "Look at its load: `GET _nodes/hot_threads`."
            ) from None

    async def _make_sure(self, index: str) -> None:
        """Make an index unless it is there."""
        if time.monotonic() < self._sure.get(index, float("-inf")) + _SURE_SECONDS:
            return
        status, answer = await self._asked("PUT", f"/{index}", orjson.dumps(read_body("common/searches")), _JSON)
        if not 200 <= status < 300 and root_cause(answer)[0] != "resource_already_exists_exception":
            raise failed_request(status, answer, label=_LABEL, action=f"PUT /{index}")
        self._sure[index] = time.monotonic()


def is_lasting(error: EsSbertError) -> bool:
    """Whether sending the same again is of no use."""
    if isinstance(error, EngineUnreachable):
        return False
    return not (isinstance(error, RequestFailed) and (error.status in _BUSY or error.status >= 500))


def _sorted_out(batch: Sequence[SearchRecord], results: Sequence[dict[str, Any]]) -> Written:
    written, refused, reason, again = 0, 0, "", []
    for search, result in zip(batch, results, strict=True):
        status = result["status"]
        if status in _BUSY:
            again.append(search)
        elif status < 300 or status == 409:  # 409: written the first time, and the answer got lost
            written += 1
        else:
            refused += 1
            reason = root_cause({"error": result.get("error")})[1]
    return Written(written, refused, reason, again)
