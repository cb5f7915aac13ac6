"""Programs of other languages that tests run: found on PATH, or the test fails and says what to install."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

# What a Debian or a Mac calls the package that has the program.
_PACKAGES = {
    "bash": "apt install bash, brew install bash",
    "chromium": "apt install chromium",
    "curl": "apt install curl",
    "go": "apt install golang, brew install go",
    "mvn": "apt install maven, brew install maven",
    "node": "apt install nodejs, brew install node",
    "npm": "apt install npm, brew install node",
}


_ADDRESS = re.compile(r"https?://([\w.]+):(\d+)")


class ProgramMissing(AssertionError):
    """A program that a test needs is not on this machine."""


def program(name: str, *other_names: str) -> str:
    """Path of a program, by its name or by one of its other names."""
    for each in (name, *other_names):
        if path := shutil.which(each):
            return path
    raise ProgramMissing(f"{name} is not on PATH; these tests need it. Install it ({_PACKAGES[name]}).")


def run(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limit: float = 600.0,
) -> str:
    """Run a program to its end."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=limit
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def server(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path, limit: float = 120.0
) -> Iterator[str]:
    """Run a server that prints its address, and end it afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _address(process, log, limit)
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path, limit: float) -> str:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        printed = log.read_text(errors="replace")
        address = _ADDRESS.search(printed)
        if address is not None and _listens(address[1], int(address[2])):
            return address[0]
        assert process.poll() is None, f"the server ended with {process.returncode}\n{printed}"
        time.sleep(0.05)
    raise AssertionError(f"the server does not listen after {limit:g} s\n{log.read_text(errors='replace')}")


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
