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
def test_a_missing_program_fails_the_test_and_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProgramMissing, match=f"{name} is not on PATH.*Install it .apt install"):
        program(name)


def test_another_name_of_a_program() -> None:
    assert Path(program("curl-of-another-name", "bash")).name == "bash"


def test_output_of_a_program_that_failed_is_shown() -> None:
    assert run([sys.executable, "-c", "print(7)"]) == "7\n"
    with pytest.raises(AssertionError, match=r"ended with 3\n(?s:.*)because"):
        run([sys.executable, "-c", "import sys; print('because', file=sys.stderr); sys.exit(3)"])


def test_a_server_is_used_once_it_listens_and_ended_afterwards(tmp_path: Path) -> None:
    with server([sys.executable, "-c", _LISTENS], folder=tmp_path, environment={}, log=tmp_path / "log") as url:
        assert url.startswith("http://127.0.0.1:")
        assert not url.endswith("/")


def test_a_server_that_ends_by_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such folder')"]
    with (
        pytest.raises(AssertionError, match=r"ended with 1\nno such folder"),
        server(command, folder=tmp_path, environment={}, log=tmp_path / "log"),
    ):
        pass


def test_a_server_that_never_listens(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        pytest.raises(AssertionError, match="does not listen after 0.1 s"),
        server(command, folder=tmp_path, environment={}, log=tmp_path / "log", limit=0.1),
    ):
        pass
