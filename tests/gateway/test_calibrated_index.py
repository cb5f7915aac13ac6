"""Counts of semantic queries as people see them in Discover, on an index whose minimum cosine was measured.

The set-up is that of docs/kibana.md: a load, `es-sbert index calibrate --save`, a gateway without options.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from es_sbert.cli.main import main
from es_sbert.config import EngineSettings
from es_sbert.engines.rest import Json
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.settings import GatewaySettings, SemanticSettings
from es_sbert.index.mapping import vector_fields
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.search.semantic_index import SemanticIndex
from tests.conftest import delete_index
from tests.engine.ingest_support import open_engine
from tests.gateway import patient
from tests.gateway.articles import MEANT, QUERY, articles, ingest_articles
from tests.gateway.serving import served

pytestmark = pytest.mark.one_engine

COUNT = 48
# No word of an article, and near to none.
NONSENSE = "qwxz vbnmlk prrtgh"


@dataclass(frozen=True)
class Calibrated:
    """An index of the articles, and a gateway before it.

    Attributes:
        engine, gateway: Addresses.
        index: Its name.
        min_cosine: What was measured for it.
    """

    engine: str
    gateway: str
    index: str
    min_cosine: float

    def discover(self, *filters: Json, must_not: tuple[Json, ...] = (), gateway: str = "", **more: Any) -> Json:
        """A search of the query bar, with its filters."""
        query = {"bool": {"must": [], "filter": list(filters), "should": [], "must_not": list(must_not)}}
        body = {"size": 500, "query": query, "track_total_hits": True} | more
        answer = patient.post(f"{gateway or self.gateway}/{self.index}/_search", json=body)
        assert answer.status_code == 200, answer.text
        return orjson.loads(answer.content)  # type: ignore[no-any-return]


def calibrate(url: str, index: str) -> None:
    """As docs/kibana.md says."""
    with pytest.raises(SystemExit) as ended:
        main(["index", "calibrate", index, "--save", "--url", url])
    assert ended.value.code == 0


@pytest.fixture(scope="module")
def calibrated(engine_url: str) -> Iterator[Calibrated]:
    index = f"test-calibrated-{uuid.uuid4().hex[:12]}"
    try:
        ingest_articles(engine_url, index)
        calibrate(engine_url, index)
        min_cosine = saved(engine_url, index)
        assert min_cosine is not None
        with served(Gateway(GatewaySettings(upstream=EngineSettings(url=engine_url)))) as gateway:
            yield Calibrated(engine_url, gateway, index, min_cosine)
    finally:
        delete_index(engine_url, index)


def saved(url: str, index: str) -> float | None:
    with open_engine(url) as engine:
        state = engine.get_index(index)
        assert state is not None
        return vector_fields(state.mappings, index)["embedding"].min_cosine


def kql(text: str) -> Json:
    return {"bool": {"should": [{"match_phrase": {"semantic": text}}], "minimum_should_match": 1}}


def total(answer: Json) -> int:
    return int(answer["hits"]["total"]["value"])


def test_all_documents_are_near_without_the_value(calibrated: Calibrated) -> None:
    """The k nearest of a small index are all of its documents."""
    settings = GatewaySettings(
        upstream=EngineSettings(url=calibrated.engine), semantic=SemanticSettings(min_cosine=-1.0)
    )
    with served(Gateway(settings)) as gateway:
        assert total(calibrated.discover(kql(QUERY), gateway=gateway)) == COUNT


def test_query_matches_relevant_documents_only(calibrated: Calibrated) -> None:
    found = calibrated.discover(kql(QUERY))
    assert found["hits"]["hits"][0]["_source"]["title"] == MEANT
    assert 0 < total(found) == len(found["hits"]["hits"]) < COUNT / 2
    assert min(hit["_score"] for hit in found["hits"]["hits"]) >= (1 + calibrated.min_cosine) / 2 - 1e-5


def hybrid_search(calibrated: Calibrated, body: Json, index: str | None = None) -> Json:
    """A search through the gateway that turns full-text queries into hybrid ones."""
    url = f"{calibrated.gateway}/{index or calibrated.index}/_search"
    answer = patient.post(url, json=body, headers={"x-es-sbert": "hybrid"})
    assert answer.status_code == 200, answer.text
    return orjson.loads(answer.content)  # type: ignore[no-any-return]


def test_nonsense_has_no_hits_in_hybrid_search_through_the_gateway(calibrated: Calibrated) -> None:
    words = {"query": NONSENSE, "fields": ["title", "text"]}
    both = [{"match": {"text": NONSENSE}}, {"match": {"semantic": NONSENSE}}]
    queries: list[Json] = [
        {"match": {"text": NONSENSE}},
        {"match": {"text": {"query": NONSENSE, "operator": "and"}}},
        {"match": {"text": {"query": NONSENSE, "minimum_should_match": "75%"}}},
        {"multi_match": words},
        {"multi_match": words | {"operator": "and"}},
        {"bool": {"should": both}},
    ]
    bodies = [{"query": query} for query in queries]
    if "x-elastic-product" not in patient.get(f"{calibrated.engine}/_cluster/health").headers:
        bodies.append({"query": {"hybrid": {"queries": both}}})  # OpenSearch's own
    for body in bodies:
        assert hybrid_search(calibrated, body)["hits"]["hits"] == [], body
    # A text that fits has hits without its words, and the request's own minimum wins.
    assert (
        hybrid_search(calibrated, {"query": {"match": {"text": QUERY}}})["hits"]["hits"][0]["_source"]["title"] == MEANT
    )
    low = {"match": {"semantic": {"query": NONSENSE, "min_cosine": -1}}}
    assert (
        len(hybrid_search(calibrated, {"query": {"bool": {"should": [both[0], low]}}, "size": 50})["hits"]["hits"])
        == 48
    )


def test_nonsense_has_no_hits_in_hybrid_search_of_the_library(
    calibrated: Calibrated, capsys: pytest.CaptureFixture[str]
) -> None:
    with SemanticIndex(calibrated.index, calibrated.engine) as index:
        assert index.hybrid(NONSENSE).hits == ()
        near = index.hybrid(QUERY)
        assert near.hits[0].source["title"] == MEANT
        assert near.hits[0].lexical is None
        # Keyword hits stay at any cosine, and the caller's own minimum wins.
        by_words = index.hybrid(f"{NONSENSE} station", min_cosine=0.99)
        assert by_words.hits
        assert all(hit.lexical is not None for hit in by_words)
        assert len(index.hybrid(NONSENSE, k=5, min_cosine=-1)) == 5
    with pytest.raises(SystemExit) as ended:
        main(["search", "--index", calibrated.index, NONSENSE, "--hybrid", "--url", calibrated.engine])
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert "0 hits" in said.err
    assert "No minimum cosine" not in said.err


def test_hybrid_search_without_the_value_says_how_to_measure_it(
    calibrated: Calibrated, capsys: pytest.CaptureFixture[str]
) -> None:
    index = f"{calibrated.index}-without"
    try:
        ingest_articles(calibrated.engine, index)
        body = {"query": {"match": {"text": NONSENSE}}, "size": 50}
        assert len(hybrid_search(calibrated, body, index)["hits"]["hits"]) == COUNT
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["search", "--index", index, NONSENSE, "--hybrid", "--url", calibrated.engine])
        assert ended.value.code == 0
        assert f"`es-sbert index calibrate {index} --save`" in " ".join(capsys.readouterr().err.split())
    finally:
        delete_index(calibrated.engine, index)


def test_negated_query_matches_all_others(calibrated: Calibrated) -> None:
    near = {hit["_id"] for hit in calibrated.discover(kql(QUERY))["hits"]["hits"]}
    negated = calibrated.discover({"bool": {"must_not": kql(QUERY)}})
    assert {hit["_id"] for hit in negated["hits"]["hits"]} == {article["id"] for article in articles()} - near
    # A filter of the page that is inverted.
    assert total(calibrated.discover(must_not=({"match_phrase": {"semantic": QUERY}},))) == COUNT - len(near)


def test_drill_down_never_raises_a_count(calibrated: Calibrated) -> None:
    topics = sorted({article["topic"] for article in articles()})
    for text in (QUERY, "medicine", "how do animals live"):
        aggregations = {"2": {"terms": {"field": "topic.keyword", "size": 100}}}
        found = calibrated.discover(kql(text), aggs=aggregations)
        counts = {bucket["key"]: bucket["doc_count"] for bucket in found["aggregations"]["2"]["buckets"]}
        assert sum(counts.values()) == total(found)
        for topic in topics:
            drilled = calibrated.discover(kql(text), {"match_phrase": {"topic.keyword": topic}})
            assert total(drilled) == counts.get(topic, 0), (text, topic)


def test_value_goes_with_the_text_that_it_was_measured_for(calibrated: Calibrated) -> None:
    with open_engine(calibrated.engine) as engine:
        state = engine.get_index(calibrated.index)
        assert state is not None
        meta = vector_fields(state.mappings, calibrated.index)["embedding"]
        request = FieldRequest("embedding", meta.fingerprint, meta.model, meta.dimensions, text=meta.text)
        ensure_vector_field(engine, calibrated.index, request)
    assert saved(calibrated.engine, calibrated.index) == calibrated.min_cosine  # a load of the same text keeps it
    assert meta.changed(index_type="int8_hnsw").min_cosine == calibrated.min_cosine
    assert meta.changed(text="{title}").min_cosine is None
    assert meta.changed(fingerprint="0" * 64).min_cosine is None
