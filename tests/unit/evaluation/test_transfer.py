"""SentEval's protocol: penalties are chosen without the test examples, figures are scikit-learn's."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from es_sbert.errors import ModelError, SourceError
from es_sbert.evaluation import probing
from es_sbert.evaluation.probing import PENALTIES, LabeledFeatures, evaluate_in_folds, evaluate_split, pair_features


def examples(count: int, seed: int, *, shift: float = 1.0, classes: int = 2, length: float = 1.0) -> LabeledFeatures:
    """Classes that overlap a little."""
    random = np.random.default_rng(seed)
    numbers = np.arange(count) % classes
    features = random.normal(size=(count, 5))
    features[np.arange(count), numbers] += shift
    return LabeledFeatures((length * features).astype(np.float32), numbers.astype(str))


def by_hand(train: LabeledFeatures, dev: LabeledFeatures, test: LabeledFeatures) -> tuple[float, float, float]:
    """Accuracy, F1 and dev accuracy with the first penalty that is best on dev."""
    scale = 1 / np.linalg.norm(train.features.astype(np.float64), axis=1).mean()
    scaled = [(each.features * np.float32(scale), each.classes) for each in (train, dev, test)]
    fitted = [LogisticRegression(C=penalty, max_iter=2000).fit(*scaled[0]) for penalty in PENALTIES]
    best = max(fitted, key=lambda classifier: classifier.score(*scaled[1]))
    predicted = best.predict(scaled[2][0])
    return best.score(*scaled[2]), f1_score(test.classes, predicted, pos_label="1"), best.score(*scaled[1])


def test_given_splits_by_hand() -> None:
    train, dev, test = examples(60, 1), examples(30, 2), examples(40, 3)
    result = evaluate_split(train, test, dev)
    accuracy, f1, dev_accuracy = by_hand(train, dev, test)
    assert result.accuracy == pytest.approx(100 * accuracy)
    assert result.f1 == pytest.approx(100 * f1)
    assert result.dev_accuracy == pytest.approx(100 * dev_accuracy)


def test_test_examples_select_no_hyperparameter() -> None:
    train, dev, test = examples(60, 1), examples(30, 2), examples(40, 3)
    swapped = LabeledFeatures(test.features, np.where(test.classes == "1", "0", "1"))
    for given in (dev, None):
        one, other = evaluate_split(train, test, given), evaluate_split(train, swapped, given)
        assert one.dev_accuracy == other.dev_accuracy
        assert one.accuracy + other.accuracy == pytest.approx(100)


def test_results_are_independent_of_vector_length() -> None:
    results = [
        evaluate_split(*(examples(60, seed, length=length) for seed in (1, 3, 2)))
        for length in (2.0**-10, 1.0, 2.0**10)
    ]
    assert results[0] == results[1] == results[2]


def test_separable_classes_have_accuracy_100() -> None:
    result = evaluate_in_folds(examples(60, 4, shift=30), folds=3)
    assert (result.accuracy, result.f1, result.dev_accuracy) == (100.0, 100.0, 100.0)


def test_noise_has_chance_accuracy() -> None:
    random = np.random.default_rng(5)
    noise = LabeledFeatures(random.normal(size=(400, 3)).astype(np.float32), random.permutation(["0", "1"] * 200))
    assert 40 < evaluate_in_folds(noise, folds=3).accuracy < 60


def test_every_fold_is_classified_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    data = examples(40, 6)
    seen: list[tuple[int, int]] = []
    whole = probing.evaluate_split

    def watched(train: LabeledFeatures, test: LabeledFeatures, **options: int) -> probing.SentEvalResult:
        rows = {row.tobytes() for row in train.features}
        assert not any(row.tobytes() in rows for row in test.features)
        seen.append((len(train.classes), len(test.classes)))
        return whole(train, test, **options)

    monkeypatch.setattr(probing, "evaluate_split", watched)
    evaluate_in_folds(data, folds=4)
    assert seen == [(30, 10)] * 4


def test_f1_is_none_for_multiclass_tasks() -> None:
    assert evaluate_split(examples(60, 1, classes=3), examples(30, 2, classes=3), folds=3).f1 is None


def test_pair_features() -> None:
    u, v = np.array([[1, 2]], np.float32), np.array([[3, -1]], np.float32)
    assert pair_features(u, v).tolist() == [[2, 3, 3, -2]]


def test_single_class_is_rejected() -> None:
    same = LabeledFeatures(np.ones((20, 2), np.float32), np.array(["1"] * 20))
    with pytest.raises(SourceError, match="of one class"):
        evaluate_in_folds(same)


def test_class_with_too_few_examples_is_rejected() -> None:
    few = LabeledFeatures(np.ones((31, 2), np.float32), np.array(["0"] * 20 + ["1"] * 11))
    with pytest.raises(SourceError, match="the class 1 has 11 examples, but 12 are needed"):
        evaluate_in_folds(few)


def test_minimum_number_of_examples_is_accepted() -> None:
    """One more than refused: every inner fold then has an example of the class."""
    random = np.random.default_rng(7)
    data = LabeledFeatures(random.normal(size=(10, 2)).astype(np.float32), np.array(["0"] * 5 + ["1"] * 5))
    assert 0 <= evaluate_in_folds(data, folds=3).accuracy <= 100


def test_empty_splits_are_rejected() -> None:
    none = LabeledFeatures(np.empty((0, 5), np.float32), np.array([], dtype=str))
    with pytest.raises(SourceError, match="no examples to measure"):
        evaluate_split(examples(60, 1), none)
    with pytest.raises(SourceError, match="no examples to measure"):
        evaluate_split(examples(60, 1), examples(10, 2), none)


def test_non_finite_features_raise_model_error() -> None:
    broken = examples(60, 1)
    broken.features[3, 2] = np.nan
    with pytest.raises(ModelError, match="NaN or infinite"):
        evaluate_split(broken, examples(10, 2))
    with pytest.raises(ModelError, match="NaN or infinite"):
        evaluate_split(examples(60, 1), broken)
