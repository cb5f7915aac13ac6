"""How well clusters agree with labels, compared with k-means on tf-idf, and what the largest collections cost.

    python -m benchmarks.clusters --data DATA [--seeds 5] [--texts 10000] [--write]

DATA holds `transfer/TREC-train.tsv.gz` (columns text, label) and `ingest/short-docs.jsonl.gz` (text, source). Of the
latter a sample is clustered. All methods that take k get the number of labels; the others keep their defaults. Texts in
no cluster count as one cluster more. Both measures are those of scikit-learn, times 100. Embedding is measured apart.

The second table is of random vectors with 384 dimensions, in a process each.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.cluster import KMeans
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from benchmarks.common import (
    in_own_process,
    machine,
    peak_memory,
    read_jsonl,
    read_tsv,
    replaced,
    seconds,
    spread,
    table,
)
from es_sbert.analysis import cluster_texts
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
# Starts of k-means on tf-idf: as many as of ours.
STARTS = 4
# Method, texts, and options.
SIZES: list[tuple[str, int, dict[str, Any]]] = [
    ("kmeans", 50_000, {"k": 100}),
    ("kmeans", 450_000, {"k": 100}),
    ("agglomerative", 20_000, {"k": 100}),
    ("hdbscan", 15_000, {}),
    ("communities", 100_000, {}),
]


def collections(data: Path, count: int) -> dict[str, tuple[list[str], list[str]]]:
    """Name → texts and labels."""
    trec = list(read_tsv(data / "transfer" / "TREC-train.tsv.gz"))
    short = random.Random(0).sample(list(read_jsonl(data / "ingest" / "short-docs.jsonl.gz")), count)
    return {
        "TREC, questions by type": ([row["text"] for row in trec], [row["label"] for row in trec]),
        "short-docs, texts by source": ([row["text"] for row in short], [row["source"] for row in short]),
    }


def by_tf_idf(texts: Sequence[str], k: int, seed: int) -> Any:
    """The baseline: k-means on tf-idf, both with their defaults but for the number of starts."""
    return KMeans(k, n_init=STARTS, random_state=seed).fit(TfidfVectorizer().fit_transform(texts)).labels_


def row_of(name: str, truth: Sequence[str], runs: Sequence[Callable[[], Any]]) -> list[object]:
    """Agreement and seconds of some runs of one method."""
    timed = [seconds(run) for run in runs]
    labels = [found for _, found in timed]
    rand = [100 * adjusted_rand_score(truth, found) for found in labels]
    mutual = [100 * normalized_mutual_info_score(truth, found) for found in labels]
    clusters = sorted({len(set(found[found >= 0].tolist())) for found in labels})
    noise = f"{np.mean([np.mean(found < 0) for found in labels]):.0%}"
    row = [name, "–".join(map(str, dict.fromkeys([clusters[0], clusters[-1]]))), noise]
    row += [shown(rand, 1), shown(mutual, 1), shown([took for took, _ in timed], 1)]
    click.echo(str(row), err=True)
    return list(row)


def shown(values: Sequence[float], digits: int) -> str:
    """Median with the range, or the only value."""
    return spread(values, digits) if len(values) > 1 else f"{values[0]:.{digits}f}"


def compare(name: str, texts: list[str], truth: list[str], encoder: Encoder, seeds: int) -> list[list[object]]:
    """A row for each method on one collection."""
    took, vectors = seconds(lambda: encoder.encode(texts, "document"))
    k = len(set(truth))

    def runs(count: int, method: str, **options: Any) -> list[Callable[[], Any]]:
        return [
            partial(lambda seed: cluster_texts(vectors, method, seed=seed, **options).labels, n) for n in range(count)
        ]

    rows = [
        row_of("k-means on tf-idf", truth, [partial(by_tf_idf, texts, k, seed) for seed in range(seeds)]),
        row_of("kmeans", truth, runs(seeds, "kmeans", k=k)),
        row_of("kmeans, `--k auto`", truth, runs(seeds, "kmeans")),
        row_of("agglomerative", truth, runs(1, "agglomerative", k=k)),
        row_of("agglomerative, `--k auto`", truth, runs(1, "agglomerative")),
        row_of("hdbscan", truth, runs(1, "hdbscan")),
        row_of("communities", truth, runs(1, "communities")),
    ]
    title = f"{name}: {len(texts):,} texts, {k} labels, embedded in {took:.1f} s"
    return [[title, "", "", "", "", ""], *rows]


def _measured(method: str, count: int, options: dict[str, Any]) -> tuple[float, float]:
    vectors = np.random.default_rng(0).normal(size=(count, 384)).astype(np.float32)
    took, _ = seconds(lambda: cluster_texts(vectors, method, **options))
    return took, peak_memory()


def scale() -> list[list[object]]:
    """A row for each size."""
    rows: list[list[object]] = []
    for method, count, options in SIZES:
        took, peak = in_own_process(_measured, method, count, options)
        given = ", ".join(f"{name} {value}" for name, value in options.items())
        rows.append([method, given, f"{count:,}", f"{took:,.1f}", f"{peak:,.0f}"])
        click.echo(str(rows[-1]), err=True)
    return rows


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--seeds", default=5, show_default=True)
@click.option("--texts", default=10_000, show_default=True, help="Texts of the sample of short-docs.")
@click.option("--write", is_flag=True, help="Put the tables into docs/results.md.")
def main(data: Path, model: str, seeds: int, texts: int, write: bool) -> None:
    """Cluster, compare with the labels and print the tables."""
    # First, since a new process is told the peak memory of the one that starts it.
    sizes = table(["method", "options", "texts", "seconds", "peak memory, MB"], scale())
    rows: list[list[object]] = []
    with Encoder(model, device="cpu") as encoder:
        encoder.encode(["to warm up"])
        for name, (found, truth) in collections(data, texts).items():
            rows += compare(name, found, truth, encoder, seeds)
        header = [f"clusters ({encoder.info.variant})", "found", "noise", "adjusted Rand index", "NMI", "clustering, s"]
    agreement = table(header, rows)
    click.echo(f"{agreement}\n\n{sizes}\n\n{json.dumps(machine())}")
    if write:
        page = replaced(PAGE.read_text(), "clusters", f"{agreement}\n\n{sizes}", maker="benchmarks.clusters")
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
