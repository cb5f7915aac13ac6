"""`python -m benchmarks.baselines`: train and evaluate the baselines of the Sentence-BERT paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from es_sbert.cli.logs import configure_logging, log_error
from es_sbert.errors import EsSbertError
from es_sbert.messages import log_message

if TYPE_CHECKING:
    from benchmarks.baselines.bilstm import EpochResult


_FILE = click.Path(path_type=Path, dir_okay=False)


@cloup.group()
def main() -> None:
    """Train and evaluate the baselines of the Sentence-BERT paper.

    Only averaged word vectors and BiLSTM-max (InferSent) need training.
    """


@main.group()
def train() -> None:
    """Train word vectors, or BiLSTM-max."""


@main.command("evaluate")
@click.argument("spec")
@click.option(
    "--task",
    type=click.Choice(["sts", "triplet", "argument", "transfer", "duplicates", "retrieval"]),
    required=True,
    help="Evaluation task, as for `es-sbert evaluate`.",
)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of all tasks, or of the one task.")
@click.option("--file", "files", type=click.Path(path_type=Path), multiple=True, help="Data file; may be repeated.")
@click.option("--limit", type=click.IntRange(min=1), help="Use N examples of each file.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda, for baselines that run on torch.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def evaluate_baseline(
    spec: str, task: str, data: Path | None, files: tuple[Path, ...], limit: int | None, device: str, as_json: bool
) -> None:
    """Evaluate the baseline SPEC.

    \b
    SPEC is one of:
      glove:FILE, fasttext:FILE, word2vec:FILE   averaged word vectors
      tfidf, tfidf:CORPUS                        cosine of tf-idf
      average:MODEL, cls:MODEL                   a transformer without sentence tuning
      infersent:FOLDER                           BiLSTM-max

    \b
    Examples:
      python -m benchmarks.baselines evaluate glove:glove.6B.300d.txt --task transfer --data data --json
      python -m benchmarks.baselines evaluate tfidf --task argument --data data
    """
    from benchmarks.baselines.open_baseline import BASELINES, open_baseline
    from es_sbert.errors import UsageError
    from es_sbert.evaluation import evaluate
    from es_sbert.evaluation.evaluation_report import text_table

    model = open_baseline(spec, device)
    if model is None:
        raise UsageError(f"there is no baseline {spec!r}", f"Write one of {', '.join(BASELINES)}.")
    result = evaluate(model, task, data, files=files, limit=limit, device=device, report=log_message)
    click.echo(result.as_json().decode() if as_json else text_table(result))


@train.command("word-vectors")
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=_FILE,
    required=True,
    help="Write the vectors here, in word2vec's text format; gzip'd where the name ends in .gz.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    default=("text",),
    show_default=True,
    help="Column that holds texts, where CORPUS is a table. May be given several times.",
)
@click.option(
    "--method",
    type=click.Choice(["word2vec", "fasttext"]),
    default="word2vec",
    show_default=True,
    help="Skip-gram over words, or over words and their character n-grams.",
)
@click.option("--dimensions", type=click.IntRange(min=1), default=300, show_default=True, help="Length of a vector.")
@click.option("--epochs", type=click.IntRange(min=1), default=5, show_default=True, help="Passes over the corpus.")
@click.option(
    "--min-count",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Words that occur less often get no vector.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="The same one gives the same vectors with one thread.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Worker threads.")
def word_vectors(
    corpus: Path,
    output: Path,
    columns: tuple[str, ...],
    method: Any,
    dimensions: int,
    epochs: int,
    min_count: int,
    seed: int,
    threads: int,
) -> None:
    """Train word vectors on a corpus by gensim.

    CORPUS is a .txt file of one text a line, or JSONL, CSV, TSV or Parquet; all but Parquet may be compressed
    (.gz, .zst). Texts are lower-cased and split into words and signs.

    \b
    Examples:
      python -m benchmarks.baselines train word-vectors corpus.txt.gz -o words.vec
      python -m benchmarks.baselines train word-vectors nli.tsv --column sentence1 --column sentence2 -o words.vec.gz
      python -m benchmarks.baselines evaluate word2vec:words.vec --task sts
    """
    from benchmarks.baselines.tfidf import read_corpus
    from benchmarks.baselines.word_vectors import train_word_vectors, write_word_vectors

    texts = read_corpus(corpus, columns)
    table = train_word_vectors(
        texts, method=method, dimensions=dimensions, epochs=epochs, min_count=min_count, seed=seed, threads=threads
    )
    write_word_vectors(output, table)
    click.echo(
        f"{len(table.index):,} words of {table.dimensions} dimensions from {len(texts):,} texts → {output}", err=True
    )


@train.command()
@click.argument("pairs", type=click.Path(path_type=Path))
@click.option(
    "--dev", type=click.Path(path_type=Path), required=True, help="Pairs that choose the epoch; in the format of PAIRS."
)
@click.option(
    "--vectors",
    type=_FILE,
    required=True,
    help="Word vectors in the text format of GloVe, fastText or word2vec. They are not trained.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Write the model into this folder.",
)
@click.option(
    "--columns",
    nargs=3,
    default=("sentence1", "sentence2", "label"),
    show_default=True,
    help="Columns of the two texts and of the class.",
)
@click.option(
    "--hidden",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Width of the LSTM in each direction; the paper's is 2048.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=10, show_default=True, help="The most passes.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Random seed.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where to train. cuda fails if CUDA is not available.",
)
def bilstm(
    pairs: Path,
    dev: Path,
    vectors: Path,
    output: Path,
    columns: tuple[str, str, str],
    hidden: int,
    epochs: int,
    seed: int,
    device: str,
) -> None:
    """Train BiLSTM-max (InferSent) on pairs with classes.

    PAIRS is JSONL, CSV, TSV or Parquet, such as natural language inference data. Prints loss, accuracy on the dev
    pairs and speed of each epoch; the best epoch is kept.

    \b
    Examples:
      python -m benchmarks.baselines train bilstm nli-train.tsv --dev nli-dev.tsv --vectors words.vec -o infersent
      python -m benchmarks.baselines evaluate infersent:infersent --task sts
    """
    from es_sbert.errors import require_extra

    require_extra("train", "torch")
    import torch

    from benchmarks.baselines.bilstm import read_classified_pairs, train_bilstm
    from benchmarks.baselines.word_vectors import read_word_vectors
    from es_sbert.errors import DeviceError

    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("--device cuda: torch finds no CUDA device", "Check `nvidia-smi`, or use --device cpu.")
    train_pairs = read_classified_pairs(pairs, columns)
    dev_pairs = read_classified_pairs(dev, columns, train_pairs.classes)

    def report(epoch: EpochResult) -> None:
        click.echo(
            f"epoch {epoch.number}: loss {epoch.loss:.4f}, dev accuracy {100 * epoch.accuracy:.2f} %, "
            f"{epoch.pairs_per_second:,.0f} pairs/s",
            err=True,
        )

    model = train_bilstm(
        train_pairs,
        read_word_vectors(vectors),
        dev=dev_pairs,
        name=output.name,
        hidden=hidden,
        epochs=epochs,
        seed=seed,
        device=device,
        on_epoch=report,
    )
    model.save(output)
    click.echo(f"{model.name} → {output}", err=True)


if __name__ == "__main__":
    configure_logging()
    try:
        main()
    except EsSbertError as error:
        log_error(error)
        sys.exit(2)
