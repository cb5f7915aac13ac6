"""Waits for the last writes to the old index."""

from __future__ import annotations

import time
from collections.abc import Sequence

from es_sbert.engines.protocol import SequenceNumbers
from es_sbert.errors import RequestFailed
from es_sbert.migration.copying import Transfer

_POLL_SECONDS = 0.1
# Requests that looked the alias up before the swap arrive at the old index within this time.
_QUIET_SECONDS = 2.0


def wait_for_writes(transfer: Transfer) -> None:
    """Until every write that the old index has taken is on all copies.

    Raises:
        RequestFailed: it is not, for longer than the policy allows.
        EngineError: the engine failed.
    """
    deadline = time.monotonic() + transfer.policy.budget
    engine, source = transfer.engine, transfer.source
    if not _is_everywhere(engine.sequence_numbers(source)):
        # With an asynchronous translog a write counts once the translog is on disk, which may be in five seconds.
        engine.flush(source)
    while not _is_everywhere(engine.sequence_numbers(source)):
        if time.monotonic() > deadline:
            raise RequestFailed(
                f"writes to {transfer.source} are still on their way to its replicas",
                "Look at `GET _cluster/health`, and run the same command again.",
            )
        time.sleep(_POLL_SECONDS)


def _is_everywhere(numbers: Sequence[SequenceNumbers]) -> bool:
    return all(number.highest == number.everywhere for number in numbers)


def wait_for_quiet(transfer: Transfer) -> None:
    """Until no more writes come to the old index by an alias that was looked up before the swap.

    Where they never end, as long as the policy allows.

    Raises:
        EngineError: the engine failed.
    """
    deadline = time.monotonic() + transfer.policy.budget
    seen, since = transfer.engine.sequence_numbers(transfer.source), time.monotonic()
    while time.monotonic() - since < _QUIET_SECONDS and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        numbers = transfer.engine.sequence_numbers(transfer.source)
        if numbers != seen:
            seen, since = numbers, time.monotonic()
