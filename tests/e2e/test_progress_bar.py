"""What a load shows in a terminal of 80 columns."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.engine.ingest_support import write_jsonl
from tests.terminal import Frame, TerminalRun, run_in_terminal

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("engine_url", ["es9"], indirect=True)]

COUNT = 1500
# The terminal may echo the Ctrl-C behind the line.
_BAR = re.compile(r"^[━╸╺ ]+ ([\d,]+) documents? · (.*\S) +\d+:\d\d(\^C)?$")
_PRESSED = b"\x03"  # Ctrl-C


def bar(frame: Frame) -> tuple[int, str] | None:
    """Documents and the rest of the bar's line; None where no bar is shown.

    A bar in more than one row was wrapped, or a message left a stale copy of it.
    """
    rows = [row for row in frame.rows if "━" in row or " documents ·" in row]
    if not rows:
        return None
    assert len(rows) == 1, frame.rows
    match = _BAR.match(rows[0])
    assert match is not None, rows[0]
    return int(match[1].replace(",", "")), match[2]


@pytest.fixture
def load(engine_url: str, index_name: str, tmp_path: Path) -> Callable[..., TerminalRun]:
    """Loads with the default model, whose batches take long enough to be seen."""

    def call(*arguments: str | Path, press: Callable[[Frame], bytes] = lambda frame: b"") -> TerminalRun:
        command = [
            sys.executable, "-m", "es_sbert", "ingest", "--index", index_name, "--url", engine_url,
            "--precision", "fp32", "--dead-letters", str(tmp_path / "dead.jsonl"), *map(str, arguments),
        ]  # fmt: skip
        return run_in_terminal(command, environment=os.environ, press=press)

    return call


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_jsonl(
        tmp_path / "docs.jsonl", [{"id": f"d{number}", "text": f"cat number {number}"} for number in range(COUNT)]
    )


def test_progress_bar_advances_and_summary_comes_last(load: Callable[..., TerminalRun], docs: Path) -> None:
    # All documents are one window: none is in the index before the last one is embedded.
    run = load(docs, "--id-field", "id", "--batch-window", COUNT)
    assert run.code == 0
    shown = [found for frame in run.frames if (found := bar(frame)) is not None]
    counts = [count for count, _ in shown]
    assert all(earlier <= later for earlier, later in pairwise(counts))
    assert any(0 < count < COUNT for count in counts)
    assert all(re.fullmatch(r"[\d,]+/s · \d+% · (\d+:\d\d|\?) left", rest) for _, rest in shown)
    last = run.frames[-1].rows
    assert bar(run.frames[-1]) is None
    assert f"{COUNT:,} documents read" in "\n".join(last)
    assert "CPUExecutionProvider on cpu" in last[-1]


def test_message_does_not_break_progress_bar_line(load: Callable[..., TerminalRun], docs: Path) -> None:
    pressed = False

    def press(frame: Frame) -> bytes:
        nonlocal pressed
        found = bar(frame)
        if pressed or found is None or not found[0]:
            return b""
        pressed = True
        return _PRESSED

    run = load(docs, "--id-field", "id", press=press)
    assert run.code == 130
    stopping = [frame for frame in run.frames if any(row.startswith("Stopping:") for row in frame.rows)]
    assert any(bar(frame) is not None for frame in stopping)
    assert all("Stopping" not in row for frame in stopping for row in frame.rows if "━" in row)


def test_watch_reports_that_it_is_watching(load: Callable[..., TerminalRun], tmp_path: Path) -> None:
    few = write_jsonl(tmp_path / "few.jsonl", [{"id": "d0", "text": "a cat"}, {"id": "d1", "text": "a man"}])
    assert load(few, "--id-field", "id").code == 0
    pressed = False

    def press(frame: Frame) -> bytes:
        nonlocal pressed
        found = bar(frame)
        if pressed or found is None or found[1] != "watching for changes (Ctrl-C ends)":
            return b""
        pressed = True
        return _PRESSED

    run = load("--text-field", "text", "--watch", press=press)
    assert run.code == 0
    assert any("Watching " in row and "for changes every 5 s" in row for frame in run.frames for row in frame.rows)
