"""How well near-duplicates are told from other questions, and what the kNN of an index misses.

    python -m benchmarks.duplicates --data DATA [--url http://localhost:9200] [--documents 50000] [--write]

DATA holds `duplicates/qqp-sample-{train,test}.tsv.gz` (question1, question2, is_duplicate) and
`ingest/short-docs.jsonl.gz` (text). The questions of the test pairs are one collection. Its near-duplicates are found
by es-sbert and by sentence-transformers' `paraphrase_mining` (torch, fp32, its defaults) with the same model; pairs
that are not found count as the least similar. Average precision is that of scikit-learn over the labeled pairs. The
threshold of F1 is the best one on the train pairs. A group calls two questions duplicates if both are in it.

With --url, the first documents of short-docs are loaded into a new index, which is deleted at the end. Near-duplicates
are found from all pairs and by the index's kNN with several numbers of candidates.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve

from benchmarks.common import machine, read_jsonl, replaced, seconds, table
from es_sbert.analysis import duplicate_groups, pairs_above, read_index
from es_sbert.analysis.duplicate_search import search_duplicates
from es_sbert.analysis.duplicates import DuplicateSearchSettings
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from tests.engine.ingest_support import load, open_engine, write_jsonl

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
# Pairs below it are not looked for: duplicates are far above.
LEAST_COSINE = 0.5
MIN_COSINE = 0.9
CANDIDATES = (50, 100, 300, 1000)

Labels = NDArray[np.int64]
Scores = NDArray[np.float64]


class LabeledPairs:
    """Pairs of questions.

    Attributes:
        questions: All of them, each once.
        places: Positions of the pairs' questions. *Shape:* ``(pairs, 2)``.
        labels: 1 for duplicates. *Shape:* ``(pairs,)``.
    """

    def __init__(self, path: Path) -> None:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file, delimiter="\t") if row["question1"] and row["question2"]]
        names = dict.fromkeys(row[side] for row in rows for side in ("question1", "question2"))
        self.questions = list(names)
        number = {question: place for place, question in enumerate(self.questions)}
        self.places = np.array([[number[row["question1"]], number[row["question2"]]] for row in rows])
        self.labels: Labels = np.array([int(row["is_duplicate"]) for row in rows])

    def scores(self, found: dict[tuple[int, int], float]) -> Scores:
        """Cosines of the pairs that were found; those of the others are the least. *Shape:* ``(pairs,)``."""
        return np.array([found.get((min(pair), max(pair)), -1.0) for pair in self.places.tolist()])


def mined(encoder: Encoder, questions: Sequence[str]) -> dict[tuple[int, int], float]:
    """Near-duplicates by es-sbert."""
    vectors = encoder.encode(list(questions), "document")
    return {
        (int(one), int(two)): float(cosine)
        for first, second, cosines in pairs_above(vectors, LEAST_COSINE)
        for one, two, cosine in zip(first, second, cosines, strict=True)
    }


def mined_by_sentence_transformers(model: str, questions: Sequence[str]) -> dict[tuple[int, int], float]:
    """The same by `paraphrase_mining` with its defaults."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import paraphrase_mining

    reference = SentenceTransformer(str(resolve_model(model)), device="cpu")
    found = paraphrase_mining(reference, list(questions))
    return {(min(one, two), max(one, two)): score for score, one, two in found if score >= LEAST_COSINE}


def best_threshold(labels: Labels, scores: Scores) -> float:
    """Where F1 is greatest."""
    precision, recall, thresholds = precision_recall_curve(labels, scores)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(thresholds[np.argmax(f1[:-1])])


def quality(data: Path, model: str) -> list[list[object]]:
    """A row for each contender."""
    train, test = (LabeledPairs(data / "duplicates" / f"qqp-sample-{part}.tsv.gz") for part in ("train", "test"))
    rows: list[list[object]] = []
    with Encoder(model, device="cpu") as encoder:
        label = f"es-sbert ({encoder.info.variant})"
        threshold = best_threshold(train.labels, train.scores(mined(encoder, train.questions)))
        took, found = seconds(lambda: mined(encoder, test.questions))
        scores = test.scores(found)
        rows.append(_row(label, test, scores, threshold, took))
        vectors = encoder.encode(test.questions, "document")
        took, groups = seconds(lambda: duplicate_groups(vectors, threshold))
        group_of = {one: number for number, group in enumerate(groups) for one in group.members}
        same = [int(group_of.get(one, -1) == group_of.get(two, -2)) for one, two in test.places.tolist()]
        rows.append(
            [
                f"{label}, in one group",
                "",
                f"{100 * f1_score(test.labels, same):.2f}",
                f"{threshold:.3f}",
                f"{took:.1f} (comparing alone)",
            ]
        )
    threshold = best_threshold(train.labels, train.scores(mined_by_sentence_transformers(model, train.questions)))
    took, found = seconds(lambda: mined_by_sentence_transformers(model, test.questions))
    rows.append(
        _row("sentence-transformers, `paraphrase_mining` (torch fp32)", test, test.scores(found), threshold, took)
    )
    chance = 100 * test.labels.mean()
    rows.append(
        [
            f"all {len(test.labels):,} pairs called duplicates",
            f"{chance:.2f}",
            f"{200 * chance / (100 + chance):.2f}",
            "",
            "",
        ]
    )
    return rows


def _row(label: str, pairs: LabeledPairs, scores: Scores, threshold: float, took: float) -> list[object]:
    return [
        label,
        f"{100 * average_precision_score(pairs.labels, scores):.2f}",
        f"{100 * f1_score(pairs.labels, scores >= threshold):.2f}",
        f"{threshold:.3f}",
        f"{took:.1f}",
    ]


def by_index(url: str, data: Path, model: str, count: int) -> Iterator[list[object]]:
    """A row for all pairs, and one for each number of candidates."""
    name = f"benchmark-duplicates-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder, open_engine(url) as engine:
        rows = itertools.islice(read_jsonl(data / "ingest" / "short-docs.jsonl.gz"), count)
        source = write_jsonl(Path(folder) / "docs.jsonl", [{"id": row["id"], "text": row["text"]} for row in rows])
        try:
            with Encoder(model) as encoder:
                load(url, encoder, name, source, dead=Path(folder) / "dead", id_field="id")
            yield from _compared(engine, name, Path(folder))
        finally:
            engine.delete_index(name)


def _compared(engine: Engine, name: str, folder: Path) -> Iterator[list[object]]:
    reading, texts = seconds(lambda: read_index(engine, name, "embedding"))
    took, groups = seconds(lambda: duplicate_groups(texts.vectors, MIN_COSINE))
    exact = {(texts.ids[group.kept], texts.ids[one]) for group in groups for one in group.members if one != group.kept}
    yield ["all pairs", f"{len(exact):,}", "100.0", "", f"{reading:.1f} + {took:.1f}"]
    for candidates in CANDIDATES:
        settings = DuplicateSearchSettings(MIN_COSINE, num_candidates=candidates)
        took, found = seconds(
            lambda settings=settings: search_duplicates(engine, name, "embedding", settings, state=folder / "state")
        )
        labels = {found.texts.ids[one]: number for number, group in enumerate(found.groups) for one in group.members}
        together = sum(labels.get(one, -1) == labels.get(two, -2) for one, two in exact)
        recall = found.recall
        yield [
            f"kNN, {candidates} candidates",
            f"{sum(len(group.members) - 1 for group in found.groups):,}",
            f"{100 * together / len(exact):.1f}",
            f"{100 * recall.found / max(1, recall.pairs):.1f} ({recall.pairs:,})",
            f"{took:.1f}",
        ]


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--url", help="Of an engine; without it the second table is left out.")
@click.option("--documents", default=50_000, show_default=True)
@click.option("--write", is_flag=True, help="Put the tables into docs/results.md; needs --url.")
def main(data: Path, model: str, url: str | None, documents: int, write: bool) -> None:
    """Measure both and print the tables."""
    section = table(["questions", "average precision", "F1", "threshold", "seconds"], quality(data, model))
    if url is not None:
        rows = list(by_index(url, data, model, documents))
        section += "\n\n" + table(
            [f"{documents:,} documents", "near-duplicates", "found, %", "recall on the sample, % (pairs)", "seconds"],
            rows,
        )
    click.echo(f"{section}\n\n{json.dumps(machine())}")
    if write:
        if url is None:
            raise click.UsageError("--write needs --url")
        PAGE.write_text(replaced(PAGE.read_text(), "duplicates", section, maker="benchmarks.duplicates"))


if __name__ == "__main__":
    main()
