"""Progress in numbers and lines."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.ingest.progress import ProgressSnapshot, ProgressTracker, fraction_processed, progress_line


@pytest.mark.parametrize(
    ("read", "processed", "part_read", "fraction"),
    [
        (100, 50, 1.0, 0.5),  # all is read, half of it is processed
        (100, 100, 0.25, 0.25),
        (0, 0, 0.5, None),
        (10, 5, None, None),
        (10, 10, 1.2, 1.0),  # a file that grew since the load began
    ],
)
def test_fraction_processed_excludes_read_ahead(
    read: int, processed: int, part_read: float | None, fraction: float | None
) -> None:
    assert fraction_processed(read, processed, part_read) == fraction


def test_progress_line_has_rate_and_time_left() -> None:
    snapshot = ProgressSnapshot(read=5000, processed=4000, fraction=0.4, seconds=10, seconds_left=15)
    assert snapshot.rate == 400
    assert progress_line(snapshot) == "4,000 documents · 400/s · 40% · 0:15 left"
    assert progress_line(ProgressSnapshot(5000, 4000, None, 10)) == "4,000 documents · 400/s"
    assert progress_line(ProgressSnapshot(0, 0, None, 0)) == "0 documents · 0/s"
    assert progress_line(ProgressSnapshot(1, 1, 0.5, 10)) == "1 document · 0/s · 50% · ? left"


def estimates(fractions: Iterable[float], seconds: float = 0.2) -> list[float | None]:
    """Time left as shown for fractions, one every 0.2 seconds."""
    now = 0.0
    tracker = ProgressTracker(timer=lambda: now)
    shown = []
    for fraction in fractions:
        now += seconds
        shown.append(tracker.snapshot(1, 1, fraction).seconds_left)
    return shown


@given(st.integers(0, 200), st.integers(20, 1000))
def test_time_left_decreases_linearly_at_constant_speed(before: int, steps: int) -> None:
    # `before`: the model is loaded and the first texts are tokenized.
    shown = estimates([*[0.0] * before, *(step / steps for step in range(1, steps + 1))])
    known = [left for left in shown if left is not None]
    assert known[-1] == pytest.approx(0, abs=1e-9)
    assert all(later < earlier for earlier, later in pairwise(known))
    # Right from the first one on.
    assert known[0] == pytest.approx(0.2 * (len(known) - 1), rel=0.01, abs=0.01)
