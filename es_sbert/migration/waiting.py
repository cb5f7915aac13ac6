"""Waits for the last writes to the old index."""

from __future__ import annotations

import time

from es_sbert.errors import RequestFailed
from es_sbert.migration.copying import Transfer

_POLL_SECONDS = 0.5
# Requests that looked the alias up before the swap arrive at the old index within this time.
_QUIET_SECONDS = 2.0


def wait_for_writes(transfer: Transfer) -> None:
    """Until what was on its way when the block came is everywhere.

    Raises:
        RequestFailed: it is not, for longer than the policy allows.
        EngineError: the engine failed.
    """
    deadline = time.monotonic() + transfer.policy.budget
    while any(n.highest != n.everywhere for n in transfer.engine.sequence_numbers(transfer.source)):
        if time.monotonic() > deadline:
            raise RequestFailed(
                f"writes to {transfer.source} are still on their way to its replicas",
                "Look at `GET _cluster/health`, and run the same command again.",
            )
        time.sleep(_POLL_SECONDS)


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
