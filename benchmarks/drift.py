"""How often `es-sbert index drift` raises an alarm without drift, and how much drift it finds.

    python -m benchmarks.drift --data DATA [--set cisi --set arguana-rebuilt] [--limit 1400] [--repeats 100]

DATA holds `retrieval/SET/` in the BEIR layout. Of each collection, documents are drawn at random as new ones and as the
baseline; then a growing share of the new documents is replaced by documents of the next collection.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np

from benchmarks.common import machine, table
from es_sbert.diagnostics.drift import Drift, DriftSample, compare_samples
from es_sbert.encoder.encoder import Encoder
from es_sbert.evaluation.beir_files import read_beir_folder
from es_sbert.vectors import Vectors

NEW, BASELINE = 200, 800
SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
REPEATS_WITH_DRIFT = 20


def sample(vectors: Vectors) -> DriftSample:
    """Documents without ids and texts."""
    names = [""] * len(vectors)
    return DriftSample(names, names, vectors, len(vectors))


def verdicts(own: Vectors, other: Vectors, share: float, repeats: int) -> tuple[float, float, float]:
    """Shares of the repeats with any alarm, and with many unlike documents; and the mean share of unlike documents."""
    found = []
    for seed in range(repeats):
        random = np.random.default_rng(seed)
        drawn = own[random.permutation(len(own))]
        replaced = round(share * NEW)
        foreign = other[random.permutation(len(other))[:replaced]]
        new = np.concatenate([drawn[: NEW - replaced], foreign])
        baseline = drawn[NEW : NEW + BASELINE]
        found.append(compare_samples("", "", "", sample(new), sample(baseline), seed=seed))
    alarms = [report.drift is not Drift.NONE for report in found]
    unlike = [report.drift is Drift.UNLIKE for report in found]
    return float(np.mean(alarms)), float(np.mean(unlike)), float(np.mean([report.unlike for report in found]))


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option(
    "--set", "sets", multiple=True, default=("cisi", "agentset-msmarco", "arguana-rebuilt"), show_default=True
)
@click.option("--limit", type=int, default=1400, show_default=True, help="Documents of a collection.")
@click.option("--repeats", type=int, default=100, show_default=True, help="Draws without drift.")
@click.option("--precision", default="auto", show_default=True)
def main(data: Path, sets: tuple[str, ...], limit: int, repeats: int, precision: str) -> None:
    """Embed, draw, compare."""
    vectors: dict[str, Vectors] = {}
    with Encoder(precision=precision) as encoder:
        for name in sets:
            texts = list(read_beir_folder(data / "retrieval" / name).documents.values())
            drawn = np.random.default_rng(0).permutation(len(texts))[:limit]
            vectors[name] = encoder.encode([texts[place] for place in drawn], "document")  # (documents, dimensions)
            click.echo(f"{name}: {len(drawn):,} of {len(texts):,} documents", err=True)
        described = f"{encoder.info.model} {encoder.info.variant}; {json.dumps(machine())}\n"
    rows = []
    for place, name in enumerate(sets):
        other = sets[(place + 1) % len(sets)]
        for share in SHARES:
            alarms, unlike, far = verdicts(
                vectors[name], vectors[other], share, REPEATS_WITH_DRIFT if share else repeats
            )
            rows.append([name, f"{share:.0%} {other}", f"{alarms:.0%}", f"{unlike:.0%}", f"{far:.1%}"])
            click.echo(" ".join(rows[-1]), err=True)
    click.echo(described)
    click.echo(table(["collection", "new documents", "alarm", "unlike", "farther than 95 % of the baseline"], rows))


if __name__ == "__main__":
    main()
