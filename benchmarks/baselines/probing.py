"""Tasks of the Sentence-BERT paper that train on frozen sentence vectors: SentEval and argument similarity.

SentEval (Conneau and Kiela 2018, arXiv 1803.05449; Reimers and Gurevych 2019, section 5) fits a logistic regression on
the vectors of one text, or on (|u − v|, u ∗ v) of a pair. Its L2 penalty is chosen without the test examples:

    one file          nested cross-validation
    train, test       cross-validation on the training examples
    train, dev, test  the dev examples; the classifier is fitted on the training examples only

Argument similarity correlates scores with gold grades, within topics and across topics. The paper uses the AFS corpus
(section 4.3). The UKP aspect corpus (Reimers et al. 2019, arXiv 1906.09821) replaces it. Its labels are grades:

    HS      highly similar                              2
    SS      somewhat similar                            1
    NS      not similar                                 0
    DTORCD  different topic, or relation not decidable  0

DTORCD pairs are kept: dropping them would hide pairs that a model gets wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    BaseCrossValidator,
    GridSearchCV,
    GroupKFold,
    PredefinedSplit,
    StratifiedKFold,
    cross_val_predict,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from es_sbert.errors import UsageError
from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder, check_finite, embed_columns
from es_sbert.evaluation.evaluation_report import EvaluationReport, ReportRow
from es_sbert.evaluation.pair_metrics import Correlation, Similarity, correlate, paired_similarity
from es_sbert.io.tables import MissingColumns, Table, read_table

FOLDS = 10
# Inverse penalties for vectors of mean length 1; SentEval's grid covers about the same range for vectors of length 10.
PENALTIES = tuple(4.0**power for power in range(6))
# With vectors of this length, lbfgs converges long before this limit.
_ITERATIONS = 2000


@dataclass(frozen=True)
class LabeledFeatures:
    """Features of some examples and their classes.

    Attributes:
        features: *Shape:* ``(examples, features)``.
        classes: *Shape:* ``(examples,)``, the names of the classes.
    """

    features: NDArray[np.float32]
    classes: NDArray[np.str_]

    def at(self, rows: NDArray[np.int64]) -> LabeledFeatures:
        """Select examples by their rows."""
        return LabeledFeatures(self.features[rows], self.classes[rows])


def pair_features(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute (|u − v|, u ∗ v) of paired vectors, *shape* ``(pairs, 2 · dimensions)`` (SentEval's MRPC features)."""
    return np.hstack([np.abs(first - second), first * second])


def evaluate_in_folds(examples: LabeledFeatures, *, folds: int = FOLDS) -> dict[str, float]:
    """`evaluate_split` over stratified folds, shuffled by a fixed seed, with a penalty chosen for each; the means."""
    splits = StratifiedKFold(folds, shuffle=True, random_state=0).split(examples.features, examples.classes)
    results = [evaluate_split(examples.at(train), examples.at(test), folds=folds) for train, test in splits]
    return {name: float(np.mean([result[name] for result in results])) for name in results[0]}


def evaluate_split(
    train: LabeledFeatures, test: LabeledFeatures, dev: LabeledFeatures | None = None, *, folds: int = FOLDS
) -> dict[str, float]:
    """Fit a classifier, and measure its accuracy × 100 on test examples.

    Args:
        train: Examples to fit the classifier on.
        test: Examples to measure the classifier on.
        dev: Examples to choose the penalty on; None for stratified folds of the training examples.
        folds: Number of these folds, which are shuffled with a fixed seed.

    Returns:
        `accuracy`, and `dev_accuracy`, for which the penalty was chosen.

    Raises:
        ModelError: a feature is not a finite number.
    """
    check_finite(train.features, test.features, *([dev.features] if dev is not None else []))
    scale = _mean_length_scale(train.features)
    learned = LabeledFeatures(train.features * scale, train.classes)
    cv: BaseCrossValidator
    if dev is None:
        cv, choosing = StratifiedKFold(folds, shuffle=True, random_state=0), learned
    else:
        # −1: always used for fitting; 0: the only fold that is measured.
        cv = PredefinedSplit(np.repeat([-1, 0], [len(train.classes), len(dev.classes)]))
        features = np.vstack([learned.features, dev.features * scale])
        choosing = LabeledFeatures(features, np.append(train.classes, dev.classes))
    search = GridSearchCV(_classifier(), {"C": PENALTIES}, cv=cv, scoring="accuracy", refit=False)
    search.fit(choosing.features, choosing.classes)
    classifier = _classifier(**search.best_params_).fit(learned.features, learned.classes)
    predicted = classifier.predict(test.features * scale)  # (test examples,)
    return {
        "accuracy": 100 * float(np.mean(predicted == test.classes)),
        "dev_accuracy": 100 * float(search.best_score_),
    }


def _classifier(C: float = 1.0) -> LogisticRegression:  # noqa: N803 - scikit-learn's name
    return LogisticRegression(C=C, max_iter=_ITERATIONS)


def _mean_length_scale(features: NDArray[np.float32]) -> np.float32:
    """Factor that scales the mean length to 1, so that one grid of penalties fits vectors of any length."""
    mean = float(np.linalg.norm(features.astype(np.float64), axis=1).mean())
    return np.float32(1 / mean) if mean > 0 else np.float32(1)


GRADES = {"NS": 0.0, "DTORCD": 0.0, "SS": 1.0, "HS": 2.0}
ARGUMENT_FOLDS = 10
# The corpus has 28 topics: folds of seven.
TOPIC_FOLDS = 4

FoldRows = NDArray[np.int64]
FoldSplit = tuple[FoldRows, FoldRows]  # rows to train on and rows to score, each ascending


def grades(labels: Sequence[str]) -> NDArray[np.float64]:
    """Convert labels to grades, *shape* ``(pairs,)``."""
    return np.array([GRADES[label] for label in labels], dtype=np.float64)


def random_splits(labels: Sequence[str]) -> list[FoldSplit]:
    """Make folds of all topics, each with about the same share of every label."""
    splitter = StratifiedKFold(ARGUMENT_FOLDS, shuffle=True, random_state=0)
    return list(splitter.split(np.zeros(len(labels)), np.array(labels)))


def topic_splits(topics: Sequence[str]) -> list[FoldSplit]:
    """Make folds that share no topic, so that no topic is both trained on and scored."""
    splitter = GroupKFold(TOPIC_FOLDS, shuffle=True, random_state=0)
    return list(splitter.split(np.zeros(len(topics)), groups=np.array(topics)))


def fold_correlations(
    splits: Sequence[FoldSplit], scores: NDArray[np.floating], gold: NDArray[np.floating]
) -> tuple[Correlation, list[Correlation]]:
    """Correlate scores with gold scores in each fold; return the means of r and of ρ, and each fold's.

    Args:
        splits: Folds; each row is scored in one of them.
        scores: Score of each pair by a model that was trained without the pair's fold, *shape* ``(pairs,)``.
        gold: *Shape:* ``(pairs,)``.

    Raises:
        ModelError: a score is not a finite number.
    """
    folds = [correlate(scores[test], gold[test]) for _, test in splits]
    spearman, pearson = ([getattr(fold, name) for fold in folds] for name in ("spearman", "pearson"))
    return Correlation(spearman=float(np.mean(spearman)), pearson=float(np.mean(pearson))), folds


def svr_scores(
    features: NDArray[np.float32], gold: NDArray[np.floating], splits: Sequence[FoldSplit]
) -> NDArray[np.float64]:
    """Score pairs by a support vector regression, *shape* ``(pairs,)``: the baseline of Misra et al. 2016.

    Each fold is scored by a model that was trained on the others. Features are standardized on the training rows.
    Kernel and constants are scikit-learn's defaults.

    Args:
        features: *Shape:* ``(pairs, features)``.
        gold: *Shape:* ``(pairs,)``.
        splits: Folds; each row is scored in one of them.
    """
    model = make_pipeline(StandardScaler(), SVR())
    scores: NDArray[np.float64] = cross_val_predict(model, features, gold, cv=splits)
    return scores


TASKS = ("argument", "transfer")
_SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class ArgumentPairs:
    """Pairs of arguments of one topic, from a file with the columns topic, sentence_1, sentence_2 and label.

    Attributes:
        labels: NS, DTORCD, SS or HS, one per pair.
        topics: Topics, one per pair.
    """

    name: str
    first: list[str]
    second: list[str]
    labels: list[str]
    topics: list[str]


def read_arguments(path: Path) -> ArgumentPairs:
    """Read a corpus of arguments.

    Raises:
        SourceError: the file is invalid; the message names the lines.
    """
    columns = ("sentence_1", "sentence_2", "label", "topic")
    table = read_table(path, list(columns))
    return ArgumentPairs(path.name.partition(".")[0], *map(table.texts, columns))


@dataclass(frozen=True)
class LabeledTexts:
    """Texts, or pairs of texts, with classes.

    Attributes:
        texts: One list of texts, or two for pairs.
        classes: Classes, one per example.
    """

    texts: tuple[list[str], ...]
    classes: list[str]


def read_labeled_texts(path: Path) -> LabeledTexts:
    """Read examples: the columns text and label, or for pairs sentence1, sentence2 and label.

    Raises:
        SourceError: the file is invalid; the message names the lines.
    """
    columns: tuple[str, ...] = ("sentence1", "sentence2")
    try:
        table: Table = read_table(path, [*columns, "label"])
    except MissingColumns:
        columns = ("text",)
        table = read_table(path, [*columns, "label"])
    return LabeledTexts(tuple(map(table.texts, columns)), list(map(str, table.columns["label"])))


def evaluate(model: SentenceEmbedder | PairScorer, task: str, folder: Path) -> EvaluationReport:
    """Evaluate a model on one of `TASKS`.

    Args:
        model: The model.
        task: The task; its files are in the folder of this name in `folder`. `transfer` has one file per data set, or
            the splits `NAME-train`, `NAME-test` and perhaps `NAME-dev`.
        folder: Folder of all tasks.

    Raises:
        UsageError: `transfer` needs sentence vectors, but the model only scores pairs.
        SourceError: a file is invalid.
    """
    files = sorted(path for path in (folder / task).iterdir() if not path.name.startswith("."))
    rows: list[ReportRow] = []
    if task == "argument":
        for path in files:
            rows += _evaluate_arguments(model, read_arguments(path))
    elif not isinstance(model, SentenceEmbedder):
        raise UsageError(f"transfer needs sentence vectors, but {model.name} only scores pairs", "Use another model.")
    else:
        groups: dict[str, dict[str, Path]] = {}
        for path in files:
            name, _, split = path.name.partition(".")[0].rpartition("-")
            name, split = (name, split) if split in _SPLITS else (path.name.partition(".")[0], "")
            groups.setdefault(name, {})[split] = path
        for name, splits in groups.items():
            rows.append(
                _evaluate_senteval(model, name, {key: read_labeled_texts(path) for key, path in splits.items()})
            )
    return EvaluationReport(task, model.name, tuple(rows))


def _evaluate_arguments(model: SentenceEmbedder | PairScorer, data: ArgumentPairs) -> list[ReportRow]:
    """Evaluate similarity without training; for sentence vectors also a regression, in folds and across topics."""
    gold = grades(data.labels)  # (pairs,)

    def row(part: str, correlation: Correlation) -> ReportRow:
        return ReportRow(data.name, part, len(gold), "pairs", asdict(correlation))

    if not isinstance(model, SentenceEmbedder):
        return [row("no training", correlate(model.score(data.first, data.second), gold))]
    first, second = embed_columns(model, data.first, data.second)
    features = pair_features(first, second)

    def learned(splits: list[FoldSplit]) -> Correlation:
        return fold_correlations(splits, svr_scores(features, gold, splits), gold)[0]

    in_folds, across_topics = learned(random_splits(data.labels)), learned(topic_splits(data.topics))
    return [
        row("no training", correlate(paired_similarity(Similarity.COSINE, first, second), gold)),
        row(f"SVR on the vectors, {ARGUMENT_FOLDS} folds", in_folds),
        row(f"SVR on the vectors, across topics in {TOPIC_FOLDS} folds", across_topics),
    ]


def _evaluate_senteval(model: SentenceEmbedder, name: str, splits: dict[str, LabeledTexts]) -> ReportRow:
    """Evaluate one data set: split → its examples; `""` if there are no splits."""

    def labeled(split: str) -> LabeledFeatures:
        vectors = embed_columns(model, *splits[split].texts)
        features = vectors[0] if len(vectors) == 1 else pair_features(*vectors)
        return LabeledFeatures(features, np.array(splits[split].classes))

    if "" in splits:
        train = labeled("")
        result, part, size = evaluate_in_folds(train), f"{FOLDS} folds", len(train.classes)
    else:
        test, dev = labeled("test"), labeled("dev") if "dev" in splits else None
        result, part, size = evaluate_split(labeled("train"), test, dev), "test", len(test.classes)
    return ReportRow(name, part, size, "examples", result)
