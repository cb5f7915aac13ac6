"""Waiting for an engine that starts: connecting, planning and preparing a load while nothing answers yet."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from es_sbert.errors import EngineError, HostUnknown, TlsFailed
from es_sbert.events import record
from es_sbert.ingest.retry import Backoff, RetryPolicy, is_transient

T = TypeVar("T")

# Seconds: an engine that is back is not left waiting for half a minute, as one that is overloaded is.
_LONGEST_PAUSE = 5.0


def wait_for_engine(call: Callable[[], T], seconds: float, no_waiting: threading.Event | None = None) -> T:
    """The call's answer, waited for while the engine is not there or not ready, as in the middle of a load.

    What it waits for is said at once: an address that is mistyped looks like an engine that is about to start.

    Args:
        call: May be called more than once.
        seconds: How long to wait after the first failure; 0 fails at once.
        no_waiting: Ends the wait once it is set.

    Raises:
        EngineError: the engine did not come in time, or failed in a way that does not pass: wrong credentials, TLS, a
            host name that nobody knows.
    """
    backoff = Backoff(RetryPolicy(seconds, ceiling=_LONGEST_PAUSE), no_waiting)
    began: float | None = None
    while True:
        try:
            answer = call()
        except EngineError as error:
            if not may_come_up(error):
                raise
            if began is None and seconds:
                began = time.monotonic()
                record(
                    "waiting_began",
                    f"Waiting for the engine, up to {seconds:g} s: {error.message} (--retry-seconds 0 fails at once)",
                    logging.WARNING, reason=error.message, seconds=seconds,
                )  # fmt: skip
            if not backoff.wait():
                if began is not None:
                    error.message += f" (waited for {time.monotonic() - began:,.0f} s)"
                raise
        else:
            if began is not None:
                waited = time.monotonic() - began
                record(
                    "waiting_ended", f"The engine answers after {waited:,.1f} s", logging.WARNING,
                    seconds=round(waited, 3),
                )  # fmt: skip
            return answer


def may_come_up(error: EngineError) -> bool:
    """Whether an engine that is starting may be what fails."""
    return is_transient(error) and not isinstance(error, TlsFailed | HostUnknown)
