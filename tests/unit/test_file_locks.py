"""The lock between processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from es_sbert.filesystem import file_lock

HOLDER = """
import sys
from pathlib import Path
from es_sbert.filesystem import file_lock
with file_lock(Path(sys.argv[1]), lambda: None):
    print("held", flush=True)
    sys.stdin.readline()
    Path(sys.argv[2]).write_text("done")
"""

COUNTER = """
import sys
from pathlib import Path
from es_sbert.filesystem import file_lock
lock, counter = map(Path, sys.argv[1:])
for _ in range(100):
    with file_lock(lock, lambda: None):
        number = int(counter.read_text())
        counter.write_text(str(number + 1))
"""


@contextmanager
def held(lock: Path, mark: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock until it reads a line."""
    command = [sys.executable, "-c", HOLDER, str(lock), str(mark)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder


def test_second_process_waits_and_is_notified(tmp_path: Path) -> None:
    lock, mark = tmp_path / "lock", tmp_path / "mark"
    with held(lock, mark) as holder:
        waits = []

        def let_go() -> None:
            waits.append(mark.exists())
            holder.stdin.write("\n")  # type: ignore[union-attr]
            holder.stdin.flush()  # type: ignore[union-attr]

        with file_lock(lock, let_go):
            assert mark.read_text() == "done"
    assert waits == [False]
    assert not lock.exists()


def test_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with held(lock, tmp_path / "mark") as holder:
        holder.kill()
    with file_lock(lock, lambda: pytest.fail("waited for a dead process")):
        assert lock.exists()


def test_lock_is_exclusive_between_processes(tmp_path: Path) -> None:
    """Although each holder removes the file that others may have open already."""
    lock, counter = tmp_path / "lock", tmp_path / "counter"
    counter.write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNTER, str(lock), str(counter)]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert counter.read_text() == "400"
