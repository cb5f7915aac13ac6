"""Retry and throttle engine requests: transient failures, exponential backoff, adaptive sizes of bulk requests."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from es_sbert.engines.error_mapping import is_transient_failure
from es_sbert.errors import EngineError, EngineUnreachable, HostUnknown, RequestFailed, TlsFailed
from es_sbert.messages import log_event, log_message, setting

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter, within a budget of time.

    Attributes:
        budget: Seconds after the first failure during which to try again.
        first: Upper bound of the first wait in seconds; it doubles with every failure.
        ceiling: Upper bound of every wait in seconds.
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
        policy: The lengths of the waits, and their budget.
        stop_retrying: Once set, ends the current wait and every later one; None if only an exception does (Ctrl-C).
    """

    def __init__(self, policy: RetryPolicy, stop_retrying: threading.Event | None = None) -> None:
        self._policy = policy
        self._stop_retrying = stop_retrying or threading.Event()
        self._failures = 0
        self._deadline = 0.0

    def wait(self) -> bool:
        """Wait after a failure; False if the budget is spent or `stop_retrying` is set."""
        now = time.monotonic()
        if not self._failures:
            self._deadline = now + self._policy.budget
        self._failures += 1
        if now >= self._deadline:
            return False
        # Use full jitter: clients that failed at the same time must not retry at the same time.
        pause = random.uniform(0, self._policy.longest_wait(self._failures))
        return not self._stop_retrying.wait(min(pause, self._deadline - now))

    @property
    def seconds_left(self) -> float:
        """Seconds left of the budget; all of it before the first failure."""
        return max(0.0, self._deadline - time.monotonic()) if self._failures else self._policy.budget

    def reset(self) -> None:
        """Call after progress: the budget starts again with the next failure."""
        self._failures = 0


def is_transient(error: EngineError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, RequestFailed):
        return is_transient_failure(error.status, error.type)
    return isinstance(error, EngineUnreachable)


class Retrier(Protocol):
    """Returns the result of a call; transient failures are retried."""

    def __call__(self, call: Callable[[], T]) -> T: ...


def without_retries(call: Callable[[], T]) -> T:
    """A `Retrier` that does not retry."""
    return call()


def make_retrier(
    policy: RetryPolicy, on_wait: Callable[[str], None], stop_retrying: threading.Event | None = None
) -> Retrier:
    """Make a `Retrier` that runs each call with `with_retries`.

    Args:
        on_wait: Called with the reason of each retry.
        stop_retrying: See `Backoff`.
    """
    return lambda call: with_retries(call, policy, stop_retrying, lambda error: on_wait(error.message))


def log_wait(reason: str) -> None:
    """Log that a request is retried."""
    log_message(f"waiting for the engine: {reason}")


def retry_for(seconds: float) -> Retrier:
    """Make a `Retrier` that logs each wait; with 0 seconds, it does not retry."""
    return make_retrier(RetryPolicy(seconds), log_wait) if seconds else without_retries


def with_retries(
    call: Callable[[], T],
    policy: RetryPolicy,
    stop_retrying: threading.Event | None,
    on_retry: Callable[[EngineError], None],
    may_retry: Callable[[EngineError], bool] = is_transient,
) -> T:
    """Return the result of a call; retry transient failures.

    Args:
        stop_retrying: Once set, failures are not retried; see `Backoff`.
        on_retry: Called with each failure before the retry.
        may_retry: Whether a failure is transient.

    Raises:
        EngineError: the failure is not transient, or the budget is spent.
    """
    backoff = Backoff(policy, stop_retrying)
    while True:
        try:
            return call()
        except EngineError as error:
            if not may_retry(error):
                raise
            on_retry(error)
            if not backoff.wait():
                raise


# Requests that must not be sent again before a check of what the first one has done.
_NOT_REPEATABLE = frozenset(
    {"send", "bulk", "update_aliases", "create_index", "put_mapping", "block_writes", "start_force_merge"}
)


@dataclass
class RetryingEngine:
    """An engine whose idempotent requests are retried.

    Args:
        engine: Any object with the methods of `Engine`.
        retrying: Retries each request.
    """

    _engine: Any
    _retrying: Retrier

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._engine, name)
        if not callable(attribute) or name in _NOT_REPEATABLE:
            return attribute
        return lambda *args, **kwargs: self._retrying(lambda: attribute(*args, **kwargs))


# Upper bound of a wait in seconds: lower than for an overloaded engine, so that the command continues soon after the
# start.
_MAX_STARTUP_WAIT = 5.0


def wait_for_engine(call: Callable[[], T], seconds: float, stop_retrying: threading.Event | None = None) -> T:
    """Return the result of a call, which is retried while the engine is unreachable or not ready.

    The first failure is logged at once: a mistyped address looks like an engine that is about to start.

    Args:
        call: May be called more than once.
        seconds: Seconds after the first failure during which to retry; with 0, the first failure is raised at once.
        stop_retrying: Once set, ends the wait.

    Raises:
        EngineError: the engine did not start in time, or the failure is not transient: wrong credentials, TLS, an
            unknown host name.
    """
    began: list[float] = []

    def report(error: EngineError) -> None:
        if seconds and not began:
            began.append(time.monotonic())
            at_once = setting("retry_seconds", 0)
            message = f"Waiting for the engine, up to {seconds:g} s: {error.message} ({at_once} fails at once)"
            log_event("waiting_began", message, logging.WARNING, reason=error.message, seconds=seconds)

    try:
        answer = with_retries(
            call, RetryPolicy(seconds, ceiling=_MAX_STARTUP_WAIT), stop_retrying, report, may_be_starting
        )
    except EngineError as error:
        if began and may_be_starting(error):
            error.add_note(f"waited for {time.monotonic() - began[0]:,.0f} s")
        raise
    if began:
        waited = time.monotonic() - began[0]
        message = f"The engine answered after {waited:,.1f} s"
        log_event("waiting_ended", message, logging.WARNING, seconds=round(waited, 3))
    return answer


def may_be_starting(error: EngineError) -> bool:
    """Whether the failure may come from an engine that is starting."""
    return is_transient(error) and not isinstance(error, TlsFailed | HostUnknown)


SMALLEST_BODY = 64 << 10
_BODY_STEP = 256 << 10
_FIRST_REQUESTS = 2  # concurrent bulk requests at the start


class Throttle:
    """Limits the body size and the concurrency of bulk requests: additive increase, multiplicative decrease.

    Thread-safe. Chiu and Jain (1989) showed that among linear rules only this one brings clients that share a server,
    such as two loads into one cluster, to equal shares without communication.

    Args:
        largest_body: Largest body of a bulk request in bytes; also the first limit.
        most_requests: Most concurrent bulk requests.

    Attributes:
        body_bytes: Largest body to send now.
        requests: Concurrent requests allowed now.
    """

    def __init__(self, largest_body: int, most_requests: int) -> None:
        self._changed = threading.Condition()
        self._smallest = min(SMALLEST_BODY, largest_body)
        self._largest = largest_body
        self.body_bytes = largest_body
        self._most = most_requests
        self.requests = min(_FIRST_REQUESTS, most_requests)
        self._running = 0
        self._accepted = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Wait until a request may be sent, and count it until the block ends."""
        with self._changed:
            while self._running >= self.requests:
                self._changed.wait()
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    def increase(self) -> None:
        """Record that a body was accepted: allow a larger one, and one more request after a round of them."""
        with self._changed:
            self.body_bytes = min(self._largest, self.body_bytes + _BODY_STEP)
            self._accepted += 1
            if self._accepted >= self.requests:
                self._accepted = 0
                self.requests = min(self._most, self.requests + 1)
                self._changed.notify()

    def decrease(self) -> None:
        """Record that the engine is overloaded: halve both limits."""
        with self._changed:
            before = (self.body_bytes, self.requests)
            self.body_bytes = max(self._smallest, self.body_bytes // 2)
            self.requests = max(1, self.requests // 2)
            self._accepted = 0
            changed = before != (self.body_bytes, self.requests)
        if changed:
            self._record("the engine is overloaded: the limits on bulk requests are halved")

    def limit_body(self, size: int) -> None:
        """Record that the server rejected a body of this size: later bodies are at most half as large."""
        with self._changed:
            self._largest = max(1, min(self._largest, size // 2))
            self._smallest = min(self._smallest, self._largest)
            self.body_bytes = min(self.body_bytes, self._largest)
        self._record(f"a body of {size:,} bytes is over the server's limit")

    def _record(self, message: str) -> None:
        log_event("throttle_changed", message, body_bytes=self.body_bytes, requests=self.requests)
