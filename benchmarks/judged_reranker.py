"""What a cross-encoder that was trained on an index's own judgements does to nDCG@10.

    python -m benchmarks.judged_reranker --data DATA [--set arguana-rebuilt] [--window 30] [--base MODEL]

DATA holds `retrieval/SET/` in the BEIR layout. The queries with judgements are split into two halves. A cross-encoder
is trained on one half: the relevant documents of a query, and those of its nearest documents that are not judged
relevant. It then reranks the hits of the other half, which it has never seen. The first ranking is that of the
bi-encoder over all documents, in memory. The interval is that of the mean difference over queries (paired bootstrap).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import ir_measures
import numpy as np
import yaml
from ir_measures import nDCG

from benchmarks.common import machine, table
from benchmarks.retrieval import Collection, Run, rank_in_memory, read_collection
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.reranker import Reranker
from es_sbert.evaluation.significance import paired_difference, shown_difference

MEASURE = nDCG @ 10
_DEV_SHARE = 0.1


def training_pairs(
    collection: Collection,
    queries: list[str],
    ranked: dict[str, list[tuple[str, float]]],
    positives: int,
    negatives: int,
) -> list[dict[str, Any]]:
    """Pairs of a query and a document with a score of 1 or 0."""
    text_of = {document["id"]: document["text"] for document in collection.documents}
    rows = []
    for query in queries:
        relevant = [one for one, grade in collection.qrels[query].items() if grade > 0 and text_of.get(one, "").strip()]
        others = [one for one, _ in ranked[query] if one not in relevant and text_of[one].strip()]
        for score, chosen in ((1, relevant[:positives]), (0, others[:negatives])):
            rows += [{"query": collection.queries[query], "passage": text_of[one], "score": score} for one in chosen]
    return rows


def train(
    base: str, rows: dict[str, list[dict[str, Any]]], folder: Path, settings: dict[str, Any], tokens: int
) -> Path:
    """The folder of a cross-encoder trained on rows."""
    columns = {"sentence1": "query", "sentence2": "passage", "score": "score"}
    for name, part in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    recipe = {
        "name": "judged-reranker",
        "model": {"base": base, "kind": "cross-encoder", "max_tokens": tokens},
        "stages": [
            {
                "name": "judgements",
                "data": [{"name": "judgements", "path": "train.jsonl", "columns": columns, "score_range": [0, 1]}],
                "objective": {"kind": "regression"},
                "dev": {"task": "sts", "path": "dev.jsonl", "columns": columns},
                "checkpoints_per_epoch": 2,
                **settings,
            }
        ],
        "export": {"precisions": ["fp32", "int8"]},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "es_sbert", "train", str(folder / "recipe.yaml"), "-o", str(folder / "model")]
    subprocess.run(command, check=True)
    return folder / "model"


def rerank(
    reranker: Reranker,
    collection: Collection,
    ranked: dict[str, list[tuple[str, float]]],
    queries: list[str],
    window: int,
) -> Run:
    """The same hits, the first `window` of them in the order of the cross-encoder."""
    text_of = {document["id"]: document["text"] for document in collection.documents}
    run: Run = {}
    for query in queries:
        hits = [one for one, _ in ranked[query]]
        scores = reranker.predict(collection.queries[query], [text_of[one] for one in hits[:window]])
        order = [hits[place] for place in np.argsort(-scores, kind="stable")] + hits[window:]
        run[query] = {one: float(-place) for place, one in enumerate(order)}
    return run


def ndcg(collection: Collection, run: Run) -> dict[str, float]:
    """Query id → nDCG@10 × 100."""
    qrels = {query: collection.qrels[query] for query in run}
    return {one.query_id: 100 * one.value for one in ir_measures.iter_calc([MEASURE], qrels, run)}


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--set", "name", default="arguana-rebuilt", show_default=True)
@click.option("--window", type=int, default=30, show_default=True)
@click.option("--base", default=DEFAULT_MODEL, show_default=True, help="Transformer of the cross-encoder.")
@click.option("--positives", default=10, show_default=True, help="Relevant documents a query, at most.")
@click.option("--negatives", default=7, show_default=True, help="Other near documents a query, at most.")
@click.option("--max-tokens", default=384, show_default=True, help="Of a pair.")
@click.option("--epochs", default=2.0, show_default=True)
@click.option("--learning-rate", default=5e-5, show_default=True)
@click.option("--limit", type=int, help="Rerank so many of the held-out queries, always the same.")
def main(
    data: Path,
    name: str,
    window: int,
    base: str,
    positives: int,
    negatives: int,
    max_tokens: int,
    epochs: float,
    learning_rate: float,
    limit: int | None,
) -> None:
    """Train on one half of the queries, rerank the other half."""
    collection = read_collection(data / "retrieval" / name)
    with Encoder() as encoder:
        documents = encoder.encode([document["text"] for document in collection.documents], "document")
        questions = encoder.encode(list(collection.queries.values()), "query")
    ranked = rank_in_memory(collection, documents, questions, max(window, 100))
    queries = [str(one) for one in np.random.default_rng(0).permutation(sorted(collection.queries))]
    half = len(queries) // 2
    seen, held_out = queries[:half], queries[half:][:limit]
    dev = seen[: max(1, int(_DEV_SHARE * half))]
    rows = {
        part: training_pairs(collection, chosen, ranked, positives, negatives)
        for part, chosen in (("train", seen[len(dev) :]), ("dev", dev))
    }
    settings = {"epochs": epochs, "batch": 16, "learning_rate": learning_rate, "warmup": 0.1}
    with tempfile.TemporaryDirectory() as work:
        model = train(base, rows, Path(work), settings, max_tokens)
        with Reranker(model) as reranker:
            after = ndcg(collection, rerank(reranker, collection, ranked, held_out, window))
    before = ndcg(collection, {query: dict(ranked[query]) for query in held_out})
    found = paired_difference([after[query] for query in before], list(before.values()))
    click.echo(f"{json.dumps(machine())}\n")
    header = [
        "collection",
        "pairs trained on",
        "queries reranked",
        "window",
        "nDCG@10 before",
        "after",
        "difference, 95 %",
    ]
    figures = [name, len(rows["train"]), len(before), window]
    means = [f"{found.second:.2f}", f"{found.first:.2f}"]
    difference = f"{shown_difference(found.first, found.second):+.2f} ({found.low:+.2f} to {found.high:+.2f})"
    click.echo(table(header, [[*figures, *means, difference, found.verdict]]))


if __name__ == "__main__":
    main()
