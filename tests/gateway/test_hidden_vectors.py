"""Hits of searches lack vectors and their metadata unless the caller asks for them; copies of documents have all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from tests.gateway import patient
from tests.gateway.async_search import async_search_before
from tests.gateway.conftest import loaded_index, tiny_gateway
from tests.gateway.serving import served

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


@dataclass(frozen=True)
class Bed:
    """An index of the texts, and a gateway before its engine.

    Attributes:
        engine, gateway: Addresses.
        index: Its name.
        tiny: The model.
    """

    engine: str
    gateway: str
    index: str
    tiny: Path

    def call(self, method: str, path: str, body: Any = None, *, direct: bool = False, **headers: str) -> Any:
        """The response to a request, below the index."""
        content = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        url = f"{self.engine if direct else self.gateway}/{self.index}{path}"
        answer = patient.httpx.request(
            method, url, content=content, headers={"content-type": kind, **headers}, timeout=300, trust_env=False
        )
        assert answer.status_code in (200, 201), answer.text
        return orjson.loads(answer.content)

    def search(self, body: Json | None, params: str = "", *, direct: bool = False, **headers: str) -> list[Json]:
        """The hits of a search, wherever they are."""
        return hits(self.call("POST", f"/_search{params}", body, direct=direct, **headers))

    @property
    def is_opensearch(self) -> bool:
        return "x-elastic-product" not in patient.get(f"{self.engine}/_cluster/health").headers

    @contextmanager
    def with_settings(self, **semantic: Any) -> Iterator[Bed]:
        """The same index behind a gateway with other settings."""
        with tiny_gateway(self.engine, self.tiny, **semantic) as url:
            yield Bed(self.engine, url, self.index, self.tiny)


def hits(answer: Any) -> list[Json]:
    """Every hit of a response that is a whole document."""
    if isinstance(answer, list):
        return [hit for inner in answer for hit in hits(inner)]
    if not isinstance(answer, dict):
        return []
    return ([answer] if "_id" in answer else []) + [hit for inner in answer.values() for hit in hits(inner)]


def fields(found: list[Json]) -> set[str]:
    """The fields in the sources of hits; there is a hit."""
    assert found
    return {name for hit in found for name in hit.get("_source", {})}


def ndjson(*lines: Any) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


@pytest.fixture(scope="module")
def bed(engine_url: str, tiny: Path, tiny_encoder: Encoder) -> Iterator[Bed]:
    with (
        loaded_index(engine_url, tiny_encoder, DOCUMENTS) as index,
        served(async_search_before(engine_url)) as front,
        tiny_gateway(front, tiny) as gateway,
    ):
        yield Bed(engine_url, gateway, index, tiny)


def stored(bed: Bed) -> dict[str, tuple[Any, Json]]:
    """Id → vector and document, as the engine has them."""
    with open_engine(bed.engine) as engine:
        engine.refresh(bed.index)
        found = engine.search(bed.index, {"size": 100, "_source": engine.info.source_with_vectors()})
    sources = {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}
    return {id: (read_vector(source["embedding"]), source) for id, source in sources.items()}


@pytest.mark.parametrize("body", [LEXICAL, SEMANTIC], ids=["lexical", "semantic"])
def test_hits_of_every_search_api_lack_vectors_and_metadata(bed: Bed, body: Json) -> None:
    grouped, collapsed = GROUPED | body, COLLAPSED | body
    narrowed = body | {"_source": {"excludes": ["x"]}}
    several = ndjson({}, body, {"index": bed.index}, grouped, {}, collapsed, {}, narrowed)
    answers = [
        bed.call("POST", "/_search", body),
        bed.call("POST", "/_search", grouped),
        bed.call("POST", "/_search", collapsed),
        bed.call("POST", "/_async_search", body),
        bed.call("POST", "/_search", body | {"fields": ["text"]}),
        bed.call("POST", "/_search", body | {"_source": {"excludes": ["group"]}}),
        bed.call("POST", "/_search?_source_excludes=group", body),
        *bed.call("POST", "/_msearch", several)["responses"],
    ]
    if bed.is_opensearch:  # the other test servers lack Mustache
        source = {"source": orjson.dumps(body).decode()}
        answers += [
            bed.call("POST", "/_search/template", source),
            *bed.call("POST", "/_msearch/template", ndjson({}, source, {}, source))["responses"],
        ]
    for answer in answers:
        assert fields(hits(answer)) in ({"id", "text", "group"}, {"id", "text"}), answer
    assert fields(bed.search(None, "?q=text:cat")) == {"id", "text", "group"}


def test_caller_who_asks_for_them_gets_what_the_engine_returns(bed: Bed) -> None:
    searches: list[tuple[Json, str]] = [
        ({"_source": True}, ""),
        ({"_source": ["embedding*", "text"]}, ""),
        ({"_source": {"includes": ["*"]}}, ""),
        ({"_source": {"excludes": ["embedding"]}}, ""),
        ({"_source": False, "fields": ["*"]}, ""),
        ({"stored_fields": ["*"]}, ""),
        ({"script_fields": {}}, ""),
        ({"size": 0}, ""),
        ({}, "?_source=true"),
        ({}, "?_source_includes=embedding_meta"),
        ({}, "?_source_excludes=embedding_meta"),
        ({}, "?stored_fields=_none_"),
    ]
    for body, params in searches:
        expected = bed.search(LEXICAL | body, params, direct=True)
        assert bed.search(LEXICAL | body, params) == expected, (body, params)
    assert fields(bed.search(LEXICAL | {"_source": ["embedding"]})) == {"embedding"}
    assert fields(bed.search(LEXICAL, **{"x-es-sbert": "off"})) >= {"embedding_meta"}


def test_copies_of_documents_have_everything(bed: Bed) -> None:
    """What a dump reads, and what an application may change and write back, is what the engine returns."""
    for method, path, body in [
        ("GET", "/_doc/1", None),
        ("GET", "/_source/1", None),
        ("POST", "/_mget", {"ids": ["0", "1"]}),
        ("POST", "/_search?scroll=1m", LEXICAL),
    ]:
        answer, direct = bed.call(method, path, body), bed.call(method, path, body, direct=True)
        assert (hits(answer) or answer) == (hits(direct) or direct), path
        assert "embedding_meta" in orjson.dumps(answer).decode()
    opening = "/_search/point_in_time" if bed.is_opensearch else "/_pit"
    opened = bed.call("POST", f"{opening}?keep_alive=1m")
    pit = LEXICAL | {"pit": {"id": opened.get("id") or opened["pit_id"]}}
    for address in (bed.gateway, bed.engine):
        answer = patient.post(f"{address}/_search", json=pit)
        assert fields(hits(answer.json())) >= {"embedding_meta"}


@pytest.mark.parametrize("reads", ["document", "search"])
def test_document_that_is_read_changed_and_written_back_keeps_its_vector(bed: Bed, reads: str) -> None:
    before = stored(bed)
    if reads == "document":
        for id in before:
            document = bed.call("GET", f"/_doc/{id}")["_source"]
            bed.call("PUT", f"/_doc/{id}", document | {"seen": reads})
    else:
        found = bed.search({"size": 100})
        lines = [line for hit in found for line in ({"index": {"_id": hit["_id"]}}, hit["_source"] | {"seen": reads})]
        assert not bed.call("POST", "/_bulk", ndjson(*lines))["errors"]
    after = stored(bed)
    assert after.keys() == before.keys()
    for id, (vector, document) in after.items():
        assert document["seen"] == reads
        np.testing.assert_allclose(vector, before[id][0], rtol=0, atol=1e-6)
        assert document["embedding_meta"]["text_hash"] == before[id][1]["embedding_meta"]["text_hash"]


def test_vectors_are_shown_where_a_write_would_not_restore_them(bed: Bed) -> None:
    for settings in ({"writes": False}, {"hide_vectors": "never"}):
        with bed.with_settings(**settings) as other:
            assert fields(other.search(LEXICAL)) == fields(bed.search(LEXICAL, direct=True)), settings
    with bed.with_settings(writes=False, hide_vectors="always") as other:
        assert OURS.isdisjoint(fields(other.search(LEXICAL)))


def test_fields_of_indices_without_vectors_are_shown(bed: Bed) -> None:
    """Such an index may be searched together with one that has vectors, and have fields of the same names."""
    plain, own = f"{bed.index}-plain", f"{bed.index}-own"
    try:
        with open_engine(bed.engine) as engine:
            for index, document in ((plain, {"text": "cat"}), (own, {"text": "cat", "embedding": "mine"})):
                engine.bulk(index, ndjson({"index": {"_id": index}}, document))
                engine.refresh(index)
        both = Bed(bed.engine, bed.gateway, f"{bed.index},{plain}", bed.tiny).search(LEXICAL)
        assert {hit["_index"] for hit in both} == {bed.index, plain}
        assert OURS.isdisjoint(fields(both))
        every = Bed(bed.engine, bed.gateway, f"{bed.index}*", bed.tiny).search(LEXICAL)
        assert {hit["_source"]["embedding"] for hit in every if hit["_index"] == own} == {"mine"}
        assert "embedding_meta" not in fields(every)
    finally:
        for index in (plain, own):
            delete_index(bed.engine, index)
