"""Backoff: what is tried again, how long, and what is not."""

from __future__ import annotations

import threading
import time

import pytest

from es_sbert.errors import AccessDenied, EngineError, EngineUnreachable, RequestFailed
from es_sbert.ingest.retry import Backoff, RetryPolicy, is_transient, with_retries

QUICK = RetryPolicy(budget=5, first=0.001, ceiling=0.002)


@pytest.mark.parametrize("status", [0, 429, 500, 502, 503, 504, 507])
def test_what_passes_by_itself(status: int) -> None:
    assert is_transient(RequestFailed("", "", status))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413])
def test_what_does_not(status: int) -> None:
    assert not is_transient(RequestFailed("", "", status))


def test_no_answer_passes_refused_credentials_do_not() -> None:
    assert is_transient(EngineUnreachable("", ""))
    assert not is_transient(AccessDenied("", ""))


def test_waits_double_up_to_the_ceiling() -> None:
    policy = RetryPolicy(budget=300)
    assert [policy.longest_wait(failures) for failures in (1, 2, 3, 6, 7, 8, 5000)] == [0.5, 1, 2, 16, 30, 30, 30]


def test_a_call_is_repeated_until_it_succeeds() -> None:
    failures: list[EngineError] = [RequestFailed("", "", 503), EngineUnreachable("", "")]
    retries: list[int] = []

    def call() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert with_retries(call, QUICK, threading.Event(), lambda error: retries.append(1)) == "done"
    assert len(retries) == 2


def test_the_budget_ends_it() -> None:
    calls: list[float] = []

    def call() -> None:
        calls.append(time.monotonic())
        raise RequestFailed("still busy", "", 429)

    with pytest.raises(RequestFailed, match="still busy"):
        with_retries(call, RetryPolicy(0.2, first=0.01, ceiling=0.05), threading.Event(), lambda error: None)
    assert len(calls) > 3
    assert 0.15 < calls[-1] - calls[0] < 2


def test_a_budget_of_nothing_means_one_try() -> None:
    assert not Backoff(RetryPolicy(0), threading.Event()).wait()


def test_an_aborted_load_does_not_wait() -> None:
    aborted = threading.Event()
    aborted.set()
    begin = time.monotonic()
    assert not Backoff(RetryPolicy(300, first=100, ceiling=100), aborted).wait()
    assert time.monotonic() - begin < 1


def test_success_renews_the_budget() -> None:
    backoff = Backoff(RetryPolicy(0.1, first=0.001, ceiling=0.001), threading.Event())
    assert backoff.wait()
    time.sleep(0.12)
    assert not backoff.wait()
    backoff.succeeded()
    assert backoff.wait()
