"""Stored vectors against the model's: cosines and the verdict."""

from __future__ import annotations

import numpy as np
import pytest

from es_sbert.index.adopt_sample import ComparedDocument, SampleCheck
from es_sbert.index.document_vectors import row_cosines


def check(
    *cosines: float, share: float = 0.99, min_cosine: float = 0.999, truncated: tuple[int, ...] = ()
) -> SampleCheck:
    documents = [ComparedDocument((f"d{row}", None), cosine, row in truncated) for row, cosine in enumerate(cosines)]
    return SampleCheck(documents, min_cosine, share)


def test_cosine_is_independent_of_vector_length() -> None:
    random = np.random.default_rng(0)
    one, two = random.normal(size=(2, 50, 16)).astype(np.float32)
    expected = np.sum(one.astype(float) * two, axis=1) / np.sqrt(
        np.sum(one.astype(float) ** 2, axis=1) * np.sum(two.astype(float) ** 2, axis=1)
    )
    np.testing.assert_allclose(row_cosines(one, two), expected, atol=1e-12)
    np.testing.assert_allclose(row_cosines(one * 1e-3, two * 1e6), expected, atol=1e-6)
    assert row_cosines(one, one).min() > 1 - 1e-12
    assert row_cosines(one, one).max() <= 1


@pytest.mark.parametrize("broken", [0.0, np.nan, np.inf])
def test_zero_or_non_finite_vector_has_cosine_zero(broken: float) -> None:
    rows = np.full((1, 4), broken, dtype=np.float32)
    assert row_cosines(rows, np.ones((1, 4), dtype=np.float32)).tolist() == [0.0]
    assert row_cosines(rows, rows).tolist() == [0.0]


def test_cosine_equal_to_minimum_matches() -> None:
    found = check(0.999, 0.9989, 1.0)
    assert [one.key[0] for one in found.failing] == ["d1"]
    assert found.matching_share == pytest.approx(2 / 3)
    assert (found.lowest, found.median) == (0.9989, 0.999)


@pytest.mark.parametrize(
    ("failing", "share", "accepted"),
    [(0, 1.0, True), (1, 1.0, False), (1, 0.99, True), (2, 0.99, False), (50, 0.5, True), (51, 0.5, False)],
)
def test_acceptance_depends_on_matching_share(failing: int, share: float, accepted: bool) -> None:
    assert check(*[0.2] * failing, *[1.0] * (100 - failing), share=share).is_accepted is accepted


def test_failing_documents_are_sorted_by_cosine() -> None:
    found = check(0.5, 1.0, -0.2, 0.7)
    assert [one.key[0] for one in found.failing] == ["d2", "d0", "d3"]


def test_fails_only_where_truncated() -> None:
    assert check(0.9, 1.0, 1.0, truncated=(0,)).fails_only_where_truncated
    assert not check(0.9, 0.9, 1.0, truncated=(0,)).fails_only_where_truncated
    assert not check(1.0, 1.0, truncated=(0,)).fails_only_where_truncated
    # Where every text is long, nothing says that the length is the reason.
    assert not check(0.9, 0.9, truncated=(0, 1)).fails_only_where_truncated


def test_json_includes_routing_only_if_set() -> None:
    assert ComparedDocument(("a", "r"), 0.12345678, False).as_json() == {
        "id": "a",
        "routing": "r",
        "cosine": 0.123457,
        "truncated": False,
    }
    assert "routing" not in ComparedDocument(("a", None), 1.0, False).as_json()
