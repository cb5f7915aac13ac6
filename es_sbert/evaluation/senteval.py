"""SentEval: accuracy of a linear classifier on frozen sentence vectors.

Conneau and Kiela 2018 (arXiv 1803.05449); Reimers and Gurevych 2019, section 5. A logistic regression is fitted on the
vectors of one text, or on (|u − v|, u ∗ v) of a pair. Its L2 penalty is chosen without the test examples:

    one file          nested cross-validation
    train, test       cross-validation on the training examples
    train, dev, test  the dev examples; the classifier is fitted on the training examples only
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import BaseCrossValidator, GridSearchCV, PredefinedSplit, StratifiedKFold

from es_sbert.errors import SourceError
from es_sbert.evaluation.pair_metrics import check_finite

FOLDS = 10
# Inverse penalties, of vectors whose mean length is 1: SentEval's grid covers about these for vectors of length 10.
PENALTIES = tuple(4.0**power for power in range(6))
# lbfgs ends long before on vectors of such length.
_ITERATIONS = 2000


@dataclass(frozen=True)
class LabelledFeatures:
    """Features of some examples and their classes.

    Attributes:
        features: *Shape:* ``(examples, features)``.
        classes: *Shape:* ``(examples,)``, the names of the classes.
    """

    features: NDArray[np.float32]
    classes: NDArray[np.str_]

    def __post_init__(self) -> None:
        if len(self.features) != len(self.classes):
            raise ValueError(f"{len(self.features)} examples with {len(self.classes)} classes")

    def at(self, rows: NDArray[np.int64]) -> LabelledFeatures:
        """Some of the examples."""
        return LabelledFeatures(self.features[rows], self.classes[rows])


@dataclass(frozen=True)
class SentEvalResult:
    """How well the classifier does on examples that it has not seen.

    Attributes:
        accuracy: × 100; of several folds, the mean over folds.
        f1: F1 × 100 of the class `1`, where the classes are 0 and 1; else None.
        dev_accuracy: × 100, what the penalty was chosen by.
    """

    accuracy: float
    f1: float | None
    dev_accuracy: float


def pair_features(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    """(|u − v|, u ∗ v) of paired vectors, *shape* ``(pairs, 2 · dimensions)`` (SentEval's features of MRPC)."""
    return np.hstack([np.abs(first - second), first * second])


def evaluate_in_folds(examples: LabelledFeatures, *, folds: int = FOLDS, seed: int = 0) -> SentEvalResult:
    """Accuracy over stratified folds, shuffled by the seed, with a penalty chosen anew for each.

    Raises:
        SourceError: fewer than two classes, or a class with too few examples for the folds.
        ModelError: a feature is not a finite number.
    """
    results = []
    _check_classes(examples, at_least=folds + 2)  # so that `folds` of each class are left when a fold is taken away
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    for train, test in splits.split(examples.features, examples.classes):
        results.append(evaluate_split(examples.at(train), examples.at(test), folds=folds, seed=seed))
    f1 = [result.f1 for result in results if result.f1 is not None]
    return SentEvalResult(
        accuracy=float(np.mean([result.accuracy for result in results])),
        f1=float(np.mean(f1)) if len(f1) == len(results) else None,
        dev_accuracy=float(np.mean([result.dev_accuracy for result in results])),
    )


def evaluate_split(
    train: LabelledFeatures,
    test: LabelledFeatures,
    dev: LabelledFeatures | None = None,
    *,
    folds: int = FOLDS,
    seed: int = 0,
) -> SentEvalResult:
    """Accuracy on given test examples.

    Args:
        train: What the classifier is fitted on.
        test: What it is measured on.
        dev: What chooses the penalty; None: stratified folds of the training examples.
        folds: How many of these.
        seed: For shuffling them.

    Raises:
        SourceError: fewer than two classes, a class with fewer training examples than folds, or no test examples.
        ModelError: a feature is not a finite number.
    """
    _check_classes(train, at_least=folds if dev is None else 1)
    if not len(test.classes) or (dev is not None and not len(dev.classes)):
        raise SourceError("there are no examples to measure the classifier on", "Give at least one.")
    check_finite(test.features, *([dev.features] if dev is not None else []))
    scale = _mean_length_scale(train.features)
    learned = LabelledFeatures(train.features * scale, train.classes)
    cv: BaseCrossValidator
    if dev is None:
        cv, choosing = StratifiedKFold(folds, shuffle=True, random_state=seed), learned
    else:
        # −1: never left out; 0: the one fold that measures.
        cv = PredefinedSplit(np.repeat([-1, 0], [len(train.classes), len(dev.classes)]))
        choosing = LabelledFeatures(
            np.vstack([learned.features, dev.features * scale]), np.append(train.classes, dev.classes)
        )
    search = GridSearchCV(_classifier(), {"C": PENALTIES}, cv=cv, scoring="accuracy", refit=False)
    search.fit(choosing.features, choosing.classes)
    classifier = _classifier(**search.best_params_).fit(learned.features, learned.classes)
    predicted = classifier.predict(test.features * scale)  # (test examples,)
    binary = set(train.classes.tolist()) == {"0", "1"}
    return SentEvalResult(
        accuracy=100 * float(np.mean(predicted == test.classes)),
        f1=100 * float(f1_score(test.classes, predicted, pos_label="1", zero_division=0.0)) if binary else None,
        dev_accuracy=100 * float(search.best_score_),
    )


def _classifier(C: float = 1.0) -> LogisticRegression:  # noqa: N803 - scikit-learn's name
    return LogisticRegression(C=C, max_iter=_ITERATIONS)


def _mean_length_scale(features: NDArray[np.float32]) -> np.float32:
    """What makes the mean length 1, so that one grid of penalties fits vectors of any length.

    One number for all features: nothing that a classifier without penalty could not do itself.
    """
    mean = float(np.linalg.norm(features.astype(np.float64), axis=1).mean())
    return np.float32(1 / mean) if mean > 0 else np.float32(1)


def _check_classes(examples: LabelledFeatures, *, at_least: int) -> None:
    check_finite(examples.features)
    names, counts = np.unique(examples.classes, return_counts=True)
    if len(names) < 2:
        raise SourceError(
            f"all {len(examples.classes)} examples are of one class",
            "Give examples of at least two (a larger --limit).",
        )
    if counts.min() < at_least:
        raise SourceError(
            f"the class {names[counts.argmin()]} has {counts.min()} examples, {at_least} are needed",
            "Give more of them (a larger --limit).",
        )
