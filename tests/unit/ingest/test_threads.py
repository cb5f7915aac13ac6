"""Channels and pipeline: order, bounds, errors, and that nothing hangs."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.ingest.pipeline import ClosableQueue, LoadAborted, LoadControl, Pipeline

pytestmark = pytest.mark.timeout(120)


@given(st.integers(1, 4), st.integers(0, 60), st.integers(1, 3))
@settings(deadline=None, max_examples=30)
def test_stages_hand_everything_on(capacity: int, count: int, workers: int) -> None:
    pipeline = Pipeline(LoadControl())
    numbers: ClosableQueue[int] = pipeline.queue(capacity)
    squares: ClosableQueue[int] = pipeline.queue(capacity)
    seen: list[int] = []
    pipeline.add_stage("read", lambda: [numbers.put(number) for number in range(count)] and None, closes=numbers)
    pipeline.add_stage("square", lambda: [squares.put(n * n) for n in numbers] and None, closes=squares)
    for worker in range(workers):
        pipeline.add_stage(f"write-{worker}", lambda: seen.extend(squares))
    pipeline.wait()
    assert sorted(seen) == [number * number for number in range(count)]


def test_a_channel_holds_no_more_than_its_capacity() -> None:
    channel: ClosableQueue[int] = ClosableQueue(2)
    put: list[int] = []
    full = threading.Event()

    def produce() -> None:
        for number in range(5):
            channel.put(number)
            put.append(number)
            if len(put) == 2:
                full.set()
        channel.close()

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    assert full.wait(60)
    time.sleep(0.1)  # in which a third would come, if it did not wait
    assert put == [0, 1]
    assert list(channel) == [0, 1, 2, 3, 4]
    thread.join(60)


@pytest.mark.parametrize("failing", ["first", "middle", "last"])
def test_the_first_error_ends_all_pipeline_and_comes_out(failing: str) -> None:
    control = LoadControl()
    pipeline = Pipeline(control)
    one: ClosableQueue[int] = pipeline.queue(1)
    two: ClosableQueue[int] = pipeline.queue(1)

    def fail(stage: str, number: int) -> None:
        if stage == failing and number == 5:
            raise ValueError(f"{stage} failed")

    def first() -> None:
        number = 0
        while True:  # without an end: only the error can stop it
            fail("first", number)
            one.put(number)
            number += 1

    def middle() -> None:
        for number in one:
            fail("middle", number)
            two.put(number)

    def last() -> None:
        for number in two:
            fail("last", number)

    pipeline.add_stage("first", first, closes=one)
    pipeline.add_stage("middle", middle, closes=two)
    pipeline.add_stage("last", last)
    with pytest.raises(ValueError, match=f"{failing} failed"):
        pipeline.wait()
    assert control.aborted.is_set()
    assert control.stop.is_set()


def test_an_error_in_the_waiting_thread_ends_the_pipeline() -> None:
    control = LoadControl()
    pipeline = Pipeline(control)
    channel: ClosableQueue[int] = pipeline.queue(1)
    ended = threading.Event()

    def consume() -> None:
        try:
            list(channel)
        except LoadAborted:
            ended.set()
            raise

    def tick() -> None:
        raise KeyboardInterrupt

    pipeline.add_stage("consume", consume)
    with pytest.raises(KeyboardInterrupt):
        pipeline.wait(tick)
    assert ended.wait(60)


def test_the_first_reason_for_a_loss_counts() -> None:
    control = LoadControl()
    assert control.unreachable_reason is None
    control.mark_unreachable("first")
    control.mark_unreachable("second")
    assert control.unreachable_reason == "first"
    assert control.stop.is_set()
    assert not control.aborted.is_set()


def test_the_end_is_shown_however_soon_it_comes() -> None:
    pipeline = Pipeline(LoadControl())
    ended = threading.Event()
    pipeline.add_stage("work", ended.set)
    ended.wait()
    time.sleep(0.1)  # the thread is gone before anyone waits for it
    shown = []
    pipeline.wait(lambda: shown.append(True))
    assert shown == [True]
