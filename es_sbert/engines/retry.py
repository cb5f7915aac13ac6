"""Retry and throttle engine requests: transient failures, exponential backoff, adaptive sizes of bulk requests."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from es_sbert.errors import EngineError, EngineUnreachable, HostUnknown, RequestFailed, TlsFailed
from es_sbert.messages import log_event

T = TypeVar("T")

_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter, within a budget of time.

    Attributes:
        budget: Seconds after the first failure during which to try again.
        first: Longest first wait in seconds; it doubles with every failure.
        ceiling: Longest wait in seconds.
    """

    budget: float
    first: float = 0.5
    ceiling: float = 30.0

    def longest_wait(self, failures: int) -> float:
        """Upper bound in seconds of the wait after this many failures (1, 2, …)."""
        return min(self.ceiling, self.first * 2.0 ** min(failures - 1, 32))


class Backoff:
    """The waits of one request.

    Args:
        policy: How long to wait.
        no_waiting: Ends a wait, and every later one, once it is set; None where only an exception does, as by Ctrl-C.
    """

    def __init__(self, policy: RetryPolicy, no_waiting: threading.Event | None = None) -> None:
        self._policy = policy
        self._no_waiting = no_waiting or threading.Event()
        self._failures = 0
        self._deadline = 0.0

    def wait(self) -> bool:
        """Wait after a failure; False where the budget is spent or nothing is waited for any more."""
        now = time.monotonic()
        if not self._failures:
            self._deadline = now + self._policy.budget
        self._failures += 1
        if now >= self._deadline:
            return False
        # Full jitter: clients that failed together must not come back together.
        pause = random.uniform(0, self._policy.longest_wait(self._failures))
        return not self._no_waiting.wait(min(pause, self._deadline - now))

    @property
    def left(self) -> float:
        """Seconds of the budget that are left; all of it before the first failure."""
        return max(0.0, self._deadline - time.monotonic()) if self._failures else self._policy.budget

    def succeeded(self) -> None:
        """Something went through: the budget starts anew with the next failure."""
        self._failures = 0


def is_retryable(status: int) -> bool:
    """Whether a status goes away by itself: a broken connection (0), too many requests, or the server's own trouble."""
    return status in (0, _TOO_MANY_REQUESTS) or status >= 500


def is_transient(error: EngineError) -> bool:
    """Whether the same request may well succeed later."""
    if isinstance(error, RequestFailed):
        return is_retryable(error.status)
    return isinstance(error, EngineUnreachable)


class Retrier(Protocol):
    """Gives a call's answer; transient failures are waited out."""

    def __call__(self, call: Callable[[], T]) -> T: ...


def make_retrier(policy: RetryPolicy, on_wait: Callable[[str], None]) -> Retrier:
    """`with_retries` for a command that only Ctrl-C ends.

    Args:
        on_wait: Told why a call is tried again.
    """

    def answer(call: Callable[[], T]) -> T:
        return with_retries(call, policy, None, lambda error: on_wait(error.message))

    return answer


def with_retries(
    call: Callable[[], T],
    policy: RetryPolicy,
    no_waiting: threading.Event | None,
    on_retry: Callable[[EngineError], None],
) -> T:
    """The call's answer; transient failures are waited out.

    Args:
        no_waiting: Once set, a failure is not waited out; see `Backoff`.
        on_retry: Told of each failure before the call is tried again.

    Raises:
        EngineError: a failure that does not pass, or one that outlasted the budget.
    """
    backoff = Backoff(policy, no_waiting)
    while True:
        try:
            return call()
        except EngineError as error:
            if not is_transient(error):
                raise
            on_retry(error)
            if not backoff.wait():
                raise


# Seconds: an engine that is back is not left waiting for half a minute, as one that is overloaded is.
_MAX_STARTUP_WAIT = 5.0


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
    backoff = Backoff(RetryPolicy(seconds, ceiling=_MAX_STARTUP_WAIT), no_waiting)
    began: float | None = None
    while True:
        try:
            answer = call()
        except EngineError as error:
            if not may_be_starting(error):
                raise
            if began is None and seconds:
                began = time.monotonic()
                log_event(
                    "waiting_began",
                    f"Waiting for the engine, up to {seconds:g} s: {error.message} (--retry-seconds 0 fails at once)",
                    logging.WARNING,
                    reason=error.message,
                    seconds=seconds,
                )
            if not backoff.wait():
                if began is not None:
                    error.message += f" (waited for {time.monotonic() - began:,.0f} s)"
                raise
        else:
            if began is not None:
                waited = time.monotonic() - began
                log_event(
                    "waiting_ended",
                    f"The engine answers after {waited:,.1f} s",
                    logging.WARNING,
                    seconds=round(waited, 3),
                )
            return answer


def may_be_starting(error: EngineError) -> bool:
    """Whether an engine that is starting may be what fails."""
    return is_transient(error) and not isinstance(error, TlsFailed | HostUnknown)


SMALLEST_BODY = 64 << 10
_BODY_STEP = 256 << 10


class Throttle:
    """Body size and number of requests under way: additive increase, multiplicative decrease. Thread-safe.

    Chiu and Jain 1989 showed that this, alone among linear rules, brings clients that share a server to equal shares
    without any word between them; two loads into one cluster are such clients.

    Args:
        largest_body: Bytes of a bulk request's body, at first and at most.
        most_requests: Bulk requests under way at a time, at most.
        first_requests: At first.
    """

    def __init__(self, largest_body: int, most_requests: int, first_requests: int = 2) -> None:
        self._changed = threading.Condition()
        self._smallest = min(SMALLEST_BODY, largest_body)
        self._largest = largest_body
        self._body = largest_body
        self._most = most_requests
        self._allowed = min(first_requests, most_requests)
        self._running = 0
        self._taken = 0
        self._halved = False

    @property
    def body_bytes(self) -> int:
        """Largest body that is worth sending now."""
        with self._changed:
            return self._body

    @property
    def requests(self) -> int:
        """Requests that may be under way now."""
        with self._changed:
            return self._allowed

    @contextmanager
    def request(self) -> Iterator[None]:
        """Wait for a turn, and hold it."""
        with self._changed:
            while self._running >= self._allowed:
                self._changed.wait()
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    def succeeded(self) -> None:
        """A body was taken whole: a little more next time, and one request more after a round of them."""
        with self._changed:
            self._body = min(self._largest, self._body + _BODY_STEP)
            self._taken += 1
            if self._taken >= self._allowed:
                self._taken = 0
                self._allowed = min(self._most, self._allowed + 1)
                self._changed.notify()
            recovered = self._halved and (self._body, self._allowed) == (self._largest, self._most)
            self._halved &= not recovered
        if recovered:
            self._record("all is sent as before")

    def overloaded(self) -> None:
        """The engine has more than it can do: half of everything."""
        with self._changed:
            before = (self._body, self._allowed)
            self._body = max(self._smallest, self._body // 2)
            self._allowed = max(1, self._allowed // 2)
            self._taken = 0
            self._halved = True
            changed = before != (self._body, self._allowed)
        if changed:
            self._record("the engine is overloaded: half as much is sent")

    def too_large(self, size: int) -> None:
        """A body of this size is over the server's limit: no later one will be larger than half of it."""
        with self._changed:
            self._largest = max(1, min(self._largest, size // 2))
            self._smallest = min(self._smallest, self._largest)
            self._body = min(self._body, self._largest)
        self._record(f"a body of {size:,} bytes is over the server's limit")

    def _record(self, message: str) -> None:
        log_event("throttle_changed", message, body_bytes=self.body_bytes, requests=self.requests)
