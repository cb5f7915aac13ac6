"""Additive increase, multiplicative decrease."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.retry import SMALLEST_BODY, Throttle

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


def test_throttle_stays_below_the_server_body_limit() -> None:
    throttle = Throttle(4 * MIB, most_requests=4)
    throttle.limit_body(3 * MIB)
    for _ in range(20):
        throttle.increase()
    assert throttle.body_bytes == 3 * MIB // 2


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
