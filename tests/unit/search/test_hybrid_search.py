from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import UsageError
from es_sbert.search.hybrid_search import FusedDocument, reciprocal_rank_fusion

rankings = st.dictionaries(
    st.sampled_from(["lexical", "a", "b"]), st.lists(st.integers(0, 20), unique=True, max_size=15), min_size=1
)


def test_reciprocal_rank_fusion_sums_reciprocal_ranks() -> None:
    fused = reciprocal_rank_fusion({"near": ["a", "b"], "words": ["b", "c"]})
    assert fused == [
        FusedDocument("b", 1 / 62 + 1 / 61, {"near": 2, "words": 1}),
        FusedDocument("a", 1 / 61, {"near": 1}),
        FusedDocument("c", 1 / 62, {"words": 2}),
    ]


@given(rankings, st.integers(1, 200))
def test_every_document_is_fused_once_with_its_ranks(given: dict[str, list[int]], constant: int) -> None:
    fused = reciprocal_rank_fusion(given, constant=constant)
    assert sorted(document.key for document in fused) == sorted({key for ranking in given.values() for key in ranking})
    assert [document.score for document in fused] == sorted((document.score for document in fused), reverse=True)
    for document in fused:
        assert {name: given[name][rank - 1] for name, rank in document.ranks.items()} == dict.fromkeys(
            document.ranks, document.key
        )
        assert document.score == pytest.approx(sum(1 / (constant + rank) for rank in document.ranks.values()))


@given(st.lists(st.integers(), unique=True, max_size=20), st.floats(0.01, 100))
def test_single_ranking_keeps_its_order(ranking: list[int], weight: float) -> None:
    assert [document.key for document in reciprocal_rank_fusion({"a": ranking}, weights={"a": weight})] == ranking


@given(rankings, st.floats(0.01, 100))
def test_only_relative_weights_matter(given: dict[str, list[int]], factor: float) -> None:
    weights = {"lexical": 1.0, "a": 2.0, "b": 4.0}
    scaled = {name: weight * factor for name, weight in weights.items()}
    first, second = (reciprocal_rank_fusion(given, weights=own) for own in (weights, scaled))
    assert [document.score * factor for document in first] == pytest.approx([document.score for document in second])


@pytest.mark.parametrize(
    ("constant", "weights"), [(0, {}), (float("nan"), {}), (60, {"a": 0.0}), (60, {"a": float("nan")})]
)
def test_invalid_constant_and_weights_are_rejected(constant: Any, weights: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="the rank constant must be|the weight of a must be"):
        reciprocal_rank_fusion({"a": [1]}, constant=constant, weights=weights)
