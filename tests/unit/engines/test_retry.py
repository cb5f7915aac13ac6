"""Retries of requests, and their size and number on a busy engine."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines import retry
from es_sbert.engines.retry import SMALLEST_BODY, RetryPolicy, Throttle, with_retries
from es_sbert.errors import EngineError, EngineUnreachable, RequestFailed
from tests.raised import raises_as_recorded

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

    with raises_as_recorded(RequestFailed):
        with_retries(call, policy, waits, lambda error: None)
    # The budget begins with the first failure; a wait never goes beyond its end, and one more call comes after it.
    assert 60.5 <= waits.now <= 61.5
    assert len(waits.waited) >= 60 / 4.5 - 1
    assert all(0 <= pause <= policy.longest_wait(number) for number, pause in enumerate(waits.waited, start=1))


MIB = 1 << 20


def test_throttle_halves_on_overload_and_grows_on_success() -> None:
    throttle = Throttle(4 * MIB, most_requests=4)
    assert (throttle.body_bytes, throttle.requests) == (4 * MIB, 2)
    throttle.decrease()
    assert (throttle.body_bytes, throttle.requests) == (2 * MIB, 1)
    throttle.increase()
    assert (throttle.body_bytes, throttle.requests) == (2 * MIB + MIB // 4, 2)
    for _ in range(20):
        throttle.increase()
    assert (throttle.body_bytes, throttle.requests) == (4 * MIB, 4)


@given(st.lists(st.sampled_from(["taken", "overloaded", "too large"])), st.integers(1, 10 * MIB), st.integers(1, 9))
def test_throttle_stays_within_bounds(steps: list[str], largest: int, most: int) -> None:
    throttle = Throttle(largest, most)
    for step in steps:
        if step == "taken":
            throttle.increase()
        elif step == "overloaded":
            throttle.decrease()
        else:
            throttle.limit_body(throttle.body_bytes)
        assert 1 <= throttle.body_bytes <= largest
        assert 1 <= throttle.requests <= most
    if "too large" not in steps:
        assert throttle.body_bytes >= min(largest, SMALLEST_BODY)


def test_concurrent_requests_are_limited() -> None:
    throttle = Throttle(MIB, most_requests=3)
    lock, running, most = threading.Lock(), 0, 0
    # Two at a time, or nobody comes further; on a machine however slow.
    together = threading.Barrier(2, timeout=60)

    def work() -> None:
        nonlocal running, most
        with throttle.slot():
            with lock:
                running += 1
                most = max(most, running)
            together.wait()
            with lock:
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (running, most) == (0, 2)
