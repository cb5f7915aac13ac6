from __future__ import annotations

import io

import numpy as np
import orjson
import pytest
from rich.console import Console

from es_sbert.engines.protocol import Flavour
from es_sbert.index.meta import VectorFieldMeta
from es_sbert.search.queries import search_body
from es_sbert.search.results import Hit, Reranking, SearchResult
from es_sbert.search.scores import Method
from es_sbert.search.show import console_request, hit_table, snippet
from es_sbert.search.vector_query import VectorQuery


def meta(text: str | None) -> VectorFieldMeta:
    return VectorFieldMeta(fingerprint="f", model="m", dimensions=3, index_type="hnsw", text=text)


def test_snippet_begins_with_the_embedded_fields() -> None:
    source = {"id": "1", "body": "Rain\n and  wind.", "title": "Storm", "embedding_meta": {"text_hash": "x"}, "n": 3}
    assert snippet(source, "embedding", meta("{title}. {body}")) == "Storm · Rain and wind. · 1"
    assert snippet(source, "embedding", meta(None)) == "1 · Rain and wind. · Storm"


def test_snippet_is_short_and_harmless_to_a_terminal() -> None:
    line = snippet({"t": "\x1b[31mred\x1b[0m\u202e" + "x" * 1000}, "v", meta("{t}"), length=20)
    assert line == "[31mred[0mxxxxxxxxx…"


def test_snippet_of_a_document_without_texts() -> None:
    assert snippet({"n": 1, "v": [1.0]}, "v", meta("{gone}")) == ""


@pytest.mark.parametrize("flavour", list(Flavour))
@pytest.mark.parametrize("method", list(Method))
def test_console_request_is_the_same_body_with_the_vector_on_one_line(flavour: Flavour, method: Method) -> None:
    query = VectorQuery("v", np.array([0.1, 0.2, 0.3], dtype=np.float32), filter={"term": {"q": "vector"}})
    body = search_body(flavour, method, query)
    first, _, rest = console_request("docs", body).partition("\n")
    assert first == "POST /docs/_search"
    assert orjson.loads(rest) == body
    assert "[0.1,0.2,0.3]" in rest


def test_long_texts_do_not_squeeze_the_other_columns_out_of_sight() -> None:
    hits = [Hit(f"module.function_{n}", 0.5 + n / 100, 0.75, {"t": "word " * 200}, "docs") for n in range(12)]
    out = io.StringIO()
    table = hit_table(SearchResult(hits=tuple(hits), took_ms=3, method=Method.KNN), "v", meta("{t}"))
    Console(file=out, width=80).print(table)
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert rows[0] == ["#", "cosine", "id", "text"]
    assert [row[:4] for row in rows[1:]] == [
        [str(rank), f"{hit.cosine:.4f}", hit.id, "word"] for rank, hit in enumerate(hits, 1)
    ]


def test_the_score_of_a_cross_encoder_has_a_column() -> None:
    hits = tuple(
        Hit(f"d{n}", 0.5, 0.75, {"t": "word"}, "docs", rerank_score=score) for n, score in enumerate([7.25, None])
    )
    reranking = Reranking(reranker="r", scored=1, truncated=1, without_text=1, took_ms=2)
    result = SearchResult(hits=hits, took_ms=3, method=Method.KNN, reranking=reranking)
    out = io.StringIO()
    Console(file=out, width=80).print(hit_table(result, "v", meta("{t}")))
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["#", "rerank", "cosine", "id", "text"],
        ["1", "7.2500", "0.5000", "d0", "word"],
        ["2", "–", "0.5000", "d1", "word"],
    ]
    assert str(reranking) == "reranked 1 hit in 2 ms by r, 1 of them cut; 1 hit has no text and follows"
    several = Reranking(reranker="r", scored=1200, truncated=0, without_text=2, took_ms=2)
    assert str(several) == "reranked 1,200 hits in 2 ms by r; 2 hits have no text and follow"
