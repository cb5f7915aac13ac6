from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.protocol import Flavour
from es_sbert.search.scores import Method, cosine_of, score_of


@given(st.floats(-1, 1), st.sampled_from(Flavour), st.sampled_from(Method))
def test_scores_and_cosines_are_each_others_inverse(cosine: float, flavour: Flavour, method: Method) -> None:
    assert cosine_of(score_of(cosine, flavour, method), flavour, method) == pytest.approx(cosine, abs=1e-12)


@pytest.mark.parametrize(
    ("flavour", "method", "score", "cosine"),
    [
        (Flavour.ELASTICSEARCH, Method.KNN, 0.75, 0.5),
        (Flavour.ELASTICSEARCH, Method.EXACT, 1.5, 0.5),
        (Flavour.OPENSEARCH, Method.KNN, 0.75, 0.5),
        (Flavour.OPENSEARCH, Method.EXACT, 0.75, 0.5),
        (Flavour.ELASTICSEARCH, Method.KNN, 1.0000001, 1.0),
        (Flavour.ELASTICSEARCH, Method.EXACT, -1e-7, -1.0),
    ],
)
def test_known_scores(flavour: Flavour, method: Method, score: float, cosine: float) -> None:
    assert cosine_of(score, flavour, method) == cosine
