from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.protocol import Flavour
from es_sbert.index.meta import PassageRules, VectorFieldMeta
from es_sbert.search.results import Hit, Passage, read_answer
from es_sbert.search.scores import Method, cosine_of, score_of


def meta(text: str | None, passages: PassageRules | None = None) -> VectorFieldMeta:
    return VectorFieldMeta(
        fingerprint="f", model="m", dimensions=3, index_type="hnsw", text=text, passages=passages
    )  # fmt: skip


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


def test_an_answer_is_read() -> None:
    answer = {
        "took": 7,
        "hits": {"hits": [{"_index": "docs-1", "_id": "a", "_score": 0.75, "_source": {"t": 1}},
                          {"_index": "docs-1", "_id": "b", "_score": 0.5}]},
    }  # fmt: skip
    result = read_answer(answer, Flavour.OPENSEARCH, Method.KNN, "embedding", meta("{t}"))
    assert list(result) == [Hit("a", 0.5, 0.75, {"t": 1}, "docs-1"), Hit("b", 0.0, 0.5, {}, "docs-1")]
    assert (len(result), result.took_ms, result.method) == (2, 7, Method.KNN)
    assert result.hits[0].as_json() == {"id": "a", "cosine": 0.5, "score": 0.75, "source": {"t": 1}}


@pytest.mark.parametrize(
    ("template", "source", "text"),
    [
        ("{title}. {body}", {"title": "Storm", "body": "Rain and wind."}, "Rain"),
        ("{body}", {"title": "Storm"}, None),  # the search asked for other fields alone
        (None, {"title": "Storm"}, None),
    ],
)
@pytest.mark.parametrize("around", [False, True])
def test_the_nearest_passage_is_cut_out_of_the_text(
    template: str | None, source: dict[str, str], text: str | None, around: bool
) -> None:
    place = {"start": 7, "end": 11}
    inner = {"hits": {"hits": [{"_source": {"embedding": place} if around else place}]}}
    hit = {"_index": "i", "_id": "a", "_score": 0.75, "_source": source, "inner_hits": {"embedding": inner}}
    field = meta(template, PassageRules(tokens=64, overlap=8))
    result = read_answer({"took": 1, "hits": {"hits": [hit]}}, Flavour.ELASTICSEARCH, Method.KNN, "embedding", field)
    assert result.hits[0].passage == Passage(7, 11, text)
    assert result.hits[0].as_json()["passage"] == {"start": 7, "end": 11, "text": text}
