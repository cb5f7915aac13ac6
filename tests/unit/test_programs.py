"""Running programs of other languages in tests: what is missing or fails is said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.programs import ProgramMissing, program, run, server

_LISTENS = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
print(f"Listening on http://127.0.0.1:{listener.getsockname()[1]}/ now", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("name", ["chromium", "node", "npm", "mvn", "curl", "bash"])
def test_missing_program_fails_with_install_hint(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProgramMissing, match=f"{name} is not on PATH.*Install it .apt install"):
        program(name)


def test_program_accepts_alternative_names() -> None:
    assert Path(program("curl-of-another-name", "bash")).name == "bash"


def test_failed_program_output_is_shown() -> None:
    assert run([sys.executable, "-c", "print(7)"]) == "7\n"
    with pytest.raises(AssertionError, match=r"ended with 3\n(?s:.*)because"):
        run([sys.executable, "-c", "import sys; print('because', file=sys.stderr); sys.exit(3)"])


def test_server_is_used_once_it_listens_and_then_stopped(tmp_path: Path) -> None:
    with server([sys.executable, "-c", _LISTENS], folder=tmp_path, environment={}, log=tmp_path / "log") as url:
        assert url.startswith("http://127.0.0.1:")
        assert not url.endswith("/")


def test_server_that_exits_raises(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such folder')"]
    with (
        pytest.raises(AssertionError, match=r"ended with 1\nno such folder"),
        server(command, folder=tmp_path, environment={}, log=tmp_path / "log"),
    ):
        pass


def test_server_that_never_listens_times_out(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        pytest.raises(AssertionError, match="does not listen after 0.1 s"),
        server(command, folder=tmp_path, environment={}, log=tmp_path / "log", limit=0.1),
    ):
        pass
