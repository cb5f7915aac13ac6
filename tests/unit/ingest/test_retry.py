"""Backoff: what is tried again, how long, and what is not."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from es_sbert.engines import retry
from es_sbert.engines.retry import Backoff, RetryPolicy, is_transient, with_retries
from es_sbert.errors import AccessDenied, EngineError, EngineUnreachable, RequestFailed

QUICK = RetryPolicy(budget=60, first=0.001, ceiling=0.002)


class Waits(threading.Event):
    """The event of an abort that never comes, and the clock: waiting for it takes the time, and no time of the test.

    Attributes:
        now: Seconds since the beginning.
        waited: Each wait in seconds.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = 0.0
        self.waited: list[float] = []
        monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: self.now))

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        self.now += timeout
        return False


@pytest.mark.parametrize("status", [0, 429, 500, 502, 503, 504, 507])
def test_transient_statuses(status: int) -> None:
    assert is_transient(RequestFailed("", "", status))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413])
def test_permanent_statuses(status: int) -> None:
    assert not is_transient(RequestFailed("", "", status))


def test_unreachable_is_transient_but_access_denied_is_not() -> None:
    assert is_transient(EngineUnreachable("", ""))
    assert not is_transient(AccessDenied("", ""))


def test_backoff_doubles_up_to_the_ceiling() -> None:
    policy = RetryPolicy(budget=300)
    assert [policy.longest_wait(failures) for failures in (1, 2, 3, 6, 7, 8, 5000)] == [0.5, 1, 2, 16, 30, 30, 30]


def test_call_is_retried_until_it_succeeds() -> None:
    failures: list[EngineError] = [RequestFailed("", "", 503), EngineUnreachable("", "")]
    retries: list[int] = []

    def call() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert with_retries(call, QUICK, threading.Event(), lambda error: retries.append(1)) == "done"
    assert len(retries) == 2


def test_retries_stop_when_the_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, policy = Waits(monkeypatch), RetryPolicy(60, first=1, ceiling=4)

    def call() -> None:
        waits.now += 0.5
        raise RequestFailed("still busy", "", 429)

    with pytest.raises(RequestFailed, match="still busy"):
        with_retries(call, policy, waits, lambda error: None)
    # The budget begins with the first failure; a wait never goes beyond its end, and one more call comes after it.
    assert 60.5 <= waits.now <= 61.5
    assert len(waits.waited) >= 60 / 4.5 - 1
    assert all(0 <= pause <= policy.longest_wait(number) for number, pause in enumerate(waits.waited, start=1))


def test_zero_budget_means_no_retry() -> None:
    assert not Backoff(RetryPolicy(0), threading.Event()).wait()


def test_an_aborted_load_does_not_wait() -> None:
    aborted = threading.Event()
    aborted.set()
    # The timeout of the test would end a wait of weeks.
    assert not Backoff(RetryPolicy(1e6, first=1e6, ceiling=1e6), aborted).wait()


def test_success_resets_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    backoff = Backoff(RetryPolicy(10), waits)
    assert backoff.wait()
    waits.now += 10
    assert not backoff.wait()
    backoff.reset()
    assert backoff.wait()
