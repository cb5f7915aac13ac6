"""A load that finds everything unchanged, and one that resumes half-way: seconds until it ends, or embeds again.

    python -m benchmarks.reload --url http://localhost:9200 [--documents 450000] [--write]

Short documents that are all different go through `es-sbert ingest` with a tiny model (random weights, 16 dimensions),
so that reading, comparing and looking up is what takes the time. The load is killed (SIGKILL) once half of the
documents are in, resumed to its end, and run once more. The resume is timed from the start of the process to
`embedded_at` of its first document.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from benchmarks.common import machine, replaced, table
from benchmarks.memory import delete, documents
from es_sbert.clock import format_timestamp
from es_sbert.engines.engine import Engine
from tests.engine.ingest_support import open_engine
from tests.tiny import write_tiny_bert

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
_POLL_SECONDS = 0.1


class Command:
    """The command under test, with the same arguments each time."""

    def __init__(self, url: str, index: str, model: Path, source: Path) -> None:
        self._out = source.with_name("summary.json")
        self._messages = source.with_name("messages.txt")
        self._command = [
            sys.executable, "-m", "es_sbert", "ingest", "--url", url, "--index", index, "--model", str(model),
            "--precision", "fp32", "--threads", "1", "--id-field", "id", "--index-type", "flat", "--json",
            "--dead-letters", str(source.with_name("dead-letters.jsonl")), str(source),
        ]  # fmt: skip

    def start(self) -> subprocess.Popen[bytes]:
        with self._out.open("wb") as out, self._messages.open("wb") as messages:
            return subprocess.Popen(self._command, stdout=out, stderr=messages)

    def finish(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """The summary of a load that must find nothing wrong."""
        if process.wait() != 0:
            raise click.ClickException(f"the load failed: {self._messages.read_text()}")
        summary: dict[str, Any] = orjson.loads(self._out.read_bytes())
        return summary


def kill_half_way(engine: Engine, index: str, command: Command, count: int) -> None:
    """Start the load and kill it once half of the documents are in."""
    process = command.start()
    try:
        while not engine.get_index(index) or engine.count(index) < count // 2:
            if process.poll() is not None:
                raise click.ClickException("the load ended before half of it was seen")
            time.sleep(_POLL_SECONDS)
            if engine.get_index(index):
                engine.refresh(index)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def first_embedded(engine: Engine, index: str, since: datetime) -> float:
    """Seconds from a moment to the first vector that was made after it."""
    field = "embedding_meta.embedded_at"
    query = {"range": {field: {"gte": format_timestamp(since)}}}
    body = {"query": query, "size": 1, "sort": [{field: "asc"}], "_source": False}
    [hit] = engine.search(index, body)["hits"]["hits"]
    return float(hit["sort"][0] / 1000 - since.timestamp())


@click.command()
@click.option("--url", required=True)
@click.option("--documents", "count", default=450_000, show_default=True)
@click.option("--write", is_flag=True, help="Put the table into docs/reliability.md.")
def main(url: str, count: int, write: bool) -> None:
    """Measure and print a table."""
    index = f"reload-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as name, open_engine(url) as engine:
        folder = Path(name)
        source = folder / "documents.jsonl"
        with source.open("wb") as file:
            file.writelines(documents(count))
        command = Command(url, index, write_tiny_bert(folder / "tiny"), source)
        try:
            kill_half_way(engine, index, command, count)
            begin = datetime.now(UTC)
            resumed = command.finish(command.start())
            engine.refresh(index)
            first = first_embedded(engine, index, begin)
            start = time.monotonic()
            unchanged = command.finish(command.start())
            seconds = time.monotonic() - start
        finally:
            delete(url, index)
    half = resumed["unchanged"]
    if (resumed["indexed"] + half, unchanged["unchanged"]) != (count, count):
        raise click.ClickException(f"not every document was found again: {resumed}, then {unchanged}")
    rows = [
        ["resumed with half of it done: until the first new vector", f"{half:,} of {count:,}", f"{first:,.1f}"],
        ["run again, all unchanged: until the end", f"{count:,}", f"{seconds:,.1f}"],
    ]
    shown = table(["load", "documents in the index", "seconds"], rows)
    click.echo(f"{shown}\n\n{engine.info.label}; {machine()}")
    if write:
        PAGE.write_text(replaced(PAGE.read_text(), "reload", shown, maker="benchmarks.reload"))


if __name__ == "__main__":
    main()
