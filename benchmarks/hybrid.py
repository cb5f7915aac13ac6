"""nDCG@10 of words (BM25), of meaning (kNN), and of both in one search with several weights, in a real index.

    python -m benchmarks.hybrid --data DATA --url http://localhost:9200 [--set cisi --set arguana-rebuilt] [--limit 200]

DATA holds `retrieval/SET/` in the BEIR layout. Titles are prepended to texts; the words are looked for with the
engine's default analyzer. The index type is flat, so that nothing is lost to a graph. Queries that are documents of the
collection leave themselves out. Each fusion looks at the first 100 of each side.

Below the table, the default weights are checked twice: against weights chosen by cross-validation over the queries of
each collection (`es-sbert index tune-hybrid`), and against weights chosen on all other collections.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click
import numpy as np
import orjson

from benchmarks.common import machine, table
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.evaluation.beir_files import read_beir_folder
from es_sbert.evaluation.fusion_scores import measure_fusions
from es_sbert.evaluation.fusion_tuning import (
    DEFAULT,
    SEMANTIC,
    TUNED,
    FusionScores,
    default_setting,
    fusion_report,
    fusion_settings,
)
from es_sbert.evaluation.significance import PairedDifference, difference_line, paired_difference
from es_sbert.evaluation.task_data import RetrievalCollection
from es_sbert.ingest.ingest_settings import IngestSettings, resolve_sources
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import SilentMeter
from es_sbert.search.hybrid_search import supported_fusions
from es_sbert.search.search_scope import read_search_scope


def load(engine: Engine, encoder: Encoder, index: str, data: RetrievalCollection) -> None:
    """Fill a new index by the ingest pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.jsonl"
        rows = ({"id": identifier, "text": text} for identifier, text in data.documents.items())
        file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        wanted = IngestSettings(
            index=index,
            files=(str(file),),
            id_field="id",
            text_fields=("text",),
            index_type="flat",
            dead_letters=Path(folder) / "dead.jsonl",
        )
        summary = run_load(
            engine, encoder, plan_load(engine, wanted, resolve_sources(wanted)), LoadControl(), SilentMeter()
        )
    if summary.indexed != len(data.documents):
        raise click.ClickException(f"{index} took {summary.indexed:,} of {len(data.documents):,} documents")
    engine.refresh(index)


def measure(engine: Engine, encoder: Encoder, data: RetrievalCollection) -> FusionScores:
    """Every setting on one collection, in an index that is deleted afterwards."""
    index = f"hybrid-{uuid.uuid4().hex[:12]}"
    engine_type = engine.info.engine_type
    try:
        load(engine, encoder, index, data)
        scope = read_search_scope(engine, [index], ["embedding"])
        settings = fusion_settings(engine_type, supported_fusions(engine_type))
        return measure_fusions(
            engine,
            scope,
            encoder,
            data,
            settings,
            lexical_fields=["text"],
            report=lambda line: click.echo(line, err=True),
        )
    finally:
        engine.delete_index(index)


def all_rankings(measured: dict[str, FusionScores]) -> list[list[str]]:
    """A row for each ranking: kind, nDCG@10 of each collection, mean."""
    every = list(measured.values())
    named = [("words", [found.lexical for found in every]), ("meaning", [found.semantic for found in every])]
    named += [(setting.label, [found.hybrid[setting] for found in every]) for setting in every[0].hybrid]
    rows = []
    for name, scores in named:
        means = [float(own.mean()) for own in scores]
        rows.append([name, *(f"{mean:.2f}" for mean in means), f"{sum(means) / len(means):.2f}"])
    return rows


def cross_validated(measured: dict[str, FusionScores]) -> Iterator[str]:
    """Weights chosen within each collection against the default ones, on queries that were held out."""
    for name, scores in measured.items():
        report = fusion_report(name, scores)
        yield f"{name}: best on all queries {report.validation.best.label}"
        yield "  " + difference_line(report.differences[TUNED, DEFAULT], "tuned", scores.default.label, "nDCG@10")
        yield "  " + difference_line(report.differences[SEMANTIC, DEFAULT], SEMANTIC, scores.default.label, "nDCG@10")


def left_out(engine: Engine, measured: dict[str, FusionScores]) -> Iterator[str]:
    """Settings of each fusion chosen on all other collections against the default of that fusion."""
    for fusion in supported_fusions(engine.info.engine_type):
        default = default_setting(engine.info.engine_type, fusion)
        for name, scores in measured.items():
            others = [other for other_name, other in measured.items() if other_name != name]
            means = {
                setting: np.mean([other.hybrid[setting].mean() for other in others])
                for setting in scores.hybrid
                if setting.fusion is fusion
            }
            chosen = max(means, key=lambda setting: means[setting])
            found: PairedDifference = paired_difference(scores.hybrid[chosen], scores.hybrid[default])
            yield f"{name}: " + difference_line(found, chosen.label, default.label, "nDCG@10")


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True)
@click.option(
    "--set", "sets", multiple=True, default=("cisi", "agentset-msmarco", "arguana-rebuilt"), show_default=True
)
@click.option("--limit", type=int, default=200, show_default=True, help="Queries of a set, drawn by a fixed seed.")
@click.option("--model", help="As for every command.")
@click.option("--precision", default="auto", show_default=True)
def main(data: Path, url: str, sets: tuple[str, ...], limit: int, model: str | None, precision: str) -> None:
    """Load, rank, measure."""
    measured: dict[str, FusionScores] = {}
    with Encoder(model, precision=precision) as encoder, closing(connect(EngineSettings(url=url))) as engine:
        for name in sets:
            collection = read_beir_folder(data / "retrieval" / name, limit=limit)
            click.echo(f"{name}: {len(collection.queries):,} queries", err=True)
            measured[name] = measure(engine, encoder, collection)
        click.echo(f"{engine.info.label}; {encoder.info.model} {encoder.info.variant}; {json.dumps(machine())}\n")
        columns = [f"{name} ({len(scores.queries):,} queries)" for name, scores in measured.items()]
        click.echo(table(["ranking, meaning:words", *columns, "mean"], all_rankings(measured)))
        click.echo("\nChosen by 10-fold cross-validation over the queries of each collection:")
        for line in cross_validated(measured):
            click.echo(line)
        if len(measured) > 1:
            click.echo("\nChosen on the other collections:")
            for line in left_out(engine, measured):
                click.echo(line)


if __name__ == "__main__":
    main()
