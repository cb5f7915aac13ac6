"""How time and memory grow with the number of documents, and what a large load needs.

    python -m benchmarks.scale --data DATA --url http://localhost:9200 [--sizes 1000,10000,100000,450000] [--write]
    python -m benchmarks.scale --model-only [--write]

DATA holds `ingest/short-docs.jsonl.gz` (id, text, source; 451,640 documents). Each cell, a part with a number of
documents, runs in its own process, whose memory is measured. Loading the model, reading files and making vectors
count for the memory only, not for the time. Pairs, duplicates, clusters and searches are of sums of two vectors of the
first 10,000 documents at random, normalized: they are distributed as those of sentences are, which random numbers,
whose pairs no bound leaves out, are not.

Costs are processor time, of threads or processes, and of the engine as its node statistics tell: nothing else should
use the engine. A cell that by the law of its part would take more than --limit seconds is skipped, one that does is
stopped, and the larger sizes of its part are skipped.

--write keeps the run in `benchmarks/results/scale/KIND.json`, where it replaces the parts that it measured, and writes
the tables of docs/scale.md.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click

from benchmarks.encode_peers.processor import this_processor
from benchmarks.kept_runs import conditions, write_section
from benchmarks.scale import cells, results
from benchmarks.scale.cells import Cell, Task
from benchmarks.scale.isolation import TimeLimitReached, within
from benchmarks.scale.laws import LAWS, expected_seconds
from benchmarks.scale.results import Run
from es_sbert.config import DEFAULT_MODEL, EngineSettings
from es_sbert.engines.connect import connect

COSTS = "costs"
_WARM_UP = 5_000  # vectors
_PREPARATION = 600.0  # seconds for the vectors that others are sums of, and for the costs


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--url", default="", help="An engine without credentials that nothing else uses.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--sizes", default="1000,10000,100000,450000", show_default=True)
@click.option("--parts", default=",".join([*LAWS, COSTS]), show_default=True)
@click.option("--limit", default=300.0, show_default=True, help="Seconds that a cell may take.")
@click.option("--write", is_flag=True, help="Keep the run, and write the tables into docs/scale.md.")
@click.option("--model-only", is_flag=True, help="Run nothing; show, or write, what follows from the kept costs.")
def main(
    data: Path | None, url: str, model: str, sizes: str, parts: str, limit: float, write: bool, model_only: bool
) -> None:
    """Measure each part with each number of documents, and print the tables."""
    if model_only:
        if write:
            _write_page()
        for run in results.kept().values():
            click.echo(f"{run.processor['name']}\n\n{results.model_text(run)}\n")
        return
    if data is None:
        raise click.UsageError("--data is needed.")
    chosen = parts.split(",")
    if unknown := set(chosen) - {*LAWS, COSTS}:
        raise click.UsageError(f"unknown parts: {', '.join(sorted(unknown))}")
    if not url and {*chosen} & {*cells.OF_ENGINE, COSTS}:
        raise click.UsageError(f"--url is needed for {', '.join(sorted({*chosen} & {*cells.OF_ENGINE, COSTS}))}.")
    run = _run(data, url, model, sorted({int(size) for size in sizes.split(",")}), chosen, limit)
    if write:
        results.keep(run)
        _write_page()
    click.echo(results.run_text(run))


def _run(data: Path, url: str, model: str, sizes: Sequence[int], parts: Sequence[str], limit: float) -> Run:
    begun, engine = conditions(this_processor()), {}
    if url:
        with closing(connect(EngineSettings(url=url))) as found:
            engine = {"engine_type": str(found.info.engine_type), "version": list(found.info.version)}
    with tempfile.TemporaryDirectory() as folder:
        task = Task(data, Path(folder), model)
        if (cells.OF_VECTORS | cells.OF_ENGINE) & {*parts}:
            within(_PREPARATION, cells.embed_sentences, min(cells.SENTENCES, sizes[-1]), task)
        if url and cells.OF_ENGINE & {*parts}:
            _measured("search-hnsw", min(_WARM_UP, sizes[-1]), task, url, limit)  # the engine's compiler warms up
        measured = [cell for part in LAWS if part in parts for cell in _cells(part, sizes, task, url, limit)]
        costs = {}
        if COSTS in parts:
            task = Task(data, Path(folder), model, url)
            costs = within(_PREPARATION, cells.measure_costs, min(cells.COST_DOCUMENTS, sizes[-1]), task)
    return Run(
        engine=engine,
        limit=limit,
        **{name: begun[name] for name in ("processor", "date", "commit", "load")},
        cells=measured,
        costs=costs,
    )


def _cells(part: str, sizes: Sequence[int], task: Task, url: str, limit: float) -> list[Cell]:
    """The cells of a part; once one takes too long, larger ones are skipped."""
    found: list[Cell] = []
    for size in sizes:
        whole = [(cell.size, cell.whole_seconds) for cell in found if cell.seconds is not None]
        expected = expected_seconds(part, size, whole)
        if found and found[-1].reason:
            cell = Cell(part, size, reason="skipped, like the size before")
        elif expected is not None and expected > limit:
            cell = Cell(part, size, reason=f"skipped: {expected:,.0f} s are expected")
        else:
            cell = _measured(part, size, task, url, limit)
        click.echo(str(cell), err=True)
        found.append(cell)
    return found


def _measured(part: str, size: int, task: Task, url: str, limit: float) -> Cell:
    needs_engine = part in cells.OF_ENGINE
    index = f"benchmark-scale-{uuid.uuid4().hex[:8]}" if needs_engine else ""
    own = Task(task.data, task.folder, task.model, url if needs_engine else "", index)
    try:
        return within(limit, cells.measure, part, size, own)
    except TimeLimitReached as error:
        return Cell(part, size, reason=str(error))
    finally:
        if needs_engine:
            with closing(connect(EngineSettings(url=url))) as engine:
                if engine.get_index(index) is not None:
                    engine.delete_index(index)


def _write_page() -> None:
    write_section(results.PAGE, results.NAME, results.section(results.kept()), maker=results.MAKER)


if __name__ == "__main__":
    main()
