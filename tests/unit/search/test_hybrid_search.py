from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.search.hybrid_search import (
    EXACT_HITS,
    MAX_MATCHES,
    FusedDocument,
    MatchType,
    exact_match_query,
    fuse_rankings,
    literal_parts,
    read_exact_matches,
)

DEPTH = 15
rankings = st.dictionaries(
    st.sampled_from(["lexical", "a", "b"]), st.lists(st.integers(0, 20), unique=True, max_size=DEPTH), min_size=1
)
matches = st.dictionaries(st.integers(0, 25), st.sampled_from(MatchType), max_size=4)


def test_fusion_sums_reciprocal_ranks_and_a_missing_document_follows_the_last() -> None:
    weights = {"near": 3.0, "words": 1.0}
    fused = fuse_rankings({"near": ["a", "b"], "words": ["c", "b"]}, depth=2, weights=weights, matches={})
    highest = 4 / 61
    assert fused == [
        FusedDocument("a", (3 / 61 + 1 / 63) / highest, {"near": 1}),
        FusedDocument("b", (3 / 62 + 1 / 62) / highest, {"near": 2, "words": 2}),
        FusedDocument("c", (3 / 63 + 1 / 61) / highest, {"words": 1}),
    ]


@given(rankings, matches)
def test_exact_matches_are_first_and_every_document_is_fused_once(
    given: dict[str, list[int]], exact: dict[int, MatchType]
) -> None:
    fused = fuse_rankings(given, depth=DEPTH, weights=dict.fromkeys(given, 2.0), matches=exact)
    everything = {key for ranking in given.values() for key in ranking} | exact.keys()
    assert sorted(document.key for document in fused) == sorted(everything)
    added = [exact[document.key].added_score if document.key in exact else 0 for document in fused]
    assert added == sorted(added, reverse=True)
    for document, addition in zip(fused, added, strict=True):
        assert 0 < document.score - addition <= 1 + 1e-9
        assert document.match is exact.get(document.key)
        assert {name: given[name][rank - 1] for name, rank in document.ranks.items()} == dict.fromkeys(
            document.ranks, document.key
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("where is order ORD-48213?", ["ORD-48213"]),
        ("error 0x80070057 in E_FAIL", ["0x80070057", "E_FAIL"]),
        ('"to be or not" by whom, "or else"', ["to be or not", "or else"]),
        ("NullPointerException for someone@example.com", ["NullPointerException", "someone@example.com"]),
        ("storm damage 2021 in the 1960s", []),
        ('an inch is 2.54 cm, 24" wide', []),
    ],
)
def test_literal_parts_are_quoted_phrases_numbers_and_codes(text: str, expected: list[str]) -> None:
    assert literal_parts(text) == expected


def test_a_long_text_has_no_exact_matches() -> None:
    assert exact_match_query("word " * 16, lambda parameters: {"multi_match": parameters}) is not None
    assert exact_match_query("word " * 17, lambda parameters: {"multi_match": parameters}) is None


@given(st.lists(st.sampled_from([13, 15, 5, 7, 2, 3, 1]), max_size=40))
def test_matches_count_only_if_few_documents_have_them(all_scores: list[int]) -> None:
    """Against all documents that match, of which the search returns the first."""
    everything = dict(enumerate(sorted(all_scores, reverse=True)))
    found = read_exact_matches([(key, float(score)) for key, score in everything.items()][:EXACT_HITS])
    for kind in MatchType:
        documents = {key for key, score in everything.items() if score & kind.value}
        if len(documents) > MAX_MATCHES:
            assert kind not in found.values()
    for key, kind in found.items():
        assert everything[key] & kind.value
    if len(everything) <= MAX_MATCHES:
        best = {key: next(kind for kind in MatchType if score & kind.value) for key, score in everything.items()}
        assert found == best
