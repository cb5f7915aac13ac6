"""Sentences per second of es-sbert and of sentence-transformers (torch fp32), in turn, in one run.

    python -m benchmarks.encode --data DATA [--rounds 5] [--budgets 256,512,1024]

DATA holds `sts/stsb-en-test.tsv.gz` (columns sentence1, sentence2, score). Both sides get the same
sentences in the same order with as many threads, after a warm-up; rounds alternate, so that a machine
whose speed drifts slows both alike. The quality is measured too: Spearman's ρ on the same file.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.stats import spearmanr

from benchmarks.common import machine, read_tsv, spread, table
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder

Encode = Callable[[list[str]], Any]


def reference(model: str, threads: int) -> Encode:
    """sentence-transformers as a user would run it: torch, fp32, its own batching."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    transformer = SentenceTransformer(str(resolve_model(model)), device="cpu")
    return lambda texts: transformer.encode(texts, show_progress_bar=False, convert_to_numpy=True)


def sentences_per_second(encode: Encode, texts: list[str]) -> float:
    """One timed pass."""
    started = time.perf_counter()
    encode(texts)
    return len(texts) / (time.perf_counter() - started)


def sts_correlation(encode: Encode, rows: list[dict[str, str]]) -> float:
    """Spearman's ρ × 100 of cosines against gold scores."""
    u, v = (encode([row[side] for row in rows]) for side in ("sentence1", "sentence2"))  # each (pairs, dimensions)
    cosines = np.sum(u * v, axis=1) / (np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1))
    return float(spearmanr(cosines, [float(row["score"]) for row in rows]).statistic) * 100


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--precisions", default="int8,fp32", show_default=True)
@click.option("--budgets", default="", help="Also try these token budgets with the first precision.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write every run here.")
def main(data: Path, model: str, rounds: int, precisions: str, budgets: str, json_file: Path | None) -> None:
    """Time both sides and print a table with the machine's description."""
    rows = list(read_tsv(data / "sts/stsb-en-test.tsv.gz"))
    texts = [row[side] for row in rows for side in ("sentence1", "sentence2")]
    here = machine()
    contenders: dict[str, Encode] = {"sentence-transformers, torch fp32": reference(model, here["cores"])}
    encoders = []
    for precision in precisions.split(","):
        encoder = Encoder(model, device="cpu", precision=precision)
        encoders.append(encoder)
        contenders[f"es-sbert {encoder.info.variant}"] = lambda part, e=encoder: e.encode(part)
    for budget in filter(None, budgets.split(",")):
        encoder = Encoder(model, device="cpu", precision=precisions.split(",")[0], budget=int(budget))
        encoders.append(encoder)
        contenders[f"es-sbert {encoder.info.variant}, {budget} tokens a batch"] = lambda part, e=encoder: e.encode(part)

    for encode in contenders.values():
        encode(texts[:512])
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, encode in contenders.items():
            speeds[name].append(sentences_per_second(encode, texts))
    correlations = {name: sts_correlation(encode, rows) for name, encode in contenders.items()}

    base = next(iter(speeds.values()))
    ratios = {name: [ours / theirs for ours, theirs in zip(runs, base, strict=True)] for name, runs in speeds.items()}
    click.echo(f"{len(texts)} sentences, {rounds} rounds in turn, median (min–max); {json.dumps(here)}\n")
    click.echo(
        table(
            ["", "sentences/s", "× sentence-transformers", "STSb test ρ × 100"],
            [
                (name, spread(runs), spread(ratios[name], 2), f"{correlations[name]:.2f}")
                for name, runs in speeds.items()
            ],
        )
    )
    if json_file:
        medians = {name: statistics.median(runs) for name, runs in ratios.items()}
        json_file.write_text(
            json.dumps(
                {"machine": here, "sentences_per_second": speeds, "ratio": medians, "sts": correlations}, indent=2
            )
        )
    for encoder in encoders:
        encoder.close()


if __name__ == "__main__":
    main()
