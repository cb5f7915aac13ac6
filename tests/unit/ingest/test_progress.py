"""Progress in numbers and lines."""

from __future__ import annotations

import io

import pytest

from es_sbert.ingest.progress import (
    Bar,
    Lines,
    Silent,
    Snapshot,
    clock,
    fraction_done,
    meter_for,
    progress_line,
)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "?"), (0, "0:00"), (59.6, "1:00"), (125, "2:05"), (3723, "1:02:03")]
)
def test_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("read", "done", "part_read", "fraction"),
    [
        (100, 50, 1.0, 0.5),  # all is read, half of it is done
        (100, 100, 0.25, 0.25),
        (0, 0, 0.5, None),
        (10, 5, None, None),
        (10, 10, 1.2, 1.0),  # a file that grew since the load began
    ],
)
def test_what_is_read_ahead_is_not_done(read: int, done: int, part_read: float | None, fraction: float | None) -> None:
    assert fraction_done(read, done, part_read) == fraction


def test_rate_and_time_left() -> None:
    snapshot = Snapshot(read=5000, done=4000, fraction=0.4, seconds=10)
    assert (snapshot.rate, snapshot.seconds_left) == (400, 15)
    assert progress_line(snapshot) == "4,000 documents · 400/s · 40% · 0:15 left"
    assert progress_line(Snapshot(5000, 4000, None, 10)) == "4,000 documents · 400/s"
    assert progress_line(Snapshot(0, 0, None, 0)) == "0 documents · 0/s"


def test_a_line_every_five_seconds() -> None:
    stream = io.StringIO()
    now = 0.0
    lines = Lines(stream, timer=lambda: now)
    for tick in range(60):
        now = tick / 4
        lines.show(Snapshot(tick, tick, None, now))
    assert stream.getvalue() == "20 documents · 4/s\n40 documents · 4/s\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar() -> None:
    stream = Terminal()
    meter = meter_for(stream, quiet=False)
    assert isinstance(meter, Bar)
    meter.show(Snapshot(10, 5, 0.5, 1))
    meter.close()
    assert "5 documents · 5/s · 50% · 0:01 left" in stream.getvalue()


def test_a_file_gets_lines_and_quiet_gets_nothing() -> None:
    assert isinstance(meter_for(io.StringIO(), quiet=False), Lines)
    assert isinstance(meter_for(Terminal(), quiet=True), Silent)
