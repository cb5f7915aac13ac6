"""Runs a model on the data of a task and reports the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model import PromptKind
from es_sbert.errors import SourceError, UsageError
from es_sbert.evaluation import argument, retrieval
from es_sbert.evaluation.data import (
    ArgumentPairs,
    Classification,
    Collection,
    Data,
    LabelledPairs,
    LabelledTexts,
    ScoredPairs,
    Task,
    Triplets,
)
from es_sbert.evaluation.duplicates import duplicates
from es_sbert.evaluation.models import Embedder, PairScorer
from es_sbert.evaluation.report import Report, Row
from es_sbert.evaluation.similarity import Similarity, paired_similarity
from es_sbert.evaluation.sts import ALL, Correlation, correlate, parts, sts
from es_sbert.evaluation.transfer import FOLDS, Labelled, cross_validated, given_split, pair_features
from es_sbert.evaluation.triplet import triplet_accuracy

IN_MEMORY = "in memory"
Vectors = NDArray[np.float32]


def run_task(model: Embedder | PairScorer, task: Task, data: Sequence[Data], *,
             settings: Mapping[str, str | int | float | None] | None = None,
             progress: Callable[[str], None] = lambda message: None) -> Report:  # fmt: skip
    """Measure a model.

    Args:
        model: What is measured.
        task: By which protocol.
        data: Of this task, as `es_sbert.evaluation.files` reads it.
        settings: How it is measured, for the report.
        progress: Told what is being measured.

    Raises:
        UsageError: the task needs sentence vectors and the model only scores pairs.
        SourceError: data that no figure can be made of (all of one class, …), named.
        ModelError: the model gives vectors or scores that are not finite numbers.
    """
    rows: list[Row] = []
    for each in data:
        progress(f"{task}: {each.name}")
        try:
            rows += _rows(model, each)
        except SourceError as error:
            raise SourceError(f"{each.name}: {error.message}", error.remedy) from error
    return Report(task, model.name, tuple(rows), dict(settings or {}))


def _rows(model: Embedder | PairScorer, data: Data) -> list[Row]:
    match data:
        case ScoredPairs():
            return _sts(model, data)
        case ArgumentPairs():
            return _argument(model, data)
        case LabelledPairs():
            return [_duplicates(model, data)]
        case Triplets():
            return [_triplets(needs_vectors(model, Task.TRIPLET), data)]
        case Classification():
            return [_transfer(needs_vectors(model, Task.TRANSFER), data)]
        case Collection():
            return [retrieval_row(data, memory_run(needs_vectors(model, Task.RETRIEVAL), data), IN_MEMORY)]


def needs_vectors(model: Embedder | PairScorer, task: Task) -> Embedder:
    """The model, if it makes sentence vectors.

    Raises:
        UsageError: it scores pairs only.
    """
    if isinstance(model, Embedder):
        return model
    raise UsageError(
        f"the task {task} needs sentence vectors, and {model.name} only scores pairs",
        "Measure it by sts, duplicates or argument, or give a sentence encoder.",
    )


def _sts(model: Embedder | PairScorer, data: ScoredPairs) -> list[Row]:
    if isinstance(model, Embedder):
        first, second = embed_columns(model, data.first, data.second)

        def figures(rows: NDArray[np.int64]) -> dict[str, float]:
            found = sts(first[rows], second[rows], data.scores[rows])
            return {f"{name}_{similarity}": getattr(each, name) for name in ("spearman", "pearson")
                    for similarity, each in found.items()}  # fmt: skip
    else:
        scores = model.score(data.first, data.second)  # (pairs,)

        def figures(rows: NDArray[np.int64]) -> dict[str, float]:
            return _figures(correlate(scores[rows], data.scores[rows]))

    selected = parts(data.subsets, data.scores)
    return [Row(data.name, part, len(rows), "pairs", figures(rows)) for part, rows in selected.items()]


def _argument(model: Embedder | PairScorer, data: ArgumentPairs) -> list[Row]:
    """Similarity without training; for sentence vectors also a regression on them, in folds and across topics."""
    gold = argument.grades(data.labels)  # (pairs,)

    def row(part: str, correlation: Correlation) -> Row:
        return Row(data.name, part, len(gold), "pairs", _figures(correlation))

    if not isinstance(model, Embedder):
        return [row("no training", correlate(model.score(data.first, data.second), gold))]
    first, second = embed_columns(model, data.first, data.second)
    cosines = paired_similarity(Similarity.COSINE, first, second)  # (pairs,)
    regression = argument.svr(pair_features(first, second), gold)
    in_folds = argument.cross_validate(argument.random_splits(data.labels), gold, regression)
    across_topics = argument.cross_validate(argument.topic_splits(data.topics), gold, regression)
    return [
        row("no training", correlate(cosines, gold)),
        row(f"SVR on the vectors, {argument.FOLDS} folds", in_folds.mean),
        row(f"SVR on the vectors, across topics in {argument.TOPIC_FOLDS} folds", across_topics.mean),
    ]


def _duplicates(model: Embedder | PairScorer, data: LabelledPairs) -> Row:
    if isinstance(model, Embedder):
        scores = paired_similarity(Similarity.COSINE, *embed_columns(model, data.first, data.second))  # (pairs,)
        result = duplicates(scores, data.labels)
    else:
        result = duplicates(model.score(data.first, data.second), data.labels)
    return Row(data.name, ALL, len(data.labels), "pairs", asdict(result))


def _triplets(model: Embedder, data: Triplets) -> Row:
    vectors = embed_columns(model, data.anchors, data.positives, data.negatives)
    figures = {f"accuracy_{distance}": value for distance, value in triplet_accuracy(*vectors).items()}
    return Row(data.name, ALL, len(data.anchors), "triplets", figures)


def _transfer(model: Embedder, data: Classification) -> Row:
    def labelled(examples: LabelledTexts) -> Labelled:
        vectors = embed_columns(model, *examples.texts)
        features = vectors[0] if len(vectors) == 1 else pair_features(*vectors)
        return Labelled(features, np.array(examples.classes))

    train = labelled(data.train)
    if data.test is None:
        result, part, size = cross_validated(train), f"{FOLDS} folds", len(train.classes)
    else:
        test, dev = labelled(data.test), labelled(data.dev) if data.dev else None
        result, part, size = given_split(train, test, dev), "test", len(test.classes)
    figures = {"accuracy": result.accuracy, "dev_accuracy": result.dev_accuracy}
    # SentEval reports F1 for pairs only (MRPC).
    f1 = {"f1": result.f1} if result.f1 is not None and len(data.train.texts) == 2 else {}
    return Row(data.name, part, size, "examples", figures | f1)


def memory_run(model: Embedder, data: Collection) -> retrieval.Run:
    """The nearest documents to each query by exact cosine, queries that are documents left out of their own answers."""
    queries, documents = list(data.queries), list(data.documents)
    (questions,) = embed_columns(model, list(data.queries.values()), kind="query")
    (corpus,) = embed_columns(model, list(data.documents.values()), kind="document")
    place = {document: row for row, document in enumerate(documents)}
    own = [data.own(query) for query in queries]
    rows = np.array([-1 if document is None else place[document] for document in own], dtype=np.int64)  # (queries,)
    return retrieval.rank(questions, queries, corpus, documents, own=rows)


def retrieval_row(data: Collection, run: retrieval.Run, part: str) -> Row:
    """Figures of a ranking of a collection."""
    result = retrieval.measure(run, data.judgements)
    figures = {"ndcg@10": result.ndcg, "mrr@10": result.mrr, "map@100": result.map, "recall@100": result.recall}
    return Row(data.name, part, len(data.queries), "queries", figures)


def embed_columns(model: Embedder, *columns: Sequence[str], kind: PromptKind | None = None) -> list[Vectors]:
    """Vectors of columns of texts, *shape* ``(texts, dimensions)`` each; equal texts run once."""
    places = {text: place for place, text in enumerate(dict.fromkeys(text for column in columns for text in column))}
    vectors = model.embed(list(places), kind)  # (different texts, dimensions)
    return [vectors[[places[text] for text in column]] for column in columns]


def _figures(correlation: Correlation) -> dict[str, float]:
    return {"spearman": correlation.spearman, "pearson": correlation.pearson}
