"""What a load shows in a terminal of 80 columns."""

from __future__ import annotations

import os
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.engine.ingest_support import write_jsonl
from tests.terminal import Frame, run_in_terminal

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("engine_url", ["es9"], indirect=True)]

COUNT = 1500
_BAR = re.compile(r"^[━╸╺ ]+ ([\d,]+) documents? · (.*\S) +\d+:\d\d$")


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


def test_progress_bar_advances_and_summary_comes_last(engine_url: str, index_name: str, tmp_path: Path) -> None:
    """With the default model, whose batches take long enough to be seen."""
    documents = [{"id": f"d{number}", "text": f"cat number {number}"} for number in range(COUNT)]
    docs = write_jsonl(tmp_path / "docs.jsonl", documents)
    # All documents are one window: none is in the index before the last one is embedded.
    command = [
        sys.executable, "-m", "es_sbert", "ingest", "--index", index_name, "--url", engine_url, "--precision", "fp32",
        "--dead-letters", str(tmp_path / "dead.jsonl"), str(docs), "--id-field", "id", "--batch-window", str(COUNT),
    ]  # fmt: skip
    run = run_in_terminal(command, environment=os.environ)
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
