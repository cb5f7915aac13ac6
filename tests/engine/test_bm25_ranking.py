"""Lexical rankings of many queries, as single searches give them."""

from __future__ import annotations

from es_sbert.engines.engine import Engine
from es_sbert.index.document_sample import DocumentSelection
from es_sbert.training.adapt import rank_by_bm25
from tests.engine.ingest_support import put

WORDS = ["river", "storm", "bread", "engine", "winter"]


def test_rankings_equal_those_of_single_searches(engine: Engine, index_name: str) -> None:
    texts = [" ".join(WORDS[: 1 + n % 5] * (1 + n // 20)) for n in range(60)]
    put(
        engine,
        index_name,
        ({"id": f"d{n}", "body": text, "title": "storm", "odd": n % 2 == 1} for n, text in enumerate(texts)),
    )
    engine.refresh(index_name)
    rows = {f"d{number}": number for number in range(50)}  # the last ten are not known
    queries = [f"{word} {number}" for number in range(30) for word in ("bread", "winter storm")] + ["nothing"]
    selection = DocumentSelection(index_name, {"term": {"odd": True}})
    ranking = rank_by_bm25(engine, selection, queries, ["body"], rows, depth=30)
    assert ranking.shape == (61, 30)
    for query, found in zip(queries[:2], ranking[:2], strict=True):
        body = {
            "query": {"bool": {"must": [{"match": {"body": query}}], "filter": [{"term": {"odd": True}}]}},
            "size": 30,
        }
        hits = [hit["_id"] for hit in engine.search(index_name, body)["hits"]["hits"]]
        assert [f"d{row}" for row in found if row >= 0] == [hit for hit in hits if hit in rows]
        assert len(hits) > 8
    assert (ranking[0] == ranking[58]).all()
    assert (ranking[-1] == -1).all()
