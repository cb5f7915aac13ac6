"""`python -m es_sbert.evaluation.baselines`: train the baselines that need training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

if TYPE_CHECKING:
    from es_sbert.evaluation.baselines.bilstm import EpochResult


_FILE = click.Path(path_type=Path, dir_okay=False)


@cloup.group()
def main() -> None:
    """Train the baselines of the Sentence-BERT paper that need training.

    Averaged word vectors and BiLSTM-max (InferSent). The others (tf-idf, averaged transformer, CLS) need none.
    """


@main.command("word-vectors")
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
    help="Words that stand less often get no vector.",
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
    (.gz, .zst). Texts are lower-cased and cut into words and signs.

    \b
    Examples:
      es-sbert baseline word-vectors corpus.txt.gz -o words.vec
      es-sbert baseline word-vectors nli.tsv --column sentence1 --column sentence2 -o words.vec.gz
      es-sbert evaluate word2vec:words.vec --task sts
    """
    from es_sbert.evaluation.baselines.tfidf import read_corpus
    from es_sbert.evaluation.baselines.word_vectors import train_word_vectors, write_word_vectors

    texts = read_corpus(corpus, columns)
    table = train_word_vectors(
        texts, method=method, dimensions=dimensions, epochs=epochs, min_count=min_count, seed=seed, threads=threads
    )
    write_word_vectors(output, table)
    click.echo(
        f"{len(table.index):,} words of {table.dimensions} dimensions from {len(texts):,} texts → {output}", err=True
    )


@main.command()
@click.argument("train", type=click.Path(path_type=Path))
@click.option(
    "--dev", type=click.Path(path_type=Path), required=True, help="Pairs that choose the epoch; in the format of TRAIN."
)
@click.option(
    "--vectors",
    type=_FILE,
    required=True,
    help="Word vectors in the text format of GloVe, fastText or word2vec. They stay as they are.",
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
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of everything random.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where to train. Asking for cuda fails where there is none.",
)
def bilstm(
    train: Path,
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

    TRAIN is JSONL, CSV, TSV or Parquet, such as natural language inference data. Prints loss, accuracy on the dev
    pairs and speed of each epoch; the best epoch is kept.

    \b
    Examples:
      es-sbert baseline bilstm nli-train.tsv --dev nli-dev.tsv --vectors words.vec -o infersent
      es-sbert evaluate infersent:infersent --task sts
    """
    from es_sbert.errors import require_extra

    require_extra("train", "torch")
    import torch

    from es_sbert.errors import DeviceError
    from es_sbert.evaluation.baselines.bilstm import read_classified_pairs, train_bilstm
    from es_sbert.evaluation.baselines.word_vectors import read_word_vectors

    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("--device cuda: torch finds no CUDA device", "Check `nvidia-smi`, or use --device cpu.")
    pairs = read_classified_pairs(train, columns)
    dev_pairs = read_classified_pairs(dev, columns, pairs.classes)

    def report(epoch: EpochResult) -> None:
        click.echo(
            f"epoch {epoch.number}: loss {epoch.loss:.4f}, dev accuracy {100 * epoch.accuracy:.2f} %, "
            f"{epoch.pairs_per_second:,.0f} pairs/s",
            err=True,
        )

    model = train_bilstm(
        pairs,
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
