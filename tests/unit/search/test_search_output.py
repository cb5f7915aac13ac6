"""The command `search`: its options and its output."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import orjson
import pytest
from rich.console import Console

from es_sbert.cli.search import console_requests, hit_list, select_fields
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.search.search_result import Hit, Passage, Reranking, SearchResult
from es_sbert.search.vector_query import SearchMethod, VectorQuery, search_body


def meta(text: str | None) -> VectorFieldMeta:
    return VectorFieldMeta(fingerprint="f", model="m", dimensions=3, index_type="hnsw", text=text)


@pytest.mark.parametrize("engine_type", list(EngineType))
@pytest.mark.parametrize("method", list(SearchMethod))
def test_console_request_is_the_body_with_the_vector_on_one_line(engine_type: EngineType, method: SearchMethod) -> None:
    query = VectorQuery("v", np.array([0.1, 0.2, 0.3], dtype=np.float32), filter={"term": {"q": "vector"}})
    body = search_body(engine_type, method, query)
    first, _, rest = console_requests("docs", [body]).partition("\n")
    assert first == "POST /docs/_search"
    assert orjson.loads(rest) == body
    assert "[0.1,0.2,0.3]" in rest


def shown(result: SearchResult, text: str | None, **options: Any) -> list[str]:
    """The lines on a terminal of 60 columns."""
    out = io.StringIO()
    Console(file=out, width=60).print(hit_list(result, "v", meta(text), **options))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def hit(id: str, source: Json, cosine: float = 0.5, **given: Any) -> Hit:
    return Hit(id=id, cosine=cosine, score=0.75, source=source, index="docs", **given)


def result_of(*sources: Json, **given: Any) -> SearchResult:
    hits = tuple(hit(f"d{n}", source, 0.5 + n / 100, **given) for n, source in enumerate(sources))
    return SearchResult(hits=hits, took_ms=3, method=SearchMethod.KNN)


def test_hit_shows_scores_and_title_above_the_text() -> None:
    source = {"id": "d0", "title": "Storm [red]", "text": "Rain and wind " * 4, "n": 1}
    assert shown(result_of(source, {"text": "Sun."}), "{text}") == [
        " #    cosine  id  title",
        " 1    0.5000  d0  Storm [red]",
        "   Rain and wind Rain and wind Rain and wind Rain and wind",
        " 2    0.5100  d1",
        "   Sun.",
    ]


def test_nearest_passage_is_shown_without_the_title() -> None:
    passage = Passage(0, 12, "Storm. Rain.")
    assert (
        shown(result_of({"title": "Storm", "text": "Rain. Sun."}, passage=passage), "{title}. {text}")[-1] == "   Rain."
    )


def test_selected_fields_are_shown_in_the_given_order() -> None:
    source = {"title": "Storm", "text": "Rain.", "author": {"name": "Ann", "born": 1970}, "tags": ["a", "b"]}
    lines = shown(result_of(source), "{text}", names=["tags", "author", "gone"])
    assert lines == [
        " #    cosine  id",
        " 1    0.5000  d0",
        '   tags: ["a","b"]',
        "   author.name: Ann",
        "   author.born: 1970",
    ]
    assert select_fields(source, ["t*"]) == {"title": "Storm", "text": "Rain.", "tags": ["a", "b"]}
    assert select_fields(source, ["gone"]) == {}


def test_control_characters_do_not_reach_the_terminal() -> None:
    source = {"title": "\x1b[31mred", "text": "a \x1b[2J text\u202e"}
    for options in ({}, {"full": True}, {"names": ["text", "title"]}):
        assert not any(
            character in line for line in shown(result_of(source), "{text}", **options) for character in "\x1b\u202e"
        )


def test_rerank_score_has_a_column() -> None:
    hits = tuple(hit(f"d{n}", {"t": "a word"}, rerank_score=score) for n, score in enumerate([7.25, None]))
    reranking = Reranking(reranker="r", scored=1, truncated=1, without_text=1, took_ms=2)
    result = SearchResult(hits=hits, took_ms=3, method=SearchMethod.KNN, reranking=reranking)
    assert [line.split() for line in shown(result, "{t}")] == [
        ["#", "rerank", "cosine", "id"],
        ["1", "7.2500", "0.5000", "d0"],
        ["a", "word"],
        ["2", "–", "0.5000", "d1"],
        ["a", "word"],
    ]
    assert str(reranking) == "reranked 1 hit in 2 ms by r, 1 of them truncated; 1 hit has no text and follows"
    several = Reranking(reranker="r", scored=1200, truncated=0, without_text=2, took_ms=2)
    assert str(several) == "reranked 1,200 hits in 2 ms by r; 2 hits have no text and follow"
