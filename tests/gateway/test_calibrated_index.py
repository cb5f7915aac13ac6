"""Counts of semantic queries as people see them in Discover, on an index whose minimum cosine was measured.

The set-up is that of docs/kibana.md: a load, `es-sbert index calibrate --save`, a gateway without options.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from es_sbert.engines.rest import Json
from es_sbert.index.mapping import vector_fields
from es_sbert.search.semantic_index import SemanticIndex
from tests.conftest import delete_index
from tests.engine.ingest_support import open_engine
from tests.gateway import patient
from tests.gateway.articles import ARTICLES, MEANT, QUERY, articles, cli, ingest
from tests.gateway.bed import Bed, ids
from tests.gateway.serving import gateway

pytestmark = pytest.mark.one_engine

COUNT = 48
# No word of an article, and near to none.
NONSENSE = "qwxz vbnmlk prrtgh"


@pytest.fixture(scope="module")
def bed(engine_url: str) -> Iterator[Bed]:
    index = f"test-calibrated-{uuid.uuid4().hex[:12]}"
    try:
        ingest(engine_url, index, ARTICLES)
        cli("index", "calibrate", index, "--save", "--url", engine_url)
        with gateway(engine_url) as url, patient.client(engine_url) as engine, patient.client(url) as through:
            yield Bed(engine, through, index)
    finally:
        delete_index(engine_url, index)


def discover(bed: Bed, *filters: Json, must_not: tuple[Json, ...] = (), **more: Any) -> Json:
    query = {"bool": {"must": [], "filter": list(filters), "should": [], "must_not": list(must_not)}}
    return bed.search({"size": 500, "query": query, "track_total_hits": True} | more)


def kql(text: str) -> Json:
    return {"bool": {"should": [{"match_phrase": {"semantic": text}}], "minimum_should_match": 1}}


def total(answer: Json) -> int:
    return int(answer["hits"]["total"]["value"])


def test_query_matches_relevant_documents_only_and_its_negation_all_others(bed: Bed) -> None:
    with open_engine(bed.url) as engine:
        state = engine.get_index(bed.index)
        assert state is not None
        least = vector_fields(state.mappings, bed.index)["embedding"].min_cosine
    assert least is not None
    found = discover(bed, kql(QUERY))
    assert found["hits"]["hits"][0]["_source"]["title"] == MEANT
    assert 0 < total(found) == len(ids(found)) < COUNT / 2
    assert min(hit["_score"] for hit in found["hits"]["hits"]) >= (1 + least) / 2 - 1e-5
    others = {article["id"] for article in articles()} - set(ids(found))
    assert set(ids(discover(bed, {"bool": {"must_not": kql(QUERY)}}))) == others
    # A filter of the page that is inverted.
    assert total(discover(bed, must_not=({"match_phrase": {"semantic": QUERY}},))) == len(others)


def test_nonsense_has_no_hits_in_hybrid_search_through_the_gateway(bed: Bed) -> None:
    words = {"query": NONSENSE, "fields": ["title", "text"]}
    both = [{"match": {"text": NONSENSE}}, {"match": {"semantic": NONSENSE}}]
    queries: list[Json] = [
        {"match": {"text": NONSENSE}},
        {"match": {"text": {"query": NONSENSE, "operator": "and"}}},
        {"multi_match": words},
        {"bool": {"should": both}},
    ]
    if bed.is_opensearch:
        queries.append({"hybrid": {"queries": both}})  # OpenSearch's own
    for query in queries:
        assert ids(bed.search({"query": query}, mode="hybrid")) == [], query
    # A text that fits has hits without its words, and the request's own minimum wins.
    near = bed.search({"query": {"match": {"text": QUERY}}}, mode="hybrid")
    assert near["hits"]["hits"][0]["_source"]["title"] == MEANT
    low = {"match": {"semantic": {"query": NONSENSE, "min_cosine": -1}}}
    every = bed.search({"query": {"bool": {"should": [both[0], low]}}, "size": 50}, mode="hybrid")
    assert len(ids(every)) == COUNT


def test_nonsense_has_no_hits_in_hybrid_search_of_the_library(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    with SemanticIndex(bed.index, bed.url) as index:
        assert index.hybrid(NONSENSE).hits == ()
        near = index.hybrid(QUERY)
        assert (near.hits[0].source["title"], near.hits[0].lexical) == (MEANT, None)
        # Keyword hits stay at any cosine, and the caller's own minimum wins.
        by_words = index.hybrid(f"{NONSENSE} station", min_cosine=0.99)
        assert by_words.hits
        assert all(hit.lexical is not None for hit in by_words)
        assert len(index.hybrid(NONSENSE, k=5, min_cosine=-1)) == 5
    cli("search", "--index", bed.index, NONSENSE, "--hybrid", "--url", bed.url)
    assert "No minimum cosine" not in capsys.readouterr().err
