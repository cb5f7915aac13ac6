"""Which failures pass by themselves, and how long to wait for it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from es_sbert.errors import EngineError, EngineUnreachable, RequestFailed

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


def passes(status: int) -> bool:
    """Whether a status goes away by itself: a broken connection (0), too many requests, or the server's own trouble."""
    return status in (0, _TOO_MANY_REQUESTS) or status >= 500


def is_transient(error: EngineError) -> bool:
    """Whether the same request may well succeed later."""
    if isinstance(error, RequestFailed):
        return passes(error.status)
    return isinstance(error, EngineUnreachable)


class Patience(Protocol):
    """Gives a call's answer; transient failures are waited out."""

    def __call__(self, call: Callable[[], T]) -> T: ...


def retrying(policy: RetryPolicy, on_wait: Callable[[str], None]) -> Patience:
    """`with_retries` for a command that only Ctrl-C ends.

    Args:
        on_wait: Told why a call is tried again.
    """

    def answer(call: Callable[[], T]) -> T:
        return with_retries(call, policy, None, lambda error: on_wait(error.message))

    return answer


def with_retries(call: Callable[[], T], policy: RetryPolicy, no_waiting: threading.Event | None,
                 on_retry: Callable[[EngineError], None]) -> T:  # fmt: skip
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
