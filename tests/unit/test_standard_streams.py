"""Commands whose standard streams are closed, full, or write letters in an encoding of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of the shell, in which `$ES` is `es-sbert`."""
    given = os.environ | {"ES": f"{sys.executable} -m es_sbert"} | environment
    return subprocess.run(["sh", "-c", command], env=given, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_full_disk_on_stdout_exits_with_code_2() -> None:
    done = run("$ES ingest --help > /dev/full")
    assert (done.returncode, done.stderr.splitlines()[1:]) == (2, ["  Free space on the disk of the output."])
    assert "No space left" in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("$ES engine down >&- 2>&-", 0, ""),
        ("$ES index migrate docs --replace-index <&-", 2, "there is no terminal to ask for confirmation"),
    ],
)
def test_closed_streams_cause_no_traceback(command: str, code: int, said: str, tmp_path: Path) -> None:
    done = run(command, ES_SBERT_ENGINE_HOME=str(tmp_path))
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False)
