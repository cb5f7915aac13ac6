from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.engine_info import EngineType
from es_sbert.search.vector_query import SearchMethod, cosine_from_score, score_from_cosine


@given(st.floats(-1, 1), st.sampled_from(EngineType), st.sampled_from(SearchMethod))
def test_score_and_cosine_are_inverse(cosine: float, engine_type: EngineType, method: SearchMethod) -> None:
    assert cosine_from_score(score_from_cosine(cosine, engine_type, method), engine_type, method) == pytest.approx(
        cosine, abs=1e-12
    )


@pytest.mark.parametrize(
    ("engine_type", "method", "score", "cosine"),
    [
        (EngineType.ELASTICSEARCH, SearchMethod.KNN, 0.75, 0.5),
        (EngineType.ELASTICSEARCH, SearchMethod.EXACT, 1.5, 0.5),
        (EngineType.OPENSEARCH, SearchMethod.KNN, 0.75, 0.5),
        (EngineType.OPENSEARCH, SearchMethod.EXACT, 0.75, 0.5),
        (EngineType.ELASTICSEARCH, SearchMethod.KNN, 1.0000001, 1.0),
        (EngineType.ELASTICSEARCH, SearchMethod.EXACT, -1e-7, -1.0),
    ],
)
def test_known_scores(engine_type: EngineType, method: SearchMethod, score: float, cosine: float) -> None:
    assert cosine_from_score(score, engine_type, method) == cosine
