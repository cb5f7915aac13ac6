"""Evaluate a model on the data of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.sentence_model import PromptKind
from es_sbert.errors import SourceError, UsageError
from es_sbert.evaluation import probing
from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder
from es_sbert.evaluation.evaluation_report import EvaluationReport, ReportRow, average_row, retrieval_row
from es_sbert.evaluation.exact_search import search_exact
from es_sbert.evaluation.pair_metrics import (
    ALL,
    Correlation,
    Similarity,
    correlate,
    duplicates,
    paired_similarity,
    sts_correlations,
    subset_rows,
    triplet_accuracy,
)
from es_sbert.evaluation.probing import FOLDS, LabeledFeatures, evaluate_in_folds, evaluate_split, pair_features
from es_sbert.evaluation.ranking_metrics import DEPTH, Run
from es_sbert.evaluation.task_data import (
    ArgumentPairs,
    ClassificationData,
    DuplicatePairs,
    EvaluationTask,
    LabeledTexts,
    RetrievalCollection,
    StsPairs,
    TaskData,
    Triplets,
)

IN_MEMORY = "in memory"
Vectors = NDArray[np.float32]


def run_task(
    model: SentenceEmbedder | PairScorer,
    task: EvaluationTask,
    data: Sequence[TaskData],
    *,
    settings: Mapping[str, str | int | float | None] | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> EvaluationReport:
    """Evaluate a model on a task.

    Args:
        model: The model.
        task: The task.
        data: Data of the task, as `read_task_data` returns it.
        settings: Settings to record in the report.
        progress: Called with progress messages.

    Returns:
        The figures of each data set, and for several collections of retrieval their average.

    Raises:
        UsageError: the task needs sentence vectors, but the model only scores pairs.
        SourceError: no metric is defined for the data (all of one class, …).
        ModelError: the model returned NaN or infinite values.
    """
    rows: list[ReportRow] = []
    for each in data:
        progress(f"{task}: {each.name}")
        try:
            rows += _evaluate(model, each)
        except SourceError as error:
            raise SourceError(f"{each.name}: {error.message}", error.remedy) from error
    if task is EvaluationTask.RETRIEVAL and len(rows) > 1:
        rows.append(average_row(rows))
    return EvaluationReport(task, model.name, tuple(rows), dict(settings or {}))


def _evaluate(model: SentenceEmbedder | PairScorer, data: TaskData) -> list[ReportRow]:
    match data:
        case StsPairs():
            return _evaluate_sts(model, data)
        case ArgumentPairs():
            return _evaluate_argument(model, data)
        case DuplicatePairs():
            return [_evaluate_duplicates(model, data)]
        case Triplets():
            return [_evaluate_triplets(require_vectors(model, EvaluationTask.TRIPLET), data)]
        case ClassificationData():
            return [_evaluate_senteval(require_vectors(model, EvaluationTask.TRANSFER), data)]
        case RetrievalCollection():
            return [retrieval_row(data, memory_run(require_vectors(model, EvaluationTask.RETRIEVAL), data), IN_MEMORY)]


def require_vectors(model: SentenceEmbedder | PairScorer, task: EvaluationTask) -> SentenceEmbedder:
    """Return the model if it returns sentence vectors.

    Raises:
        UsageError: the model only scores pairs.
    """
    if isinstance(model, SentenceEmbedder):
        return model
    raise UsageError(
        f"the task {task} needs sentence vectors, but {model.name} only scores pairs",
        "Evaluate it on sts, duplicates or argument, or use a sentence encoder.",
    )


def _evaluate_sts(model: SentenceEmbedder | PairScorer, data: StsPairs) -> list[ReportRow]:
    if isinstance(model, SentenceEmbedder):
        first, second = embed_columns(model, data.first, data.second)

        def figures(rows: NDArray[np.int64]) -> dict[str, float]:
            found = sts_correlations(first[rows], second[rows], data.scores[rows])
            return {
                f"{name}_{similarity}": getattr(each, name)
                for name in ("spearman", "pearson")
                for similarity, each in found.items()
            }
    else:
        scores = model.score(data.first, data.second)  # (pairs,)

        def figures(rows: NDArray[np.int64]) -> dict[str, float]:
            return asdict(correlate(scores[rows], data.scores[rows]))

    selected = subset_rows(data.subsets, data.scores)
    return [ReportRow(data.name, part, len(rows), "pairs", figures(rows)) for part, rows in selected.items()]


def _evaluate_argument(model: SentenceEmbedder | PairScorer, data: ArgumentPairs) -> list[ReportRow]:
    """Evaluate similarity without training; for sentence vectors also a regression, in folds and across topics."""
    gold = probing.grades(data.labels)  # (pairs,)

    def row(part: str, correlation: Correlation) -> ReportRow:
        return ReportRow(data.name, part, len(gold), "pairs", asdict(correlation))

    if not isinstance(model, SentenceEmbedder):
        return [row("no training", correlate(model.score(data.first, data.second), gold))]
    first, second = embed_columns(model, data.first, data.second)
    cosines = paired_similarity(Similarity.COSINE, first, second)  # (pairs,)
    features = pair_features(first, second)

    def learned(splits: list[probing.FoldSplit]) -> Correlation:
        return probing.fold_correlations(splits, probing.svr_scores(features, gold, splits), gold).mean

    in_folds, across_topics = learned(probing.random_splits(data.labels)), learned(probing.topic_splits(data.topics))
    return [
        row("no training", correlate(cosines, gold)),
        row(f"SVR on the vectors, {probing.ARGUMENT_FOLDS} folds", in_folds),
        row(f"SVR on the vectors, across topics in {probing.TOPIC_FOLDS} folds", across_topics),
    ]


def _evaluate_duplicates(model: SentenceEmbedder | PairScorer, data: DuplicatePairs) -> ReportRow:
    scores: NDArray[np.floating]
    if isinstance(model, SentenceEmbedder):
        scores = paired_similarity(Similarity.COSINE, *embed_columns(model, data.first, data.second))  # (pairs,)
    else:
        scores = model.score(data.first, data.second)  # (pairs,)
    return ReportRow(data.name, ALL, len(data.labels), "pairs", asdict(duplicates(scores, data.labels)))


def _evaluate_triplets(model: SentenceEmbedder, data: Triplets) -> ReportRow:
    vectors = embed_columns(model, data.anchors, data.positives, data.negatives)
    figures = {f"accuracy_{distance}": value for distance, value in triplet_accuracy(*vectors).items()}
    return ReportRow(data.name, ALL, len(data.anchors), "triplets", figures)


def _evaluate_senteval(model: SentenceEmbedder, data: ClassificationData) -> ReportRow:
    def labeled(examples: LabeledTexts) -> LabeledFeatures:
        vectors = embed_columns(model, *examples.texts)
        features = vectors[0] if len(vectors) == 1 else pair_features(*vectors)
        return LabeledFeatures(features, np.array(examples.classes))

    train = labeled(data.train)
    if data.test is None:
        result, part, size = evaluate_in_folds(train), f"{FOLDS} folds", len(train.classes)
    else:
        test, dev = labeled(data.test), labeled(data.dev) if data.dev else None
        result, part, size = evaluate_split(train, test, dev), "test", len(test.classes)
    figures = {"accuracy": result.accuracy, "dev_accuracy": result.dev_accuracy}
    # SentEval reports F1 for pairs only (MRPC).
    f1 = {"f1": result.f1} if result.f1 is not None and len(data.train.texts) == 2 else {}
    return ReportRow(data.name, part, size, "examples", figures | f1)


def memory_run(model: SentenceEmbedder, data: RetrievalCollection) -> Run:
    """Find the nearest documents to each query by exact cosine, without the document that is the query itself."""
    queries, documents = list(data.queries), list(data.documents)
    (questions,) = embed_columns(model, list(data.queries.values()), kind="query")
    (corpus,) = embed_columns(model, list(data.documents.values()), kind="document")
    place = {document: row for row, document in enumerate(documents)}
    own = [data.own(query) for query in queries]
    rows = np.array([-1 if document is None else place[document] for document in own], dtype=np.int64)  # (queries,)
    found, cosines = search_exact(questions, corpus, DEPTH, rows)  # (queries, depth) each
    return {
        query: {documents[row]: cosine for row, cosine in zip(places, scores, strict=True) if row >= 0}
        for query, places, scores in zip(queries, found.tolist(), cosines.tolist(), strict=True)
    }


def embed_columns(model: SentenceEmbedder, *columns: Sequence[str], kind: PromptKind | None = None) -> list[Vectors]:
    """Embed columns of texts, *shape* ``(texts, dimensions)`` each; equal texts are embedded only once."""
    places = {text: place for place, text in enumerate(dict.fromkeys(text for column in columns for text in column))}
    vectors = model.embed(list(places), kind)  # (different texts, dimensions)
    return [vectors[[places[text] for text in column]] for column in columns]
