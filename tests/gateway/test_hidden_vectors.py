"""Hits of searches lack vectors and their metadata unless the caller asks for them; copies of documents have all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import read_vector
from tests.conftest import delete_index
from tests.engine.ingest_support import open_engine
from tests.gateway.async_search import async_search_before
from tests.gateway.bed import Bed, bed_of
from tests.gateway.patient import client, ndjson
from tests.gateway.serving import gateway, served

TEXTS = ["the cat sleeps on the mat", "a man plays guitar", "the guitar sleeps"]
DOCUMENTS = [{"id": str(number), "text": text, "group": "all"} for number, text in enumerate(TEXTS)]
OURS = {"embedding", "embedding_meta"}
LEXICAL: Json = {"query": {"match": {"text": "cat guitar"}}}
SEMANTIC: Json = {"query": {"match": {"semantic": "the cat"}}}
GROUPED: Json = {
    "size": 0,
    "aggs": {"top_hits": {"terms": {"field": "group.keyword"}, "aggs": {"best": {"top_hits": {"size": 3}}}}},
}
COLLAPSED: Json = {"collapse": {"field": "group.keyword", "inner_hits": {"name": "all", "size": 3}}}


def hits(answer: Any) -> list[Json]:
    """Every hit of a response that is a whole document, wherever it is."""
    if isinstance(answer, list):
        return [hit for inner in answer for hit in hits(inner)]
    if not isinstance(answer, dict):
        return []
    return ([answer] if "_id" in answer else []) + [hit for inner in answer.values() for hit in hits(inner)]


def fields(answer: Any) -> set[str]:
    """The fields in the sources of hits; there is a hit."""
    assert hits(answer)
    return {name for hit in hits(answer) for name in hit.get("_source", {})}


@pytest.fixture(scope="module")
def bed(engine_url: str, tiny: Path, tiny_encoder: Encoder) -> Iterator[Bed]:
    with (
        served(async_search_before(engine_url)) as front,
        bed_of(engine_url, tiny, tiny_encoder, DOCUMENTS, front=front) as bed,
    ):
        yield bed


def stored(bed: Bed) -> dict[str, tuple[Any, Json]]:
    with open_engine(bed.url) as engine:
        engine.refresh(bed.index)
        found = engine.search(bed.index, {"size": 100, "_source": engine.info.source_with_vectors()})
    sources = {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}
    return {id: (read_vector(source["embedding"]), source) for id, source in sources.items()}


@pytest.mark.parametrize("body", [LEXICAL, SEMANTIC], ids=["lexical", "semantic"])
def test_hits_of_every_search_api_lack_vectors_and_metadata(bed: Bed, body: Json) -> None:
    grouped, collapsed = GROUPED | body, COLLAPSED | body
    narrowed = body | {"_source": {"excludes": ["x"]}}
    answers = [
        *(bed.search(each) for each in (body, grouped, collapsed, body | {"fields": ["text"]})),
        bed.search(body, "_async_search"),
        bed.search(body | {"_source": {"excludes": ["group"]}}),
        bed.search(body, _source_excludes="group"),
        *bed.msearch({}, body, {"index": bed.index}, grouped, {}, collapsed, {}, narrowed),
    ]
    if bed.is_opensearch:  # the other test servers lack Mustache
        source = {"source": orjson.dumps(body).decode()}
        answers += [
            bed.search(source, "_search/template"),
            *bed.msearch({}, source, {}, source, path="_msearch/template"),
        ]
    for answer in answers:
        assert fields(answer) in ({"id", "text", "group"}, {"id", "text"}), answer
    assert fields(bed.search(None, q="text:cat")) == {"id", "text", "group"}


def test_caller_who_asks_for_them_gets_what_the_engine_returns(bed: Bed) -> None:
    searches: list[tuple[Json, dict[str, str]]] = [
        ({"_source": True}, {}),
        ({"_source": ["embedding*", "text"]}, {}),
        ({"_source": {"excludes": ["embedding"]}}, {}),
        ({"_source": False, "fields": ["*"]}, {}),
        ({"stored_fields": ["*"]}, {}),
        ({"size": 0}, {}),
        ({}, {"_source": "true"}),
        ({}, {"_source_includes": "embedding_meta"}),
        ({}, {"_source_excludes": "embedding_meta"}),
    ]
    for body, params in searches:
        expected = bed.direct(LEXICAL | body, **params)["hits"]
        assert bed.search(LEXICAL | body, **params)["hits"] == expected, (body, params)
    assert fields(bed.search(LEXICAL | {"_source": ["embedding"]})) == {"embedding"}
    assert fields(bed.search(LEXICAL, mode="off")) >= {"embedding_meta"}


def test_copies_of_documents_have_everything(bed: Bed) -> None:
    """What a dump reads, and what an application may change and write back, is what the engine returns."""
    for method, path, body in [
        ("GET", "_doc/1", None),
        ("GET", "_source/1", None),
        ("POST", "_mget", {"ids": ["0", "1"]}),
        ("POST", "_search?scroll=1m", LEXICAL),
    ]:
        answer, direct = (
            address.request(method, f"/{bed.index}/{path}", json=body).json() for address in (bed.gateway, bed.engine)
        )
        assert (hits(answer) or answer) == (hits(direct) or direct), path
        assert "embedding_meta" in orjson.dumps(answer).decode()
    pit = LEXICAL | {"pit": {"id": bed.point_in_time()}}
    for address in (bed.gateway, bed.engine):
        assert fields(address.post("/_search", json=pit).json()) >= {"embedding_meta"}


@pytest.mark.parametrize("reads", ["document", "search"])
def test_document_that_is_read_changed_and_written_back_keeps_its_vector(bed: Bed, reads: str) -> None:
    before = stored(bed)
    if reads == "document":
        for id in before:
            document = bed.gateway.get(f"/{bed.index}/_doc/{id}").json()["_source"]
            bed.gateway.put(f"/{bed.index}/_doc/{id}", json=document | {"seen": reads}).raise_for_status()
    else:
        found = hits(bed.search({"size": 100}))
        lines = [line for hit in found for line in ({"index": {"_id": hit["_id"]}}, hit["_source"] | {"seen": reads})]
        assert not bed.send("_bulk", *lines)["errors"]
    after = stored(bed)
    assert after.keys() == before.keys()
    for id, (vector, document) in after.items():
        assert document["seen"] == reads
        np.testing.assert_allclose(vector, before[id][0], rtol=0, atol=1e-6)
        assert document["embedding_meta"]["text_hash"] == before[id][1]["embedding_meta"]["text_hash"]


def test_vectors_are_shown_where_a_write_would_not_restore_them(bed: Bed, tiny: Path) -> None:
    shown = fields(bed.direct(LEXICAL))
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"writes": False}, shown),
        ({"hide_vectors": "never"}, shown),
        ({"writes": False, "hide_vectors": "always"}, shown - OURS),
    ]
    for settings, expected in cases:
        with gateway(bed.url, tiny, **settings) as url, client(url) as other:
            assert fields(other.post(f"/{bed.index}/_search", json=LEXICAL).json()) == expected, settings


def test_fields_of_indices_without_vectors_are_shown(bed: Bed) -> None:
    """Such an index may be searched together with one that has vectors, and have fields of the same names."""
    plain, own = f"{bed.index}-plain", f"{bed.index}-own"
    try:
        with open_engine(bed.url) as engine:
            for index, document in ((plain, {"text": "cat"}), (own, {"text": "cat", "embedding": "mine"})):
                engine.bulk(index, ndjson({"index": {"_id": index}}, document))
                engine.refresh(index)
        both = bed.search(LEXICAL, index=f"{bed.index},{plain}")
        assert {hit["_index"] for hit in hits(both)} == {bed.index, plain}
        assert OURS.isdisjoint(fields(both))
        every = bed.search(LEXICAL, index=f"{bed.index}*")
        assert {hit["_source"]["embedding"] for hit in hits(every) if hit["_index"] == own} == {"mine"}
        assert "embedding_meta" not in fields(every)
    finally:
        for index in (plain, own):
            delete_index(bed.url, index)
