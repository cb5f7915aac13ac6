"""What `es-sbert adapt` gains over the stock model, with 95 % confidence intervals.

    python -m benchmarks.adapt --url http://localhost:9200 --data DATA [--set cisi …] [--epochs 1] [--threads 1]

Each set is loaded into a new index with the stock model, adapted to, and the index is deleted. DATA holds
`retrieval/SET/` in the BEIR layout and `ingest/short-docs.jsonl.gz`; the set `stdlib` is examples/stdlib_docs.py. Of
sets with titles, the title finds the text; of others, the first sentence finds the rest. Where a set has judged
queries, the same two models are compared on these as well: what titles teach must help with queries that people have
written.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import click

from benchmarks.acceptance import delete, ingest
from benchmarks.common import machine, read_jsonl, table
from es_sbert.adaptation.adapt import adapt
from es_sbert.adaptation.adapt_plan import AdaptSettings
from es_sbert.adaptation.adapt_result import AdaptResult
from es_sbert.adaptation.model_comparison import ModelComparison
from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.evaluation.beir_files import read_beir_folder
from es_sbert.evaluation.evaluated_models import close_model, open_model
from es_sbert.evaluation.significance import compare_reports, shown_difference
from es_sbert.evaluation.task_data import EvaluationTask, RetrievalCollection
from es_sbert.evaluation.task_runner import run_task

SETS = ("stdlib", "cisi", "arguana-rebuilt", "agentset-msmarco", "short-docs")
ROOT = Path(__file__).parents[1]


def documents(data: Path, name: str, limit: int) -> Iterator[dict[str, Any]]:
    """The documents of a set: `id`, `text`, and `title` where they have one."""
    if name == "stdlib":
        script = [sys.executable, str(ROOT / "examples/stdlib_docs.py")]
        lines = subprocess.run(script, capture_output=True, check=True).stdout.splitlines()
        yield from islice(map(json.loads, lines), limit)
    elif name == "short-docs":
        yield from islice(read_jsonl(data / "ingest/short-docs.jsonl.gz"), limit)
    else:
        for row in islice(read_jsonl(data / "retrieval" / name / "corpus.jsonl.gz"), limit):
            title = row.get("title")
            yield {"id": row["_id"], "text": row["text"]} | ({"title": title} if title else {})


def run(
    url: str, data: Path, name: str, limit: int, threads: int, **settings: Any
) -> tuple[AdaptResult, ModelComparison | None, float]:
    """Load a set, adapt to it, delete it.

    Returns:
        The result; the comparison on judged queries, if the set has some; the seconds of the adaptation.
    """
    index, folder = f"adapt-{name}", data / "retrieval" / name
    with tempfile.TemporaryDirectory() as work, closing(connect(EngineSettings(url=url))) as engine:
        if engine.get_index(index):
            delete(url, index)
        file, output = Path(work) / "documents.jsonl", Path(work) / "tuned"
        rows = [row for row in documents(data, name, limit) if row["text"].strip()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        text = ("--text-template", "{title}. {text}") if any("title" in row for row in rows) else ()
        ingest(url, index, "--id-field", "id", *text, str(file))
        try:
            chosen = AdaptSettings(index=index, name=f"{name}-tuned", documents=limit, **settings)
            how: Any = {"device": "cpu", "threads": threads, "report": lambda line: click.echo(line, err=True)}
            began = time.monotonic()
            result = adapt(engine, chosen, output, keep=True, **how)
            seconds = time.monotonic() - began
        finally:
            delete(url, index)
        if not (folder / "qrels").is_dir():
            return result, None, seconds
        lines = (output / "adapt/documents.jsonl").read_bytes().splitlines()  # a str has more ends of lines
        collection = judged_part(folder, {json.loads(line)["id"] for line in lines})
        return result, compare_on_judged(collection, result.plan.model, str(output / "model"), threads), seconds


def judged_part(folder: Path, loaded: set[str]) -> RetrievalCollection:
    """A collection in the BEIR layout, cut to the documents of an index and the queries that they are relevant to."""
    whole = read_beir_folder(folder)
    found = {
        query: {id: grade for id, grade in grades.items() if id in loaded} for query, grades in whole.judgements.items()
    }
    judgements = {query: grades for query, grades in found.items() if any(grade > 0 for grade in grades.values())}
    # The whole texts: an index may hold shorter ones, in which a query that is a document does not find itself.
    documents = {id: text for id, text in whole.documents.items() if id in loaded}
    queries = {query: whole.queries[query] for query in judgements}
    return RetrievalCollection(whole.name, documents, queries, judgements)


def compare_on_judged(collection: RetrievalCollection, stock: str, tuned: str, threads: int) -> ModelComparison:
    """Both models on the judged queries of a collection; queries that are documents leave themselves out."""
    reports = []
    for name in (tuned, stock):
        model = open_model(name, backend="onnx", device="cpu", precision="fp32", threads=threads)
        reports.append(run_task(model, EvaluationTask.RETRIEVAL, [collection]))
        close_model(model)
    found = compare_reports(reports[0], reports[1], (tuned, stock)).differences[collection.name]
    return ModelComparison(len(collection.documents), found["ndcg@10"], found["recall@10"])


def rows_of(name: str, kind: str, compared: ModelComparison, *more: str) -> list[list[str]]:
    """Table rows of a comparison, one for each metric."""
    rows = []
    for measure, metric in compared.metrics.items():
        interval = f"{metric.low:+.1f} to {metric.high:+.1f}"
        figures = [
            f"{metric.second:.1f}",
            f"{metric.first:.1f}",
            f"{shown_difference(metric.first, metric.second, 1):+.1f}",
            interval,
        ]
        rows.append([name, f"{compared.queries:,} {kind}", measure, *figures])
    return [[*rows[0], str(compared.verdict), *more], [*rows[1], *[""] * (1 + len(more))]]


@click.command()
@click.option("--url", required=True)
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--set", "sets", multiple=True, default=SETS)
@click.option("--limit", type=int, default=20_000, help="Most documents of a set.")
@click.option("--most-pairs", type=int, default=10_000)
@click.option("--held-out", type=int, default=500)
@click.option("--epochs", type=float, default=1.0)
@click.option("--negatives", type=int, default=1)
@click.option("--learning-rate", type=float, default=5e-5)
@click.option("--seed", type=int, default=0)
@click.option("--threads", type=int, default=1)
@click.option("--output", type=click.Path(path_type=Path), help="JSON file of the results.")
def main(
    url: str,
    data: Path,
    sets: tuple[str, ...],
    limit: int,
    most_pairs: int,
    threads: int,
    output: Path | None,
    **how: Any,
) -> None:
    """Adapt to each set, and print the table."""
    rows, results = [], {}
    for name in sets:
        result, judged, seconds = run(url, data, name, limit, threads, most_trained=most_pairs, **how)
        held_out = result.comparison
        kind = f"titles ({result.plan.fields.title})" if result.plan.fields.title else "first sentences"
        rows += rows_of(name, kind, held_out, f"{result.trained:,}", f"{held_out.documents:,}", f"{seconds / 60:.0f}")
        rows += [] if judged is None else rows_of(name, "judged queries", judged, "", "", "")
        results[name] = {"held_out": asdict(held_out), "judged": judged and asdict(judged), "trained": result.trained}
        if output:
            output.write_text(json.dumps({"machine": machine(), "settings": how, "sets": results}, indent=2) + "\n")
    header = ["set", "queries", "metric", "stock", "tuned", "difference", "95 % interval", "verdict"]
    click.echo(table([*header, "pairs", "documents", "minutes"], rows))


if __name__ == "__main__":
    main()
