"""Every fault three times in a row, with the real command line against servers that it starts itself.

    python -m benchmarks.reliability [--engine es9] [--fault clock] [--write]

Each run loads a new index from a new source, makes the fault happen, brings the load to its end and compares index and
dead letters with what they must hold, document by document, vectors included. Runs are kept in
`benchmarks/results/reliability`; --write puts the table of all that are kept into docs/reliability.md. Ends with 1
where anything is lost, doubled or stale. Faults that fill a disk mount a small one, for which they need root.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path

import click

from benchmarks.common import machine, replaced
from benchmarks.reliability.kept import MAKER, NAME, PAGE, FaultRun, keep, section
from es_sbert.encoder.encoder import Encoder
from tests.faults.bench import Bench, FaultNotFelt
from tests.faults.catalog import FAULTS
from tests.faults.compare import compare
from tests.faults.corpus import corpus
from tests.faults.fault import EVERY_ENGINE, Fault
from tests.faults.servers import OwnServer, own_server
from tests.tiny import write_tiny_bert

# A load that was over before the fault could happen says nothing and is run again, but not for ever.
_TRIES = 5


def run_once(
    fault: Fault, server: OwnServer, engine: str, encoder: Encoder, model: Path, *, documents: int, outage: float
) -> FaultRun:
    """One run of a fault.

    Raises:
        FaultNotFelt: it could not do anything to the load.
        WrongEnd: a command did not end as it must.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        index = f"reliability-{uuid.uuid4().hex[:8]}"
        bench = Bench(engine, server.url, index, model, encoder, Path(folder), corpus(documents), outage, server)
        with closing(bench):
            bench.create(fault.shards, fault.index)
            summary = fault.happen(bench)
        end = compare(bench)
    if end.settings:
        raise click.ClickException(f"{fault.name}: the load has not restored the index settings: {end.settings}")
    return FaultRun(
        bench.commands,
        *(summary[name] for name in ("read", "indexed", "updated", "unchanged")),
        sum(summary["skipped"].values()),
        summary["dead"],
        summary["left"],
        summary["retries"],
        end.documents,
        end.doubled,
        end.lost,
        round(time.monotonic() - begin, 1),
        end.stale,
    )


def felt(fault: Fault, *arguments: object, **options: object) -> FaultRun:
    """A run in which the fault did happen to the load."""
    for _ in range(_TRIES - 1):
        try:
            return run_once(fault, *arguments, **options)  # type: ignore[arg-type]
        except FaultNotFelt as error:
            click.echo(f"  once more, {error}", err=True)
    return run_once(fault, *arguments, **options)  # type: ignore[arg-type]


@click.command()
@click.option("--engine", "engines", multiple=True, type=click.Choice(EVERY_ENGINE), default=EVERY_ENGINE)
@click.option("--fault", "words", multiple=True, help="Only faults whose name holds this.")
@click.option("--runs", default=3, show_default=True)
@click.option("--documents", default=5000, show_default=True)
@click.option("--outage", default=120.0, show_default=True, help="Seconds that the engine is stopped.")
@click.option("--kept", is_flag=True, help="Run nothing; with --write, the table of what is kept.")
@click.option("--write", is_flag=True, help="Put the table into docs/reliability.md.")
def main(
    engines: tuple[str, ...], words: tuple[str, ...], runs: int, documents: int, outage: float, kept: bool, write: bool
) -> None:
    """Run the faults and keep what came of them."""
    bad = 0 if kept else _run(engines, words, runs, documents, outage)
    if write:
        PAGE.write_text(replaced(PAGE.read_text(), NAME, section(), maker=MAKER))
    sys.exit(1 if bad else 0)


def _run(engines: tuple[str, ...], words: tuple[str, ...], runs: int, documents: int, outage: float) -> int:
    """All faults asked for; how many runs went wrong."""
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_bert(Path(folder) / "tiny")
        with Encoder(str(model), precision="fp32", threads=1) as encoder:
            for engine in engines:
                chosen = [
                    fault
                    for fault in FAULTS
                    if engine in fault.engines and (not words or any(word in fault.name for word in words))
                ]
                chosen.sort(key=_configuration)
                for _, group in groupby(chosen, key=_configuration):
                    bad += _run_group(list(group), engine, encoder, model, runs, documents, outage)
    return bad


def _configuration(fault: Fault) -> list[tuple[str, str]]:
    return sorted(fault.settings.items())


def _run_group(
    faults: list[Fault], engine: str, encoder: Encoder, model: Path, runs: int, documents: int, outage: float
) -> int:
    """Faults on one server; how many runs went wrong."""
    bad = 0
    with ExitStack() as stack:
        server = stack.enter_context(own_server(engine, faults[0].settings))
        for fault in faults:
            done = []
            for number in range(runs):
                one = felt(fault, server, engine, encoder, model, documents=documents, outage=outage)
                done.append(one)
                bad += not one.good
                click.echo(f"{engine}: {fault.name}, {number + 1} of {runs}: {'good' if one.good else 'BAD'} {one}")
            keep(fault, engine, done, {"documents": documents, "outage": outage} | machine())
    return bad


if __name__ == "__main__":
    main()
