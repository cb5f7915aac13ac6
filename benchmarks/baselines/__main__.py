"""`python -m benchmarks.baselines`: train and evaluate the baselines of the Sentence-BERT paper."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from benchmarks.common import read_jsonl
from es_sbert.cli.logs import configure_logging, log_error
from es_sbert.errors import EsSbertError
from es_sbert.messages import log_message

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def main() -> None:
    """Train and evaluate the baselines of the Sentence-BERT paper.

    Only averaged word vectors need training.
    """


@main.group()
def train() -> None:
    """Train word vectors."""


@main.command("evaluate")
@click.argument("spec")
@click.option("--task", required=True, help="A task of `es-sbert evaluate`, argument, or transfer (SentEval).")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of all tasks, or of the one task.")
@click.option("--file", "files", type=click.Path(path_type=Path), multiple=True, help="Data file; may be repeated.")
@click.option("--limit", type=click.IntRange(min=1), help="Use N examples of each file.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--torch", is_flag=True, help="Run a model of es-sbert as the torch network that was trained.")
@click.option("--precision", default="auto", show_default=True, help="Of a model's ONNX export.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def evaluate_baseline(
    spec: str,
    task: str,
    data: Path | None,
    files: tuple[Path, ...],
    limit: int | None,
    device: str,
    torch: bool,
    precision: str,
    as_json: bool,
) -> None:
    """Evaluate SPEC: glove:FILE, tfidf, average:MODEL, cls:MODEL, or a model of es-sbert."""
    from benchmarks.baselines import probing
    from benchmarks.baselines.open_baseline import open_baseline, open_network
    from es_sbert.evaluation import evaluate_model
    from es_sbert.evaluation.evaluated_models import close_model, open_model
    from es_sbert.evaluation.evaluation_report import text_table

    model = open_baseline(spec, device)
    if model is None and torch:
        model = open_network(spec, device)
    elif model is None:
        model = open_model(spec, device=device, precision=precision, report=log_message)
    if task not in probing.TASKS:
        result = evaluate_model(model, task, data, files=files, limit=limit, report=log_message)
    elif data is None:
        raise click.UsageError(f"The task {task} needs --data, the folder of all tasks.")
    else:
        result = probing.evaluate(model, task, data)
    close_model(model)
    click.echo(result.as_json().decode() if as_json else text_table(result))


@train.command("word-vectors")
@click.argument("corpus", type=_FILE)
@click.option("-o", "--output", type=_FILE, required=True, help="In word2vec's text format; .gz compresses.")
@click.option("--dimensions", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--epochs", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--min-count", type=click.IntRange(min=1), default=5, show_default=True, help="Rarer words get no vector."
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
def word_vectors(corpus: Path, output: Path, dimensions: int, epochs: int, min_count: int, threads: int) -> None:
    """Train word vectors on the column `text` of CORPUS, a gzip'd JSONL file."""
    from benchmarks.baselines.word_vectors import train_word_vectors, write_word_vectors

    texts = [row["text"] for row in read_jsonl(corpus)]
    table = train_word_vectors(texts, dimensions=dimensions, epochs=epochs, min_count=min_count, threads=threads)
    write_word_vectors(output, table)
    click.echo(f"{len(table.index):,} words from {len(texts):,} texts → {output}", err=True)


if __name__ == "__main__":
    configure_logging()
    try:
        main()
    except EsSbertError as error:
        log_error(error)
        sys.exit(2)
