"""Metrics of rankings: by hand, and against ir-measures, which runs trec_eval."""

from __future__ import annotations

import ir_measures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import AP, RR, Judged, P, R, Success, nDCG

from es_sbert.evaluation.ranking import METRICS, measure_ranking


def by_score(scores: dict[str, float]) -> list[str]:
    """A ranking as trec_eval makes it: of equal scores, the larger id first."""
    return sorted(scores, key=lambda document: (scores[document], document), reverse=True)


_DOCUMENTS = [f"d{number}" for number in range(14)]
_SCORES = st.dictionaries(st.sampled_from(_DOCUMENTS), st.integers(-3, 3).map(float), min_size=1)
_GRADES = st.dictionaries(st.sampled_from([*_DOCUMENTS, "missing"]), st.integers(-1, 3), min_size=1)


@settings(deadline=None, max_examples=200)
@given(_SCORES, _GRADES)
def test_equals_trec_eval_for_ties_grades_and_holes(scores: dict[str, float], grades: dict[str, int]) -> None:
    if max(grades.values()) <= 0:
        grades = {**grades, "d1": 1}
    measures = {
        "ndcg@10": nDCG @ 10,
        "map@100": AP @ 100,
        "precision@10": P @ 10,
        "recall@10": R @ 10,
        "recall@100": R @ 100,
        "success@1": Success @ 1,
    }
    expected = ir_measures.calc_aggregate(list(measures.values()), {"q": grades}, {"q": scores})
    ranking = by_score(scores)
    result = measure_ranking(ranking, grades)
    for name, measure in measures.items():
        assert result[name] == pytest.approx(100 * expected[measure], abs=1e-4), name
    # trec_eval cuts no reciprocal rank, and has no share of judged hits, which other backends order differently.
    ordered = {"q": {document: -float(place) for place, document in enumerate(ranking)}}
    more = ir_measures.calc_aggregate([RR @ 10, Judged @ 10], {"q": grades}, ordered)
    assert result["mrr@10"] == pytest.approx(100 * more[RR @ 10])
    assert result["unjudged@10"] == pytest.approx(100 - 100 * more[Judged @ 10])
    assert tuple(result) == METRICS
