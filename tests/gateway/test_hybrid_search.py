"""Hybrid searches of applications through the gateway, on each engine, compared with the library and the engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from es_sbert.search import SemanticIndex
from tests.engine.ingest_support import load, open_engine, write_jsonl
from tests.gateway.conftest import tiny_gateway
from tests.gateway.hybrid_kinds import HYBRID, RESTRICTIONS, UNCHANGED
from tests.tiny import WORDS

TEXT = "the man plays a guitar"
ORDERS = {f"ORD-{48_200 + number}": f"d{number * 7}" for number in range(40)}
COUNT = 300


def texts() -> dict[str, str]:
    """Sentences of few words, no two alike; forty of them have the number of an order at their end."""
    chosen = random.Random(0)
    words = sorted(word for word in WORDS if word.isalpha())
    sentences = {f"d{number}": " ".join(chosen.choices(words, k=9)) for number in range(COUNT)}
    for order, id in ORDERS.items():
        sentences[id] += f" order {order}"
    return sentences


@dataclass(frozen=True)
class Place:
    """An index of three shards with the texts, and a gateway in hybrid mode before it."""

    library: Engine
    gateway: httpx.Client
    engine: httpx.Client
    name: str
    index: SemanticIndex

    def search(self, body: Json, path: str = "_search", mode: str = "hybrid") -> Json:
        answer = self.gateway.post(f"/{self.name}/{path}", json=body, headers={"x-es-sbert": mode})
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def direct(self, body: Json, path: str = "_search") -> Json:
        found: Json = self.engine.post(f"/{self.name}/{path}", json=body).raise_for_status().json()
        return found


def ids(answer: Json) -> list[str]:
    return [hit["_id"] for hit in answer["hits"]["hits"]]


@pytest.fixture(scope="module")
def place(
    engine_url: str, tiny: Path, tiny_encoder: Encoder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder, name = tmp_path_factory.mktemp("hybrid"), f"test-hybrid-{random.getrandbits(40):x}"
    with (
        tiny_gateway(engine_url, tiny, hybrid=True) as gateway_url,
        httpx.Client(base_url=gateway_url, timeout=300, trust_env=False) as gateway,
        httpx.Client(base_url=engine_url, timeout=300, trust_env=False) as direct,
        open_engine(engine_url) as engine,
    ):
        rows = [
            {"id": id, "text": text, "rank": number, "other": "x"} for number, (id, text) in enumerate(texts().items())
        ]
        engine.create_index(name, {"settings": {"index.number_of_shards": 3}})
        file = write_jsonl(folder / "rows.jsonl", rows)
        load(engine_url, tiny_encoder, name, file, dead=folder / "dead", id_field="id", index_type="flat")
        try:
            with SemanticIndex(name, engine, encoder=tiny_encoder) as index:
                yield Place(engine, gateway, direct, name, index)
        finally:
            engine.delete_index(name)


@pytest.mark.parametrize("query", ["{}", "where is order {}", '"order {}"', "{} guitar"])
def test_the_document_with_an_identifier_is_first(place: Place, query: str) -> None:
    for order, id in ORDERS.items():
        text = query.format(order)
        assert place.index.hybrid(text, 3).hits[0].id == id
        assert ids(place.search({"query": {"match": {"text": text}}}))[0] == id


@pytest.mark.parametrize("name", HYBRID)
def test_gateway_ranks_and_counts_as_the_library_does(place: Place, name: str) -> None:
    body = HYBRID[name]("text", TEXT)
    fields = body["query"]["multi_match"]["fields"] if "multi_match" in body["query"] else ["text"]
    expected = place.index.hybrid(TEXT, 100, lexical_fields=fields)
    first, size = body.get("from", 0), body.get("size", 10)
    answer = place.search(body)
    if name.startswith(("match", "must", "function_score", "sorted", "second")) and "fuzziness" not in name:
        assert ids(answer) == [hit.id for hit in expected][first : first + size]
    scores = [hit["_score"] for hit in answer["hits"]["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert answer["hits"]["total"]["value"] == expected.total
    everything = place.search(body | {"from": 0, "size": COUNT})
    assert set(ids(everything)) >= {hit.id for hit in expected}
    if "aggs" in body:
        ranks = [hit["_source"]["rank"] for hit in everything["hits"]["hits"]]
        assert answer["aggregations"]["ranks"]["value"] == max(ranks)


@pytest.mark.parametrize("name", list(UNCHANGED)[:2])
def test_other_queries_are_the_engines_own(place: Place, name: str) -> None:
    body = UNCHANGED[name]("text", TEXT)
    ours, own = place.search(body), place.direct(body)
    for answer in (ours, own):
        answer.pop("took")
    assert [(hit["_id"], hit["_score"]) for hit in ours["hits"]["hits"]] == [
        (hit["_id"], hit["_score"]) for hit in own["hits"]["hits"]
    ]
    assert ours["hits"]["total"] == own["hits"]["total"]
    assert ours.get("aggregations") == own.get("aggregations")


def test_counts_are_the_engines_own(place: Place) -> None:
    for text in (TEXT, "qwxzvb"):
        body: Json = {"query": {"match": {"text": text}}}
        assert place.search(body, "_count")["count"] == place.direct(body, "_count")["count"]


def test_the_total_is_of_both_searches_together(place: Place) -> None:
    """The documents that the words match, and the k nearest ones that they do not match."""
    body: Json = {"query": {"match": {"text": "order"}}, "size": COUNT}
    words, near = set(ids(place.direct(body))), {hit.id for hit in place.index.search("order", 100)}
    answer, result = place.search(body), place.index.hybrid("order", 100)
    assert set(ids(answer)) == words | near
    assert answer["hits"]["total"]["value"] == result.total == len(words | near) > len(near)
    nonsense = place.search({"query": {"match": {"text": "qwxzvb"}}})
    assert nonsense["hits"]["total"]["value"] == place.index.hybrid("qwxzvb", 100).total == 100


def test_a_few_documents_with_all_words_are_first_and_many_are_not(place: Place) -> None:
    hits = place.index.hybrid("order", 50).hits
    assert all(hit.match is None for hit in hits), "forty documents have the word"
    [order, *_] = ORDERS
    [first, second] = place.index.hybrid(f"order {order}", 2).hits
    assert (first.id, first.match, second.match) == (ORDERS[order], "phrase", None)
    [prefix] = place.index.hybrid("order ORD-4820", 1).hits
    assert prefix.match == "prefix"


def test_pages_and_searches_of_an_msearch_continue_the_ranking(place: Place) -> None:
    query: Json = {"query": {"match": {"text": TEXT}}}
    whole = ids(place.search(query | {"size": 60}))
    assert [id for page in range(6) for id in ids(place.search(query | {"from": 10 * page}))] == whole
    lines = b"".join(orjson.dumps(line) + b"\n" for line in ({}, query | {"size": 60}))
    answer = place.gateway.post(
        f"/{place.name}/_msearch", content=lines, headers={"content-type": "application/x-ndjson"}
    )
    assert ids(answer.json()["responses"][0]) == whole


def test_many_hybrid_queries_in_one_search_are_accepted(place: Place) -> None:
    """Engines accept 1,024 clauses."""
    texts = [f"{word} guitar {number}" for number in range(4) for word in ("man", "cat", "mat")]
    body: Json = {"query": {"bool": {"should": [{"match": {"text": text}} for text in texts]}}, "size": COUNT}
    words = {hit["_id"] for hit in place.direct(body)["hits"]["hits"]}
    assert set(ids(place.search(body))) >= words


def test_words_are_highlighted(place: Place) -> None:
    body: Json = {"query": {"match": {"text": "guitar"}}, "highlight": {"fields": {"text": {}}}, "size": COUNT}
    highlighted = {hit["_id"] for hit in place.search(body)["hits"]["hits"] if "highlight" in hit}
    assert highlighted == set(ids(place.direct({"query": {"match": {"text": "guitar"}}, "size": COUNT})))


def test_a_query_that_the_engine_rejects_has_its_error(place: Place) -> None:
    body: Json = {"query": {"match": {"text": {"query": TEXT, "fuzziness": "much"}}}}
    ours = place.gateway.post(f"/{place.name}/_search", json=body)
    own = place.engine.post(f"/{place.name}/_search", json=body)
    assert (ours.status_code, ours.json()["error"]["type"]) == (own.status_code, own.json()["error"]["type"])
    assert own.status_code == 400


def test_required_phrase_is_required_of_semantic_hits(place: Place) -> None:
    """A match beside it ranks its hits by meaning too, and adds none."""
    phrase: Json = {"match_phrase": {"text": "the guitar"}}
    body: Json = {"query": {"bool": {"must": [phrase], "should": [{"match": {"text": TEXT}}]}}, "size": COUNT}
    ours, own = place.search(body), place.direct(body)
    assert set(ids(ours)) == set(ids(own)) != set()
    assert ours["hits"]["total"] == own["hits"]["total"]


@pytest.mark.parametrize("name", list(RESTRICTIONS)[:2])
def test_semantic_query_is_filtered_by_any_query_that_never_becomes_hybrid(place: Place, name: str) -> None:
    semantic: Json = {"match": {"semantic": {"query": TEXT, "k": 5}}}
    restriction = RESTRICTIONS[name]({"match": {"text": "order"}})
    for body in (
        {"query": {"bool": {"must": [semantic, restriction]}}},
        {"query": {"bool": {"must": [restriction], "filter": [semantic]}}},
        {"query": restriction, "post_filter": semantic},
    ):
        found = ids(place.search(body))
        assert len(found) == 5, body
        assert set(found) <= set(ORDERS.values())


def test_semantic_filter_of_a_hybrid_query_may_keep_documents_without_its_words(place: Place) -> None:
    near: Json = {"match": {"semantic": {"query": "guitar", "k": 5}}}
    query: Json = {"match": {"text": "order"}}
    nearest = {hit.id for hit in place.index.search("guitar", 5)}
    expected = nearest & set(ids(place.search({"query": query, "size": COUNT})))
    assert set(ids(place.search({"query": query, "post_filter": near}))) == expected
    assert not expected <= set(ORDERS.values()), "the words do not restrict the semantic filter"
