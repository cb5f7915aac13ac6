"""What `es-sbert adapt` gains over the stock model, with 95 % confidence intervals.

    python -m benchmarks.adapt --url http://localhost:9200 --data DATA [--set cisi …] [--epochs 1] [--threads 1]

Each set is loaded into a new index with the stock model, adapted to, and the index is deleted. DATA holds
`retrieval/SET/` in the BEIR layout and `ingest/short-docs.jsonl.gz`; the set `stdlib` is examples/stdlib_docs.py. Of
sets with titles, the title finds the text; of others, the first sentence finds the rest. `SET:judged` measures with the
judged queries of the set instead of held-out titles or sentences, and trains on the same pairs.
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
from benchmarks.common import machine, read_jsonl, read_tsv, table
from es_sbert.adaptation.adapt import AdaptResult, adapt
from es_sbert.adaptation.adapt_plan import AdaptInputs, AdaptSettings
from es_sbert.config import EngineSettings
from es_sbert.diagnostics.index_calibration import LabelledQuery
from es_sbert.engines.connect import connect

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


def judged_queries(folder: Path) -> list[LabelledQuery]:
    """The test queries of a set in the BEIR layout, with their relevant documents."""
    relevant: dict[str, list[str]] = {}
    for row in read_tsv(folder / "qrels/test.tsv.gz"):
        query, document, grade = row.values()
        if int(grade) > 0:
            relevant.setdefault(query, []).append(document)
    texts = {row["_id"]: row["text"] for row in read_jsonl(folder / "queries.jsonl.gz")}
    return [LabelledQuery(texts[query], tuple(ids)) for query, ids in relevant.items()]


def run(url: str, data: Path, name: str, limit: int, threads: int, **settings: Any) -> tuple[AdaptResult, float]:
    """Load a set, adapt to it, delete it; the result and the seconds of the adaptation."""
    own, _, judged = name.partition(":")
    index = f"adapt-{own}"
    inputs = AdaptInputs(judged_queries(data / "retrieval" / own) if judged else None)
    with tempfile.TemporaryDirectory() as work, closing(connect(EngineSettings(url=url))) as engine:
        if engine.get_index(index):
            delete(url, index)
        file = Path(work) / "documents.jsonl"
        rows = [row for row in documents(data, own, limit) if row["text"].strip()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        text = ("--text-template", "{title}. {text}") if any("title" in row for row in rows) else ()
        ingest(url, index, "--id-field", "id", *text, str(file))
        began = time.monotonic()
        try:
            chosen = AdaptSettings(index=index, name=f"{own}-tuned", documents=limit, **settings)
            how: Any = {"device": "cpu", "threads": threads, "report": lambda line: click.echo(line, err=True)}
            return adapt(engine, chosen, Path(work) / "tuned", inputs=inputs, **how), time.monotonic() - began
        finally:
            delete(url, index)


def rows_of(name: str, result: AdaptResult, seconds: float) -> list[list[str]]:
    """Table rows of a set, one for each metric."""
    compared, fields = result.comparison, result.plan.fields
    rows = []
    for metric in (compared.ndcg, compared.recall):
        interval = f"{metric.low:+.1f} to {metric.high:+.1f}"
        figures = [f"{metric.stock:.1f}", f"{metric.tuned:.1f}", f"{metric.difference:+.1f}", interval]
        rows.append([name, metric.name, *figures, str(compared.verdict)])
    first = [
        fields.title or "first sentence",
        f"{result.trained:,}",
        f"{compared.queries:,}",
        f"{compared.documents:,}",
    ]
    rows[0] += [*first, f"{seconds / 60:.0f}"]
    rows[1] += [""] * 5
    return rows


@click.command()
@click.option("--url", required=True)
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--set", "sets", multiple=True, default=SETS)
@click.option("--limit", type=int, default=20_000, help="Most documents of a set.")
@click.option("--most-pairs", type=int, default=10_000)
@click.option("--held-out", type=int, default=500)
@click.option("--epochs", type=float, default=1.0)
@click.option("--negatives", type=int, default=1)
@click.option("--learning-rate", type=float, default=2e-5)
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
        result, seconds = run(url, data, name, limit, threads, most_trained=most_pairs, **how)
        rows += rows_of(name, result, seconds)
        results[name] = {"comparison": asdict(result.comparison), "trained": result.trained, "seconds": seconds}
        if output:
            output.write_text(json.dumps({"machine": machine(), "settings": how, "sets": results}, indent=2) + "\n")
    header = ["set", "metric", "stock", "tuned", "difference", "95 % interval", "verdict"]
    click.echo(table([*header, "query", "pairs", "held out", "documents", "minutes"], rows))


if __name__ == "__main__":
    main()
