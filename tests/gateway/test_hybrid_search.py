"""Hybrid searches of applications through the gateway, on each engine, compared with the library and the engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from es_sbert import SemanticIndex
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from tests.gateway.bed import Bed, bed_of, ids, scores
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


def match(text: str, **body: object) -> Json:
    return {"query": {"match": {"text": text}}, **body}


@pytest.fixture(scope="module")
def bed(engine_url: str, tiny: Path, tiny_encoder: Encoder) -> Iterator[Bed]:
    rows = [{"id": id, "text": text, "rank": number, "other": "x"} for number, (id, text) in enumerate(texts().items())]
    options = {"index_type": "flat", "shards": 3}
    with bed_of(engine_url, tiny, tiny_encoder, rows, load=options, hybrid=True) as bed:
        yield bed


@pytest.fixture(scope="module")
def library(bed: Bed, tiny_encoder: Encoder) -> Iterator[SemanticIndex]:
    with SemanticIndex(bed.index, bed.url, encoder=tiny_encoder) as index:
        yield index


@pytest.mark.parametrize("query", ["where is order {}", '"order {}"', "{} guitar"])
def test_the_document_with_an_identifier_is_first(bed: Bed, library: SemanticIndex, query: str) -> None:
    for order, id in ORDERS.items():
        text = query.format(order)
        assert library.hybrid(text, 3).hits[0].id == id
        assert ids(bed.search(match(text)))[0] == id


@pytest.mark.parametrize("name", HYBRID)
def test_gateway_ranks_and_counts_as_the_library_does(bed: Bed, library: SemanticIndex, name: str) -> None:
    body = HYBRID[name]("text", TEXT)
    fields = body["query"]["multi_match"]["fields"] if "multi_match" in body["query"] else ["text"]
    expected = library.hybrid(TEXT, 100, lexical_fields=fields)
    first, size = body.get("from", 0), body.get("size", 10)
    answer = bed.search(body)
    if name.startswith(("match", "must", "function_score", "sorted", "second")) and "fuzziness" not in name:
        assert ids(answer) == [hit.id for hit in expected][first : first + size]
    assert scores(answer) == sorted(scores(answer), reverse=True)
    assert answer["hits"]["total"]["value"] == expected.total
    everything = bed.search(body | {"from": 0, "size": COUNT})
    assert set(ids(everything)) >= {hit.id for hit in expected}
    if "aggs" in body:
        ranks = [hit["_source"]["rank"] for hit in everything["hits"]["hits"]]
        assert answer["aggregations"]["ranks"]["value"] == max(ranks)


@pytest.mark.parametrize("name", list(UNCHANGED)[:2])
def test_other_queries_and_counts_are_the_engines_own(bed: Bed, name: str) -> None:
    body = UNCHANGED[name]("text", TEXT)
    ours, own = bed.search(body), bed.direct(body)
    assert (ids(ours), scores(ours), ours["hits"]["total"]) == (ids(own), scores(own), own["hits"]["total"])
    assert bed.search(match(TEXT), "_count")["count"] == bed.direct(match(TEXT), "_count")["count"]


def test_the_total_is_of_both_searches_together(bed: Bed, library: SemanticIndex) -> None:
    """The documents that the words match, and the k nearest ones that they do not match."""
    words, near = set(ids(bed.direct(match("order", size=COUNT)))), {hit.id for hit in library.search("order", 100)}
    answer = bed.search(match("order", size=COUNT))
    assert set(ids(answer)) == words | near
    total = library.hybrid("order", 100).total
    assert answer["hits"]["total"]["value"] == total == len(words | near) > len(near)
    assert bed.search(match("qwxzvb"))["hits"]["total"]["value"] == library.hybrid("qwxzvb", 100).total == 100


def test_pages_and_searches_of_an_msearch_continue_the_ranking(bed: Bed) -> None:
    whole = ids(bed.search(match(TEXT, size=60)))
    assert [id for page in range(6) for id in ids(bed.search(match(TEXT) | {"from": 10 * page}))] == whole
    assert ids(bed.msearch({}, match(TEXT, size=60))[0]) == whole


def test_required_phrase_is_required_of_semantic_hits(bed: Bed) -> None:
    """A match in `should` ranks the hits of the phrase by their cosine too, and adds none."""
    phrase: Json = {"match_phrase": {"text": "the guitar"}}
    body: Json = {"query": {"bool": {"must": [phrase], "should": [match(TEXT)["query"]]}}, "size": COUNT}
    ours, own = bed.search(body), bed.direct(body)
    assert set(ids(ours)) == set(ids(own)) != set()
    assert ours["hits"]["total"] == own["hits"]["total"]


@pytest.mark.parametrize("name", list(RESTRICTIONS)[:2])
def test_semantic_query_is_filtered_by_any_query_that_never_becomes_hybrid(bed: Bed, name: str) -> None:
    semantic: Json = {"match": {"semantic": {"query": TEXT, "k": 5}}}
    restriction = RESTRICTIONS[name]({"match": {"text": "order"}})
    for body in (
        {"query": {"bool": {"must": [semantic, restriction]}}},
        {"query": {"bool": {"must": [restriction], "filter": [semantic]}}},
        {"query": restriction, "post_filter": semantic},
    ):
        found = ids(bed.search(body))
        assert len(found) == 5, body
        assert set(found) <= set(ORDERS.values())


def test_semantic_filter_of_a_hybrid_query_may_keep_documents_without_its_words(
    bed: Bed, library: SemanticIndex
) -> None:
    near: Json = {"match": {"semantic": {"query": "guitar", "k": 5}}}
    nearest = {hit.id for hit in library.search("guitar", 5)}
    expected = nearest & set(ids(bed.search(match("order", size=COUNT))))
    assert set(ids(bed.search(match("order", post_filter=near)))) == expected
    assert not expected <= set(ORDERS.values()), "the words do not restrict the semantic filter"
