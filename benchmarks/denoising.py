"""What the denoising auto-encoder (recipe `tsdae`) changes in a model's retrieval, with 95 % confidence intervals.

    python -m benchmarks.denoising --data DATA [--set cisi …] [--model all-MiniLM-L6-v2] [--texts 8000]

DATA holds `retrieval/SET/` in the BEIR layout. The model is trained on the documents of each set, without queries or
labels, by `es-sbert train tsdae`. Both models then rank all documents of the set by cosine for its judged queries;
queries that are documents leave themselves out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.adapt import compare_on_judged, rows_of
from benchmarks.common import table
from es_sbert.adaptation.model_comparison import ModelComparison
from es_sbert.evaluation.beir_files import read_beir_folder


def train(model: str, texts: list[str], output: Path, options: tuple[str, ...]) -> None:
    """Run the recipe on texts."""
    data = output.with_name("data")
    data.mkdir()
    (data / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = (
        f"model.base={json.dumps(model)}",
        "model.pooling=null",
        "export.precisions=[]",
        "export.sts=null",
        *options,
    )
    command = [sys.executable, "-m", "es_sbert", "train", "tsdae", "--data", str(data), "-o", str(output)]
    subprocess.run([*command, *(part for setting in settings for part in ("--set", setting))], check=True)


def compare(model: str, folder: Path, texts: int, threads: int, options: tuple[str, ...]) -> ModelComparison:
    """Train on a collection, and compare with the model before."""
    collection = read_beir_folder(folder)
    with tempfile.TemporaryDirectory() as work:
        output = Path(work) / "tuned"
        train(model, list(collection.documents.values())[:texts], output, options)
        return compare_on_judged(collection, model, str(output), threads)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--set", "sets", multiple=True, default=("cisi", "arguana-rebuilt"))
@click.option("--model", default="all-MiniLM-L6-v2")
@click.option("--texts", type=int, default=8_000, help="Most documents to train on.")
@click.option("--threads", type=int, default=2)
@click.option("--recipe", "options", multiple=True, metavar="KEY=VALUE", help="Change a setting of the recipe.")
def main(data: Path, sets: tuple[str, ...], model: str, texts: int, threads: int, options: tuple[str, ...]) -> None:
    """Train on each set, and print the table."""
    rows = []
    for name in sets:
        began = time.monotonic()
        compared = compare(model, data / "retrieval" / name, texts, threads, options)
        rows += rows_of(name, "judged queries", compared, f"{(time.monotonic() - began) / 60:.0f}")
    header = ["set", "queries", "metric", "before", "after", "difference", "95 % interval", "verdict", "minutes"]
    click.echo(table(header, rows))


if __name__ == "__main__":
    main()
