"""The minimum cosine that `es-sbert index calibrate` recommends, and what it does to queries that it was not chosen by.

    python -m benchmarks.calibrate --data DATA --url http://localhost:9200 [--set cisi] [--write]

DATA holds `ingest/short-docs.jsonl.gz` (the first 5,000 documents, without labeled queries), `retrieval/SET/` in the
BEIR layout, and `duplicates/qqp-sample-test.tsv.gz`: of each pair that is labeled as a duplicate, the first question
is a query and the second the document to be found, among the second questions of all pairs.

Held out: half of the queries, drawn at random, choose the value, and the other half is searched for with it; 100 times.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import click
import numpy as np

from benchmarks.common import machine, read_jsonl, read_tsv, replaced, spread, table
from benchmarks.hybrid import load
from es_sbert.config import EngineSettings
from es_sbert.diagnostics.calibration import CosineSample, ThresholdRow, calibrate, row_at
from es_sbert.diagnostics.index_calibration import IndexCalibrator, LabeledQuery
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.evaluation.beir_files import read_beir_folder
from es_sbert.evaluation.task_data import RetrievalCollection

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
KEEP, SPLITS, DOCUMENTS = 0.95, 100, 5000
SETS = ("short-docs", "qqp", "agentset-msmarco", "cisi")

Labeled = list[LabeledQuery]


def read_set(data: Path, name: str) -> tuple[RetrievalCollection, Labeled]:
    """The documents of a set, and its labeled queries where it has any."""
    if name == "short-docs":
        rows = islice(read_jsonl(data / "ingest" / "short-docs.jsonl.gz"), DOCUMENTS)
        return RetrievalCollection(name, {str(row["id"]): row["text"] for row in rows}, {}, {}), []
    if name == "qqp":
        pairs = list(read_tsv(data / "duplicates" / "qqp-sample-test.tsv.gz"))
        ids = {row["question2"]: str(number) for number, row in enumerate(pairs)}
        relevant: dict[str, list[str]] = {}
        for row in pairs:
            if row["is_duplicate"] == "1":
                relevant.setdefault(row["question1"], []).append(ids[row["question2"]])
        documents = {own: text for text, own in ids.items()}
        return RetrievalCollection(name, documents, {}, {}), [
            LabeledQuery(text, tuple(own)) for text, own in relevant.items()
        ]
    collection = read_beir_folder(data / "retrieval" / name)
    return collection, [
        LabeledQuery(text, tuple(id for id, grade in collection.judgements[query].items() if grade > 0))
        for query, text in collection.queries.items()
    ]


def held_out(sample: CosineSample) -> Iterator[tuple[float, ThresholdRow]]:
    """Values chosen by one half of the queries, and what each does to the other half."""
    random = np.random.default_rng(0)
    for _ in range(SPLITS):
        order = random.permutation(len(sample.relevant)).tolist()
        half = len(order) // 2
        value = calibrate(sample.of(order[:half]), KEEP).recommended.row.min_cosine
        yield value, row_at(sample.of(order[half:]), value)


def cells(name: str, queries: str, sample: CosineSample, labeled: bool) -> list[object]:
    """A row of the table."""
    recommended = calibrate(sample, KEEP).recommended
    row = recommended.row
    others = list(held_out(sample))

    def over(take: Callable[[ThresholdRow], float | None], digits: int) -> str:
        return spread([100 * (take(other) or 0.0) for _, other in others], digits)

    interval = f"{'' if recommended.low is None else f'{recommended.low:.2f}'}–{recommended.high:.2f}"
    return [
        name,
        queries,
        f"{row.min_cosine:.2f} ({interval})",
        spread([value for value, _ in others], 2),
        over(lambda other: other.recall.mean, 1),
        over(lambda other: other.unrelated.mean, 2),
        f"{row.hits:.1f}",
        over(lambda other: other.precision, 1) if labeled else "",
    ]


def rows_of(
    engine: Engine, encoder: Encoder, collection: RetrievalCollection, queries: Labeled
) -> Iterator[tuple[list[object], list[object] | None]]:
    """Rows of both tables."""
    index = f"calibrate-{uuid.uuid4().hex[:12]}"
    name = f"{collection.name} ({len(collection.documents):,})"
    try:
        load(engine, encoder, index, collection)
        field = IndexCalibrator(engine, index, "embedding")
        pseudo = field.measure(encoder)
        yield cells(name, f"{len(pseudo.queries.queries):,} pseudo", pseudo.cosines, False), None
        if not queries:
            return
        labeled = field.measure(encoder, queries)
        # The same pseudo-queries, each compared with its whole document.
        whole = field.measure(encoder, pseudo.queries.queries)
        values = [calibrate(measured.cosines, KEEP).recommended.row.min_cosine for measured in (whole, pseudo, labeled)]
        rows = [row_at(labeled.cosines, value) for value in values]
        yield (
            cells(name, f"{len(labeled.queries.queries):,} labeled", labeled.cosines, True),
            [
                name,
                *(f"{row.min_cosine:.2f}: {100 * row.recall.mean:.1f}, {100 * row.unrelated.mean:.2f}" for row in rows),
            ],
        )
    finally:
        engine.delete_index(index)


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True)
@click.option("--set", "sets", multiple=True, default=SETS, show_default=True)
@click.option("--model", help="As for every command.")
@click.option("--write", is_flag=True, help="Put the tables into docs/results.md.")
def main(data: Path, url: str, sets: tuple[str, ...], model: str | None, write: bool) -> None:
    """Load, calibrate, measure."""
    first: list[list[object]] = []
    second: list[list[object]] = []
    with Encoder(model) as encoder, closing(connect(EngineSettings(url=url))) as engine:
        for name in sets:
            for row, compared in rows_of(engine, encoder, *read_set(data, name)):
                first.append(row)
                second += [compared] if compared is not None else []
                click.echo(f"{row} {compared}", err=True)
        click.echo(f"{engine.info.label}; {encoder.info.model} {encoder.info.variant}; {json.dumps(machine())}\n")
    shown = (
        table(
            [
                "index (documents)",
                "queries",
                "recommended (95 % interval)",
                "by half of the queries",
                "held out: recall, %",
                "held out: unrelated that pass, %",
                "hits of 10",
                "held out: precision of hits, %",
            ],
            first,
        )
        + "\n\n"
        + table(
            [
                "labeled queries of (documents)",
                "pseudo-queries and whole documents: value: recall, unrelated, %",
                "pseudo-queries: value: recall, unrelated, %",
                "labeled queries: value: recall, unrelated, %",
            ],
            second,
        )
    )
    click.echo(shown)
    if write:
        PAGE.write_text(replaced(PAGE.read_text(), "calibrate", shown, maker="benchmarks.calibrate"))


if __name__ == "__main__":
    main()
