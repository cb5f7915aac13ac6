from __future__ import annotations

import numpy as np
import pytest

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.index.mapping import ChunkRules, VectorFieldMeta
from es_sbert.index.vector_field import FieldOutcome, VectorField
from es_sbert.search.hybrid_search import read_hybrid
from es_sbert.search.search_request import search_request
from es_sbert.search.search_result import Hit, HybridResult, Passage, SearchResult, read_partial
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import SearchMethod


def meta(text: str | None, passages: ChunkRules | None = None) -> VectorFieldMeta:
    return VectorFieldMeta(fingerprint="f", model="m", dimensions=3, index_type="hnsw", text=text, passages=passages)


def scope(field: VectorFieldMeta) -> SearchScope:
    return SearchScope((VectorField("docs-1", "v", field, FieldOutcome.PRESENT),))


def read(raw: Json, field: VectorFieldMeta, engine_type: EngineType = EngineType.ELASTICSEARCH) -> SearchResult:
    return search_request(engine_type, scope(field), np.ones(3), 10, {}).read([raw])


def fuse(answers: dict[str, Json], field: VectorFieldMeta, **options: int) -> HybridResult:
    weights = {"v": 1.0, "lexical": 1.0}
    searched = scope(field)
    return read_hybrid(answers, EngineType.ELASTICSEARCH, SearchMethod.KNN, searched, weights=weights, **options)


def found(name: str, cosine: float = 0.123456789, score: float = 0.6, source: Json | None = None) -> Hit:
    return Hit(id=name, cosine=cosine, score=score, source=source or {}, index="docs-1")


def answer(*hits: Json) -> Json:
    return {"took": 7, "hits": {"hits": [{"_index": "docs-1", **hit} for hit in hits]}}


def test_response_is_parsed() -> None:
    raw = answer({"_id": "a", "_score": 0.75, "_source": {"t": 1}}, {"_id": "b", "_score": 0.5})
    raw["hits"]["total"] = {"value": 10_000, "relation": "gte"}
    result = read(raw, meta("{t}"), EngineType.OPENSEARCH)
    assert list(result) == [found("a", 0.5, 0.75, {"t": 1}), found("b", 0.0, 0.5)]
    assert (len(result), result.took_ms, result.method, result.total) == (2, 7, SearchMethod.KNN, None)
    assert result.hits[0].as_json() == {"id": "a", "index": "docs-1", "cosine": 0.5, "score": 0.75, "source": {"t": 1}}


def test_fused_hits_have_ranks_and_both_scores() -> None:
    near = answer({"_id": "a", "_score": 0.75, "_source": {"t": 1}}, {"_id": "b", "_score": 0.5})
    words = answer({"_id": "b", "_score": 3.0, "highlight": {"t": ["x"]}}, {"_id": "c", "_score": 2.0})
    words["hits"]["total"] = {"value": 9, "relation": "eq"}
    exact = answer({"_id": "d", "_score": 13.0, "matched_queries": ["lexical"]})
    result = fuse({"v": near, "lexical": words, "exact": exact}, meta(None), depth=2, k=3)
    assert [(hit.id, hit.match) for hit in result] == [("d", "phrase"), ("b", None), ("a", None)]
    exact_hit, first, second = result.hits
    assert (exact_hit.score, exact_hit.ranks) == (pytest.approx(4 + 61 / 63), {})
    assert (first.cosine, first.lexical, first.ranks) == (0.0, 3.0, {"v": 2, "lexical": 1})
    assert first.score == pytest.approx((1 / 62 + 1 / 61) / (2 / 61))
    assert first.highlight == {"t": ["x"]}
    assert (second.cosine, second.lexical, second.ranks) == (0.5, None, {"v": 1})
    assert second.as_json()["ranks"] == {"v": 1}
    assert exact_hit.as_json()["match"] == "phrase"
    assert result.total == 10, "9 documents match the words, d among them, and a does not"


def test_fused_hit_keeps_its_nearest_chunk() -> None:
    hit = {"_id": "a", "_score": 0.75, "_source": {"t": "Rain and wind"}}
    near = answer(hit | {"inner_hits": {"v": {"hits": {"hits": [{"_source": {"start": 0, "end": 4}}]}}}})
    passages = meta("{t}", ChunkRules(tokens=64, overlap=8))
    result = fuse({"v": near, "lexical": answer(hit)}, passages, depth=1, k=1)
    assert (result.hits[0].cosine, result.hits[0].passage) == (0.5, Passage(0, 4, "Rain"))


@pytest.mark.parametrize(
    ("template", "source", "text"),
    [
        ("{title}. {body}", {"title": "Storm", "body": "Rain and wind."}, "Rain"),
        ("{body}", {"title": "Storm"}, None),  # the search asked for other fields alone
        (None, {"title": "Storm"}, None),
    ],
)
@pytest.mark.parametrize("around", [False, True])
def test_nearest_chunk_is_extracted_from_the_text(
    template: str | None, source: dict[str, str], text: str | None, around: bool
) -> None:
    place = {"start": 7, "end": 11}
    inner = {"hits": {"hits": [{"_source": {"v": place} if around else place}]}}
    hit = {"_id": "a", "_score": 0.75, "_source": source, "inner_hits": {"v": inner}}
    field = meta(template, ChunkRules(tokens=64, overlap=8))
    result = read(answer(hit), field)
    assert result.hits[0].passage == Passage(7, 11, text)
    assert result.hits[0].as_json()["passage"] == {"start": 7, "end": 11, "text": text}


TWO = {"total": 2, "successful": 2, "failed": 0}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"_shards": TWO, "timed_out": False}, "None"),
        ({"_shards": TWO, "timed_out": True}, "0 of 2 shards failed (timed out)"),
        (
            {"_shards": {"total": 9, "failed": 5, "failures": [{"shard": n} for n in range(5)]}, "timed_out": True},
            "9 of 9 shards failed (shard 0: no reason given; shard 1: no reason given; shard 2: no reason given; "
            "2 more; timed out)",
        ),
        # A shard without an active copy, which OpenSearch does not count as failed.
        ({"_shards": {"total": 2, "successful": 1, "failed": 0}}, "1 of 2 shards failed (no active copy)"),
    ],
)
def test_partial_result_says_what_is_missing(answer: Json, said: str) -> None:
    assert str(read_partial([answer])) == said
