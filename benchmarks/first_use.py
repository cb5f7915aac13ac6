"""Time of the first and the second use of a model, and until the gateway is ready.

    python -m benchmarks.first_use [--url http://localhost:9200] [--page]

Each command runs in a separate process, without sentence-transformers, as in the image. Processor time is that of the
process in user and kernel mode: unlike the wall time, it hardly depends on other programs. `--url` also starts the
gateway in front of that engine.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import httpx

from benchmarks.common import replaced, table
from es_sbert.runtime.device import processor_name

PAGE = Path(__file__).parents[1] / "docs/results.md"
_RUN = "import sys; sys.modules['sentence_transformers'] = None; from es_sbert.cli.main import main; main()"
_TEXTS = b"A cat sleeps.\nStocks fell.\nA man plays a guitar.\n"


def processor_seconds() -> float:
    """Processor time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def measured(rows: list[list[str]], what: str) -> Iterator[None]:
    begun, used = time.perf_counter(), processor_seconds()
    yield
    rows.append([what, f"{processor_seconds() - used:.1f}", f"{time.perf_counter() - begun:.1f}"])


def encode() -> str:
    """Embed three texts; returns the messages."""
    command = [sys.executable, "-c", _RUN, "encode", "-o", os.devnull]
    return subprocess.run(command, input=_TEXTS, stderr=subprocess.PIPE, check=True).stderr.decode()


def serve_until_ready(url: str) -> None:
    """Start the gateway, and stop it as soon as it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", _RUN, "serve", "--upstream", url, "--port", str(port)]
    deadline = time.monotonic() + 120
    gateway = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(trust_env=False) as http:
            while not is_ready(http, f"http://127.0.0.1:{port}/readyz"):
                if gateway.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the gateway does not become ready: is there an engine at --url?")
                time.sleep(0.02)
    finally:
        gateway.kill()
        gateway.wait()


def is_ready(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(url).status_code == 200
    except httpx.TransportError:  # it does not listen yet
        return False


@click.command()
@click.option("--url", help="An engine, to start the gateway too.")
@click.option("--page", is_flag=True, help="Write the table into docs/results.md.")
def main(url: str | None, page: bool) -> None:
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ES_SBERT_CACHE"] = cache
        with measured(rows, "`encode` of 3 texts, empty cache"):
            click.echo(encode(), err=True)
        time.sleep(2.5)  # hashes of files that have just been written are not cached
        encode()
        with measured(rows, "the same again"):
            encode()
        if url is not None:
            with measured(rows, "`serve` until `/readyz` is 200"):
                serve_until_ready(url)
    command = "python -m benchmarks.first_use" + (" --url URL" if url else "")
    text = f"`{command}`, {processor_name()}, {os.cpu_count()} processors; load average {os.getloadavg()[0]:.1f}\n\n"
    text += table(["all-MiniLM-L6-v2", "processor time, s", "wall time, s"], rows)
    click.echo(text)
    if page:
        PAGE.write_text(replaced(PAGE.read_text(), "first use", text, maker="benchmarks.first_use"))


if __name__ == "__main__":
    main()
