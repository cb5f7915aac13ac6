"""Times that never go back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.clock import Clock
from es_sbert.ingest.dead_letters import last_dead_letter_time

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1))
def test_clock_never_goes_backwards(steps: list[int]) -> None:
    walls = iter([NOON + timedelta(seconds=step) for step in steps])
    clock = Clock(lambda: next(walls))
    times = [clock.now() for _ in steps]
    assert times == sorted(times)


def test_now_is_later_than_observed_times() -> None:
    clock = Clock(lambda: NOON)
    assert clock.now() == "2026-01-31T12:00:00.000Z"
    clock.observe("2026-01-31T11:00:00.000Z")
    assert clock.now() == "2026-01-31T12:00:00.000Z"
    clock.observe("2026-02-01T12:00:00.000Z")
    assert clock.now() == "2026-02-01T12:00:00.001Z"
    for invalid in ("", "yesterday", "2026-02-01T12:00:00", "9999-12-31T23:59:59.999+00:0x"):
        Clock(lambda: NOON).observe(invalid)


@pytest.mark.parametrize(
    ("tail", "time"),
    [
        (b'{"time": "c", "docu', "b"),
        (b'[]\n\n{"time": 3}\n', "b"),
        (orjson.dumps({"time": "d", "document": {"text": "x" * (2 << 20)}}) + b"\n", None),
    ],
)
def test_last_dead_letter_time_ignores_a_truncated_line(tmp_path: Path, tail: bytes, time: str | None) -> None:
    path = tmp_path / "letters.jsonl"
    assert last_dead_letter_time(path) is None
    path.write_bytes(b'{"time": "a"}\n{"time": "b"}\n' + tail)
    assert last_dead_letter_time(path) == time
