"""Peak memory of a whole load, of few documents and of nine times as many: it must be the same within 10 %.

    python -m benchmarks.memory --url http://localhost:9200 [--write]

Short documents that are all different go through `es-sbert ingest` with a tiny model (random weights) into an index of
type flat, so that all that could grow with their number does so in minutes. What is measured is the peak resident
memory of the process, as the kernel counts it. With `--letters N`, also that of `--retry` with N dead letters, which
does grow: it remembers which letter of a document is the last.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import orjson

from benchmarks.common import machine, replaced, table
from tests.engine.ingest_support import open_engine
from tests.tiny import write_tiny_bert

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
_MOST_GROWTH = 1.10
_WORDS = ("river", "guitar", "storm", "bread", "engine", "winter", "doctor", "market", "violin", "forest")


@dataclass(frozen=True)
class Measured:
    """One load.

    Attributes:
        peak: Resident memory at its highest, in MiB.
    """

    documents: int
    peak: float
    seconds: float


def documents(count: int, *, broken: bool = False) -> Iterator[bytes]:
    """Lines of JSON; with a price that a mapping of numbers refuses where `broken`."""
    for number in range(count):
        words = " ".join(_WORDS[number // 10**digit % 10] for digit in range(6))
        price = "none" if broken else number / 8
        yield orjson.dumps({"id": f"document-{number}", "text": f"{words} {number}", "price": price}) + b"\n"


def measure(url: str, index: str, model: Path, folder: Path, count: int, *arguments: str) -> Measured:
    """Run one load in its own process."""
    command = [
        sys.executable, "-m", "es_sbert", "ingest", "--url", url, "--index", index, "--model", str(model),
        "--precision", "fp32", "--threads", "1", "--id-field", "id", "--index-type", "flat", "--quiet", "--json",
        "--dead-letters", str(folder / "dead-letters.jsonl"), *arguments,
    ]  # fmt: skip
    out = folder / "summary.json"
    begin = time.monotonic()
    actions = [(os.POSIX_SPAWN_OPEN, 1, str(out), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)]
    pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
    _, status, usage = os.wait4(pid, 0)
    summary = orjson.loads(out.read_bytes())
    if os.waitstatus_to_exitcode(status) not in (0, 1) or summary["indexed"] + summary["dead"] != count:
        raise click.ClickException(f"the load went wrong: {summary}")
    return Measured(count, usage.ru_maxrss / 1024, time.monotonic() - begin)


def load(url: str, model: Path, folder: Path, count: int) -> Measured:
    """Load so many documents into a new index."""
    source = folder / "documents.jsonl"
    with source.open("wb") as file:
        file.writelines(documents(count))
    index = f"memory-{uuid.uuid4().hex[:8]}"
    try:
        return measure(url, index, model, folder, count, str(source))
    finally:
        delete(url, index)


def retry(url: str, model: Path, folder: Path, count: int) -> Measured:
    """Make so many dead letters, and try them again in vain."""
    source = folder / "documents.jsonl"
    with source.open("wb") as file:
        file.writelines(documents(count, broken=True))
    index = f"memory-{uuid.uuid4().hex[:8]}"
    try:
        with open_engine(url) as engine:
            engine.create_index(index, {"mappings": {"properties": {"price": {"type": "double"}}}})
        measure(url, index, model, folder, count, str(source))
        return measure(url, index, model, folder, count, "--retry", str(folder / "dead-letters.jsonl"))
    finally:
        delete(url, index)
        (folder / "dead-letters.jsonl").unlink(missing_ok=True)


def delete(url: str, index: str) -> None:
    """Remove an index of this benchmark."""
    with urllib.request.urlopen(urllib.request.Request(f"{url}/{index}", method="DELETE")):
        pass


@click.command()
@click.option("--url", required=True)
@click.option("--few", default=50_000, show_default=True)
@click.option("--many", default=450_000, show_default=True)
@click.option("--letters", default=0, show_default=True, help="Also --retry with so many dead letters.")
@click.option("--write", is_flag=True, help="Put the table into docs/reliability.md.")
def main(url: str, few: int, many: int, letters: int, write: bool) -> None:
    """Measure, print a table, and end with 1 where memory grows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = write_tiny_bert(folder / "tiny")
        load(url, model, folder, 1000)  # the model is exported once, which takes memory too
        runs = [("load", load(url, model, folder, count)) for count in (few, many)]
        growth = runs[1][1].peak / runs[0][1].peak
        if letters:
            runs += [("--retry", retry(url, model, folder, count)) for count in (letters // 10, letters)]
    rows = [
        [kind, f"{one.documents:,}", f"{one.peak:,.0f}", f"{one.documents / one.seconds:,.0f}"] for kind, one in runs
    ]
    shown = table(["", "documents", "peak, MiB", "documents/s"], rows)
    click.echo(f"{shown}\n\n{many:,} documents take {growth:.3f} times the memory of {few:,}; {machine()}")
    if write:
        PAGE.write_text(replaced(PAGE.read_text(), "memory", shown, maker="benchmarks.memory"))
    sys.exit(0 if growth <= _MOST_GROWTH else 1)


if __name__ == "__main__":
    main()
