"""Queues and stages: order, bounds, errors, and that nothing hangs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.ingest.load_threads import LoadControl, StageThreads

pytestmark = pytest.mark.timeout(120)


@given(st.integers(1, 4), st.integers(0, 60), st.integers(1, 3))
@settings(deadline=None, max_examples=30)
def test_stages_pass_on_every_item(capacity: int, count: int, workers: int) -> None:
    threads = StageThreads(LoadControl())
    seen: list[int] = []
    numbers = threads.add_stage("read", range(count), capacity)
    squares = threads.add_stage("square", (number * number for number in numbers), capacity)
    for worker in range(workers):
        threads.start(f"write-{worker}", lambda: seen.extend(squares))
    threads.wait()
    assert sorted(seen) == [number * number for number in range(count)]


@pytest.mark.parametrize("failing", ["first", "middle", "last"])
def test_first_error_stops_all_stages_and_is_raised(failing: str) -> None:
    control = LoadControl()
    threads = StageThreads(control)

    def fail(stage: str, number: int) -> int:
        if stage == failing and number == 5:
            raise ValueError(f"{stage} failed")
        return number

    def last() -> None:
        for number in two:
            fail("last", number)

    # The first stage has no end: only the error can stop it.
    one = threads.add_stage("first", (fail("first", number) for number in itertools.count()), 1)
    two = threads.add_stage("middle", (fail("middle", number) for number in one), 1)
    threads.start("last", last)
    with pytest.raises(ValueError, match=f"{failing} failed"):
        threads.wait()
    assert control.stop_retrying.is_set()
    assert control.stop_reading.is_set()


def test_stage_added_after_a_failure_stops() -> None:
    control = LoadControl()
    threads = StageThreads(control)
    numbers = threads.add_stage("fail", map(int, ["failed"]), 1)
    assert control.stop_retrying.wait(60)
    later = threads.add_stage("later", numbers, 1)
    threads.start("last", lambda: list(later) and None)
    with pytest.raises(ValueError, match="failed"):
        threads.wait()


def test_interrupt_of_the_waiting_thread_stops_all_stages() -> None:
    threads = StageThreads(control := LoadControl())
    threads.add_stage("read", itertools.count(), 1)

    def interrupt() -> None:  # a signal would reach a process of pytest-xdist, which ignores SIGINT
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        threads.wait(interrupt)
    assert control.stop_reading.is_set()


def test_first_unreachable_reason_outweighs_a_source_that_failed() -> None:
    control = LoadControl()
    control.end_early("the source failed")
    assert (control.reason, control.engine_lost) == ("the source failed", False)
    control.stop_sending("first")
    control.stop_sending("second")
    control.end_early("the source failed again")
    assert (control.reason, control.engine_lost) == ("first", True)
    assert control.stop_reading.is_set()
    assert not control.stop_retrying.is_set()
