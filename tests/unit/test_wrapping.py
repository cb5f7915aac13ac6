"""Messages wrap at words in a terminal; commands, paths and addresses stay in one piece, and pipes get whole lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from es_sbert.cli.output import wrap
from tests.terminal import Frame, run_in_terminal

COMMAND = [sys.executable, "-m", "es_sbert", "duplicates", "--index", "tickets", "tickets.jsonl"]


@given(st.text("abc `-./\n", max_size=300), st.integers(40, 90))
def test_wrapping_changes_nothing_but_blanks(text: str, width: int) -> None:
    assert re.sub(r"\s+", " ", wrap(text, width)).strip() == re.sub(r"\s+", " ", text).strip()


@given(st.lists(st.text("abcde", min_size=1, max_size=30), max_size=40), st.integers(40, 90))
def test_no_line_of_words_is_longer_than_the_terminal(words: list[str], width: int) -> None:
    lines = wrap("  " + " ".join(words), width).split("\n")
    assert all(len(line) <= width for line in lines)
    assert all(line.startswith("  ") for line in lines)


def test_commands_stay_in_one_piece() -> None:
    message = (
        "A cluster of three nodes runs. Stop it: es-sbert engine down es9 --port 9200, or use `es-sbert engine down`."
    )
    assert wrap(message, 45).split("\n") == [
        "A cluster of three nodes runs. Stop it:",
        "es-sbert engine down es9 --port 9200, or use",
        "`es-sbert engine down`.",
    ]
    long = "`es-sbert ingest --index docs --text-template '{title}. {body}' --id-field id docs.jsonl`"
    assert wrap(f"Run {long} again.", 40).split("\n") == ["Run", long, "again."]


def test_columns_of_short_lines_are_kept() -> None:
    assert wrap("  1,200   embedded and indexed", 40) == "  1,200   embedded and indexed"


def test_messages_wrap_in_a_terminal_and_not_in_a_pipe() -> None:
    run = run_in_terminal(COMMAND, environment=dict(os.environ), columns=50)
    rows = [row for row in run.frames[-1].rows if row]
    assert run.code == 2
    assert rows[0] == "Error: exactly one of FILES and --index is"
    assert rows[1] == "required, but both are given"
    piped = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    assert piped.stderr.splitlines()[0] == " ".join(rows[:2])


def test_a_message_after_ctrl_c_begins_a_line() -> None:
    pressed = False

    def press(frame: Frame) -> bytes:
        nonlocal pressed
        if pressed or "Ready" not in "\n".join(frame.rows):
            return b""
        pressed = True
        return b"\x03"

    program = (
        "import time, click; from es_sbert.cli import main; "
        "main.cli = click.Command('cli', callback=lambda: (click.echo('Ready'), time.sleep(60))); main.main([])"
    )
    run = run_in_terminal([sys.executable, "-c", program], environment=dict(os.environ), press=press)
    assert run.code == 130
    assert run.frames[-1].rows[-1] == "Interrupted."
