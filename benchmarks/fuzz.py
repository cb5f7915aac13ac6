"""100,000 fuzzed input lines: each must end as a document, a skip or a dead letter, and none in a traceback.

    python -m benchmarks.fuzz --url http://localhost:9200 [--lines 100000] [--seed 2] [--write]

What is in the index is compared with what the standard library reads in each line (`tests/fuzz`); the first things
that should not have happened are printed, and the command ends with 1.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path

import click

from benchmarks.common import delete, replaced, table
from es_sbert.encoder.encoder import Encoder
from tests.fuzz.run import fuzz
from tests.tiny import write_tiny_bert

PAGE = Path(__file__).parents[1] / "docs/reliability.md"


@click.command()
@click.option("--url", required=True)
@click.option("--lines", default=100_000, show_default=True)
@click.option("--seed", default=2, show_default=True)
@click.option("--write", is_flag=True, help="Put the table into docs/reliability.md.")
def main(url: str, lines: int, seed: int, write: bool) -> None:
    """Load them, print a table, and end with 1 where one line is not accounted for."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as made:
        folder = Path(name)
        model = write_tiny_bert(folder / "tiny")

        def new_index(address: str) -> str:
            made.close()  # one at a time: an engine bears no hundreds of them
            index = f"fuzz-{uuid.uuid4().hex[:8]}"
            made.callback(delete, address, index)
            return index

        with Encoder(str(model), precision="fp32", threads=1) as encoder:
            tally = fuzz(url, encoder, new_index, folder, lines, seed)
    names = ("read", "indexed", "skipped", "dead", "refused")
    row = [f"{lines:,}", *(f"{getattr(tally, name):,}" for name in names), len(tally.wrong)]
    shown = table(["lines", *names[:-1], "of these refused by the engine", "not accounted for"], [row])
    click.echo("\n".join([shown, *tally.wrong]))
    if write:
        PAGE.write_text(replaced(PAGE.read_text(), "fuzz", shown, maker="benchmarks.fuzz"))
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()
