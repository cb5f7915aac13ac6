"""Groups of near-duplicates are the connected components of the brute-force graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics.pairwise import cosine_similarity

import es_sbert.analysis.duplicates as module
from es_sbert.analysis import duplicate_groups


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 60),
    st.sampled_from([0.3, 0.8, 0.95]),
    st.sampled_from([3, 2048]),
    st.sampled_from([5, 4 << 20]),
)
def test_groups_equal_single_linkage(seed: int, count: int, threshold: float, block: int, held: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MAX_PENDING_PAIRS", held)
        found = duplicate_groups(vectors, threshold, block=block)
    cosines = np.clip(cosine_similarity(vectors.astype(np.float64)), -1, 1).round(5)
    reference = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="single", distance_threshold=1 - threshold + 1e-9
    ).fit(1 - cosines)
    groups = [tuple(np.flatnonzero(reference.labels_ == label).tolist()) for label in set(reference.labels_)]
    several = [group for group in groups if len(group) > 1]
    assert [group.members for group in found] == sorted(several, key=lambda group: (-len(group), group))
    for group in found:
        assert group.kept == group.members[0]
        assert group.cosines == pytest.approx([cosines[group.kept, member] for member in group.members], abs=1e-9)


def test_chain_is_one_group_with_cosines_to_the_kept_text() -> None:
    angles = np.radians([0, 10, 20, 90])
    vectors = np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
    [group] = duplicate_groups(vectors, 0.98)
    assert group.members == (0, 1, 2)
    assert group.cosines == (1.0, 0.98481, 0.93969)


def test_chunked_texts_are_compared_by_their_nearest_chunks() -> None:
    vectors = np.array([[1, 0], [0, 1], [0.6, 0.8], [-1, 0], [0, 2]], np.float32)
    [group] = duplicate_groups(vectors, 0.99, starts=np.array([0, 2, 3]))
    assert (group.members, group.cosines) == ((0, 2), (1.0, 1.0))
