"""Folds that are what they say, and a fold loop that trains on one part and scores the other."""

from collections import Counter

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from es_sbert.errors import SourceError
from es_sbert.evaluation.probing import (
    FoldSplit,
    fold_correlations,
    grades,
    random_splits,
    svr_scores,
    topic_splits,
)

LABELS = ["NS"] * 40 + ["SS"] * 30 + ["HS"] * 20 + ["DTORCD"] * 10
TOPICS = [f"topic {number % 8}" for number in range(100)]


def covers(splits: list[FoldSplit], count: int) -> bool:
    """Whether every row is scored once and never trained on at the same time."""
    apart = all(not set(train.tolist()) & set(test.tolist()) for train, test in splits)
    whole = all(len(train) + len(test) == count for train, test in splits)
    return apart and whole and sorted(np.concatenate([test for _, test in splits]).tolist()) == list(range(count))


def test_labels_become_grades() -> None:
    assert grades(["HS", "NS", "DTORCD", "SS"]).tolist() == [2, 0, 0, 1]
    with pytest.raises(SourceError, match="unknown label 'hs'"):
        grades(["HS", "hs"])


def test_random_folds_are_stratified() -> None:
    splits = random_splits(LABELS)
    assert len(splits) == 10
    assert covers(splits, 100)
    for _, test in splits:
        assert Counter(LABELS[row] for row in test) == {"NS": 4, "SS": 3, "HS": 2, "DTORCD": 1}


def test_seed_changes_the_folds() -> None:
    first = [test.tolist() for _, test in random_splits(LABELS, seed=1)]
    assert first == [test.tolist() for _, test in random_splits(LABELS, seed=1)]
    assert first != [test.tolist() for _, test in random_splits(LABELS, seed=2)]
    groups = {tuple(test.tolist()) for _, test in topic_splits(TOPICS, seed=1)}
    assert groups != {tuple(test.tolist()) for _, test in topic_splits(TOPICS, seed=2)}


@pytest.mark.parametrize(("folds", "expected"), [(4, 4), (3, 3), (8, 8)])
def test_topic_folds_share_no_topic(folds: int, expected: int) -> None:
    splits = topic_splits(TOPICS, folds=folds)
    assert len(splits) == expected
    assert covers(splits, 100)
    for train, test in splits:
        assert not {TOPICS[row] for row in train} & {TOPICS[row] for row in test}


def test_cross_validation_averages_over_folds() -> None:
    gold = np.array([0.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    splits = [(np.array([3, 4, 5]), np.array([0, 1, 2])), (np.array([0, 1, 2]), np.array([3, 4, 5]))]
    scores = np.array([*gold[:3], 1.0, 0.0, 2.0])  # ρ = 1 and 0.5
    result = fold_correlations(splits, scores, gold)
    assert [fold.spearman for fold in result.folds] == [pytest.approx(100), pytest.approx(50)]
    assert result.mean.spearman == pytest.approx(75)
    assert result.mean.pearson == pytest.approx((100 + result.folds[1].pearson) / 2)


def test_regression_is_not_fitted_on_test_rows() -> None:
    random = np.random.default_rng(0)
    gold = np.array([0.0, 1.0, 2.0] * 30)
    features = random.normal(size=(90, 4)).astype(np.float32)
    features[:, 0] += gold
    splits = random_splits([str(grade) for grade in gold])
    scores = svr_scores(features, gold, splits)
    assert fold_correlations(splits, scores, gold).mean.pearson > 50
    # The gold scores of a fold change nothing in the scores of that fold.
    train, test = splits[0]
    other = gold.copy()
    other[test] = 100
    np.testing.assert_array_equal(svr_scores(features, other, splits)[test], scores[test])
    by_hand = make_pipeline(StandardScaler(), SVR()).fit(features[train], gold[train]).predict(features[test])
    np.testing.assert_array_equal(scores[test], by_hand)


@pytest.mark.parametrize("labels", [[], ["NS"] * 20 + ["HS"] * 9])
def test_too_few_pairs_of_a_label_are_rejected(labels: list[str]) -> None:
    with pytest.raises(SourceError, match="10 folds need 10 pairs of every label"):
        random_splits(labels)


@pytest.mark.parametrize(("topics", "folds"), [(["a", "b", "c"], 4), (["a", "a"], 2), ([], 2)])
def test_too_few_topics_are_rejected(topics: list[str], folds: int) -> None:
    with pytest.raises(SourceError, match="topics cannot be split"):
        topic_splits(topics, folds=folds)
