"""Clusters against scikit-learn and brute force; what has no result is refused with a remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score, silhouette_score
from sklearn.metrics.pairwise import cosine_similarity

import es_sbert.analysis.clusters as module
from es_sbert.analysis import cluster_texts
from es_sbert.analysis.clusters import AUTO_CANDIDATES, Clustering, mean_silhouette, text_vectors
from es_sbert.errors import UsageError
from es_sbert.vectors import Vectors
from tests.raised import raises


def blobs(count: int = 60, centers: int = 4, seed: int = 0) -> tuple[Vectors, NDArray[np.int64]]:
    """Vectors in groups that no method can miss, and the group of each."""
    middles = np.eye(8)[:centers] * 10
    vectors, groups = make_blobs(count, centers=middles, cluster_std=0.5, random_state=seed)
    return vectors.astype(np.float32), groups


def unit(vectors: Vectors) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def same(one: Any, other: Any) -> bool:
    return bool(adjusted_rand_score(one, other) == 1)


def members(found: Clustering) -> list[tuple[int, ...]]:
    return [cluster.members for cluster in found.clusters]


def labels(found: Clustering) -> NDArray[np.int64]:
    """The cluster of each text."""
    number_of = {member: number for number, own in enumerate(members(found)) for member in own}
    return np.array([number_of[text] for text in range(len(number_of))])


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_each_text_is_clustered_once_most_central_first(seed: int, count: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
    found = cluster_texts(vectors, k=min(count, 7))
    assert sorted(sum(members(found), ())) == list(range(count))
    assert members(found) == sorted(members(found), key=lambda own: (-len(own), min(own)))
    for cluster in found.clusters:
        own = unit(vectors)[list(cluster.members)]
        center = own.mean(axis=0, keepdims=True)
        assert np.allclose(cluster.cosines, cosine_similarity(own, center)[:, 0], atol=1e-5)
        order = sorted(zip(cluster.members, cluster.cosines, strict=True), key=lambda member: (-member[1], member[0]))
        assert tuple(member for member, _ in order) == cluster.members
    assert found == cluster_texts(vectors, k=min(count, 7))


@pytest.mark.parametrize("seed", range(3))
def test_k_means_equals_scikit_learn(seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(80, 5)).astype(np.float32)
    reference = KMeans(6, n_init=4, random_state=0).fit(text_vectors(vectors).astype(np.float64))
    assert same(labels(cluster_texts(vectors, k=6)), reference.labels_)


def test_many_texts_are_clustered_by_mini_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, groups = blobs(400)
    monkeypatch.setattr(module, "KMEANS_TEXTS", 100)
    monkeypatch.setattr(module, "AUTO_TEXTS", 50)
    found = cluster_texts(vectors)
    assert same(labels(found), groups)
    assert found == cluster_texts(vectors)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(3, 60), st.integers(2, 8), st.sampled_from([4, 2048]))
def test_silhouette_equals_scikit_learn(seed: int, count: int, k: int, block: int) -> None:
    random = np.random.default_rng(seed)
    vectors = text_vectors(random.normal(size=(count, 4)).astype(np.float32))
    labels = random.integers(0, k, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        found = mean_silhouette(vectors, labels)
    if len(set(labels)) < 2:
        assert found is None
    elif len(set(labels)) == count:
        assert found == 0  # each text is alone, which scikit-learn refuses
    else:
        reference = silhouette_score(vectors.astype(np.float64), labels, metric="cosine")
        assert found == pytest.approx(reference, abs=2e-5)


def test_auto_k_is_the_candidate_with_the_greatest_silhouette(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KMEANS_STARTS", 1)
    vectors = np.random.default_rng(3).normal(size=(150, 6)).astype(np.float32)
    found = cluster_texts(vectors, k="auto")
    each = {k: cluster_texts(vectors, k=k).silhouette or 0.0 for k in AUTO_CANDIDATES if k <= 12}
    assert len(found.clusters) == max(each, key=lambda k: each[k])
    assert found == cluster_texts(vectors)


def test_k_below_1_or_above_the_number_of_distinct_texts_is_rejected() -> None:
    with raises(UsageError, "k", 4):
        cluster_texts(np.eye(3, dtype=np.float32), k=4)
    for k in (0, "many"):
        with raises(UsageError, "k", k):
            cluster_texts(np.eye(3, dtype=np.float32), k=k)  # type: ignore[arg-type]
    assert cluster_texts(np.empty((0, 3), np.float32)) == Clustering((), None)
    twice = np.tile(np.eye(2, dtype=np.float32), (5, 1))
    # What differs by a rounding error only is no other text.
    twice[0, 1] = 1e-7
    with raises(UsageError, "k", 3):
        cluster_texts(twice, k=3)


def test_chunks_of_a_text_are_averaged_by_direction() -> None:
    vectors = np.array([[9, 0], [0, 1], [1, 1], [-1, 0.1], [-5, 0]], np.float32)
    starts = np.array([0, 2, 3, 4])
    means = text_vectors(vectors, starts)
    assert means == pytest.approx(unit(np.array([[1, 1], [1, 1], [-1, 0.1], [-5, 0]])), abs=1e-6)
    found = cluster_texts(vectors, k=2, starts=starts)
    assert members(found) == [(0, 1), (2, 3)]
    assert found.clusters[0].cosines == (1.0, 1.0)


def test_text_whose_chunks_cancel_out_is_clustered_by_the_first() -> None:
    vectors = np.array([[1, 0], [0, 1], [0, -1], [0, 1]], np.float32)
    assert members(cluster_texts(vectors, k=2, starts=np.array([0, 1, 3]))) == [(1, 2), (0,)]
