"""Seconds to the most similar pair of 10,000 sentences, and how time and memory grow with the number of texts.

    python -m benchmarks.pairs --data DATA [--sizes 1000,10000,100000,450000] [--write]

DATA holds `sts/*.tsv.gz` (columns sentence1, sentence2). The sentences are the first 10,000 distinct ones. es-sbert and
sentence-transformers' `paraphrase_mining` (torch, fp32) find the best pair in turn, in one run; loading models does not
count. The cross-encoder has the encoder's layers and a head with random weights: what is measured is its rate on some
pairs, from which the time for all pairs follows.

The sizes are runs of `most_similar_pairs` alone, in a process each. Their vectors are sums of the vectors of two
sentences at random, normalized: all different, and distributed as those of sentences are. Random numbers would be the
worst case, because bounds leave out no pair of theirs.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

import click
import numpy as np

from benchmarks.common import in_own_process, machine, peak_memory, read_tsv, replaced, seconds, spread, table
from es_sbert.analysis import most_similar_pairs
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
SENTENCES, CROSS_PAIRS = 10_000, 1_000
FILES = ("stsb-en-train", "stsb-en-dev", "stsb-en-test", "sts14-test", "sts12-test", "sts13-test")


def sentences(data: Path) -> list[str]:
    """The first distinct sentences of the STS files."""
    found: dict[str, None] = {}
    for name in FILES:
        for row in read_tsv(data / "sts" / f"{name}.tsv.gz"):
            found |= dict.fromkeys([row["sentence1"], row["sentence2"]])
    return list(found)[:SENTENCES]


def cross_encoder_rate(model: str, texts: list[str], threads: int) -> float:
    """Pairs a second of a cross-encoder with the encoder's layers."""
    import torch
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(threads)
    cross = CrossEncoder(str(resolve_model(model)), num_labels=1, device="cpu")
    pairs = list(zip(texts[:CROSS_PAIRS], texts[CROSS_PAIRS : 2 * CROSS_PAIRS], strict=True))
    cross.predict(pairs[:64])
    took, _ = seconds(lambda: cross.predict(pairs))
    return len(pairs) / took


def compare(data: Path, model: str, rounds: int, kept: Path) -> list[list[object]]:
    """A row for each contender.

    Args:
        kept: File that gets the sentences' vectors.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import paraphrase_mining

    texts, cores = sentences(data), machine()["cores"]
    torch.set_num_threads(cores)
    reference = SentenceTransformer(str(resolve_model(model)), device="cpu")
    encoded, compared, mined = [], [], []
    with Encoder(model, device="cpu") as encoder:
        encoder.encode(texts[:256])
        reference.encode(texts[:256])
        for _ in range(rounds):
            took, result = seconds(lambda: encoder.encode(texts, "document"))
            encoded.append(took)
            took, [best] = seconds(lambda vectors=result: most_similar_pairs(vectors, 1))
            compared.append(took)
            took, [[score, first, second], *_] = seconds(lambda: paraphrase_mining(reference, texts))
            mined.append(took)
            np.save(kept, result)
            click.echo(f"{best}; paraphrase_mining: {score:.5f} {first} {second}", err=True)
        label = f"es-sbert ({encoder.info.variant})"
    rate = cross_encoder_rate(model, texts, cores)
    pairs = len(texts) * (len(texts) - 1) // 2
    total = [one + two for one, two in zip(encoded, compared, strict=True)]
    ratio = statistics.median(one / two for one, two in zip(mined, total, strict=True))
    return [
        [label, spread(encoded, 2), spread(compared, 2), spread(total, 2), "1"],
        ["sentence-transformers, `paraphrase_mining` (torch fp32)", "", "", spread(mined, 2), f"{ratio:.2f}"],
        [
            f"cross-encoder of the same size, {rate:,.0f} pairs/s, scaled",
            "",
            "",
            f"{pairs / rate:,.0f}",
            f"{pairs / rate / statistics.median(total):,.0f}",
        ],
    ]


def _measured(count: int, source: Path) -> tuple[float, float]:
    sentence_vectors, random = np.load(source), np.random.default_rng(0)
    one, two = random.integers(len(sentence_vectors), size=(2, count))
    vectors = sentence_vectors[one] + sentence_vectors[two]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    took, _ = seconds(lambda: most_similar_pairs(vectors, 100))
    return took, peak_memory()


def scale(sizes: list[int], source: Path) -> list[list[object]]:
    """A row for each number of texts, with the exponent to the row before.

    Args:
        source: File of the sentences' vectors.
    """
    rows: list[list[object]] = []
    before: tuple[int, float] | None = None
    for count in sizes:
        took, peak = in_own_process(_measured, count, source)
        exponent = "" if before is None else f"{np.log(took / before[1]) / np.log(count / before[0]):.2f}"
        rows.append([f"{count:,}", f"{took:,.2f}", f"{peak:,.0f}", exponent])
        click.echo(str(rows[-1]), err=True)
        before = count, took
    return rows


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--sizes", default="1000,10000,100000,450000", show_default=True)
@click.option("--write", is_flag=True, help="Put the tables into docs/results.md.")
def main(data: Path, model: str, rounds: int, sizes: str, write: bool) -> None:
    """Measure both and print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        vectors = Path(folder) / "vectors.npy"
        shown = table(
            ["to the most similar pair of 10,000 sentences", "embedding, s", "comparing, s", "together, s", "ratio"],
            compare(data, model, rounds, vectors),
        )
        rows = scale([int(size) for size in sizes.split(",")], vectors)
    grown = table(["texts", "comparing, s", "peak memory, MB", "exponent"], rows)
    click.echo(f"{shown}\n\n{grown}\n\n{json.dumps(machine())}")
    if write:
        page = replaced(PAGE.read_text(), "pairs", f"{shown}\n\n{grown}", maker="benchmarks.pairs")
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
