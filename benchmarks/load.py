"""Load on a server by wrk (as fast as it answers) and by k6 (at a constant rate), and the latencies that came of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Figures:
    """What a run gave.

    Attributes:
        rate: Requests a second.
        p50, p99: Latency, ms.
        failed: Requests without an answer of 200, or that could not be sent in time.
    """

    rate: float
    p50: float
    p99: float
    failed: int


def closed_loop(url: str, bodies: Path, *, connections: int, seconds: int) -> Figures:
    """wrk: each connection sends its next request once it has the answer to the one before.

    Args:
        bodies: One body a line, sent in turn.
    """
    command = [
        _program("wrk", "apt-get install wrk"), "-t", str(min(2, connections)), "-c", str(connections),
        "-d", f"{seconds}s", "--timeout", "60s", "-s", str(_HERE / "load.lua"), url, "--", str(bodies),
    ]  # fmt: skip
    return _figures(_output(command))


def constant_rate(url: str, bodies: Path, *, connections: int, seconds: int, rate: int) -> Figures:
    """k6: so many requests a second over at most so many connections; waiting for a slow server is counted, too."""
    command = [_program("k6", "go install go.k6.io/k6@latest"), "run", "--quiet", "--no-usage-report"]
    settings = {
        "URL": url,
        "BODIES": str(bodies.resolve()),
        "RATE": rate,
        "DURATION": f"{seconds}s",
        "CONNECTIONS": connections,
    }
    options = [part for name, value in settings.items() for part in ("-e", f"{name}={value}")]
    return _figures(_output([*command, *options, str(_HERE / "load.js")]))


def _program(name: str, install: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise click.ClickException(f"{name} is missing. Install it: {install}")
    return found


def _output(command: Sequence[str]) -> str:
    # Without the proxies of the environment: the servers are on this machine.
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise click.ClickException(f"{command[0]} failed: {done.stderr or done.stdout}")
    return done.stdout


def _figures(output: str) -> Figures:
    return Figures(**json.loads(output.strip().splitlines()[-1]))
