"""A vector search as a clause of a larger query, on each real engine, compared with brute force."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import chunk_values
from es_sbert.index.mapping import ChunkRules
from es_sbert.index.vector_field import FieldRequest, VectorField, ensure_vector_field
from es_sbert.search.search_scope import choose_method, choose_oversample
from es_sbert.search.vector_query import SearchMethod, VectorQuery, cosine_from_score, search_body, vector_clause
from es_sbert.vectors import Vectors
from tests.engine.ingest_support import open_engine
from tests.engine.vectors import cosines, load, random_vectors

COUNT, DIMENSIONS, SHARDS, LEAST = 300, 32, 3, 0.3
TYPES = ("hnsw", "int8_hnsw", "flat", "passages")
PASSAGES = 3  # vectors of a document of the type `passages`


@dataclass(frozen=True)
class Place:
    """The same vectors under each index type."""

    engine: Engine
    fields: dict[str, VectorField]
    vectors: Vectors  # (COUNT, DIMENSIONS)

    def query(self, kind: str, vector: Vectors, k: int, **more: Any) -> VectorQuery:
        meta = self.fields[kind].meta
        more |= {"oversample": choose_oversample(meta), "passages": meta.passages is not None}
        return VectorQuery("v", vector, k, num_candidates=COUNT, **more)

    def method(self, kind: str) -> SearchMethod:
        return choose_method(self.engine.info.engine_type, self.fields[kind].meta, False)

    def clause(self, kind: str, query: VectorQuery) -> Json:
        return vector_clause(self.engine.info.engine_type, self.method(kind), query)

    def found(self, kind: str, body: Json, boost: float = 1.0) -> dict[str, float]:
        """Id → cosine, best first."""
        hits = self.engine.search(self.fields[kind].index, {"size": COUNT, "_source": False, **body})["hits"]["hits"]
        return {
            hit["_id"]: cosine_from_score(hit["_score"] / boost, self.engine.info.engine_type, self.method(kind))
            for hit in hits
        }

    def ignores_k(self, kind: str) -> bool:
        """Whether a clause matches whatever has a vector: scripts do, and Elasticsearch 9 where there is no graph."""
        info = self.engine.info
        nine = info.engine_type is EngineType.ELASTICSEARCH and info.version >= (9, 0, 0)
        return self.method(kind) is SearchMethod.EXACT or (nine and kind == "flat")

    def true(self, kind: str, query: Vectors, least: float = -1.0, group: int | None = None) -> dict[str, float]:
        """Brute force, best first."""
        of_vector = cosines(query, self.vectors)  # (COUNT,)
        values = of_vector.reshape(-1, PASSAGES).max(axis=1) if kind == "passages" else of_vector
        order = [int(row) for row in np.argsort(-values, kind="stable") if values[row] >= least]
        return {str(row): float(values[row]) for row in order if group is None or row % 10 == group}


def make_field(engine: Engine, index: str, index_type: str, *, passages: bool) -> VectorField:
    rules = ChunkRules(tokens=8, overlap=0) if passages else None
    request = FieldRequest("v", "f" * 32, "random", DIMENSIONS, index_type=index_type, passages=rules)
    return ensure_vector_field(engine, index, request, shards=SHARDS, replicas=0)


@pytest.fixture(scope="module")
def place(engine_url: str) -> Iterator[Place]:
    vectors = random_vectors(COUNT, DIMENSIONS)
    stem = f"test-{uuid.uuid4().hex[:12]}"
    with open_engine(engine_url) as engine:
        fields = {kind: make_field(engine, f"{stem}-{kind}", kind, passages=False) for kind in TYPES[:3]}
        for field in fields.values():
            load(engine, field.index, "v", vectors, lambda number: {"group": number % 10, "title": "document"})
        fields["passages"] = make_field(engine, f"{stem}-passages", "hnsw", passages=True)
        load_passages(engine, fields["passages"].index, vectors)
        yield Place(engine, fields, vectors)
        for field in fields.values():
            engine.delete_index(field.index)


def load_passages(engine: Engine, index: str, vectors: Vectors) -> None:
    """Index each `PASSAGES` of the vectors ``(COUNT, DIMENSIONS)`` as one document."""
    lines = []
    for number, own in enumerate(vectors.reshape(-1, PASSAGES, DIMENSIONS)):
        lines.append(orjson.dumps({"index": {"_id": str(number)}}))
        values = chunk_values(engine.info, [(place, place + 1) for place in range(PASSAGES)], own)
        document = {"group": number % 10, "title": "document", "v": values}
        lines.append(orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY))
    assert all(item.ok for item in engine.bulk(index, b"\n".join(lines) + b"\n"))
    engine.refresh(index)


@pytest.fixture(params=TYPES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


QUERY = random_vectors(1, DIMENSIONS, seed=9)[0]


def assert_same(found: dict[str, float], expected: dict[str, float]) -> None:
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), abs=1e-5)


def test_clause_returns_k_documents_per_shard(place: Place, kind: str) -> None:
    k = 4
    query = place.query(kind, QUERY, k)
    found = place.found(kind, {"query": place.clause(kind, query)})
    expected = place.true(kind, QUERY)
    if place.ignores_k(kind):
        assert_same(found, expected)
        return
    # On OpenSearch all that was compared again matches.
    of_shard = query.oversampled_k if place.engine.info.engine_type is EngineType.OPENSEARCH else k
    assert len(found) == SHARDS * of_shard
    best = dict(list(expected.items())[:k])
    assert_same(dict(list(found.items())[:k]), best)
    assert found == pytest.approx({id: expected[id] for id in found}, abs=1e-5)


def test_min_cosine_is_exact_under_any_boost(place: Place, kind: str) -> None:
    boost = 2.5
    expected = place.true(kind, QUERY, LEAST)
    assert 0 < len(expected) < COUNT / 3
    clause = place.clause(kind, place.query(kind, QUERY, COUNT // 3, min_cosine=LEAST, boost=boost))
    assert_same(place.found(kind, {"query": clause}, boost), expected)
    around = {"bool": {"must": [clause], "boost": 3.0}}
    assert_same(place.found(kind, {"query": around}, 3 * boost), expected)
    as_filter = {"bool": {"must": [{"match_all": {}}], "filter": [clause], "boost": 3.0}}
    assert set(place.found(kind, {"query": as_filter})) == set(expected)
    grouped = place.query(kind, QUERY, COUNT // 3, min_cosine=LEAST, filter={"term": {"group": 3}}, boost=boost)
    body = search_body(place.engine.info.engine_type, place.method(kind), grouped)
    assert_same(place.found(kind, body, boost), place.true(kind, QUERY, LEAST, 3))


def test_min_cosine_hits_have_passages_when_quantized(place: Place) -> None:
    """Elasticsearch chooses it by quantized vectors, of which all of a hit's may be below the minimum."""
    engine, index = place.engine, f"{place.fields['passages'].index}-quantized"
    index_type = "int4_flat" if engine.info.engine_type is EngineType.ELASTICSEARCH else "int8_hnsw"
    made = make_field(engine, index, index_type, passages=True)
    try:
        load_passages(engine, index, place.vectors)
        query = VectorQuery(
            "v", QUERY, COUNT // 3, oversample=choose_oversample(made.meta), num_candidates=COUNT, passages=True,
            min_cosine=LEAST, boost=2.0, inner_hits="near",
        )  # fmt: skip
        counted = {"aggs": {"all": {"value_count": {"field": "group"}}}}
        answer = engine.search(index, search_body(engine.info.engine_type, SearchMethod.KNN, query) | counted)
    finally:
        engine.delete_index(index)
    hits, expected = answer["hits"]["hits"], place.true("passages", QUERY, LEAST)
    assert {hit["_id"] for hit in hits} == set(expected)
    assert answer["aggregations"]["all"]["value"] == answer["hits"]["total"]["value"] == len(expected)
    assert all(hit["inner_hits"]["near"]["hits"]["hits"] for hit in hits)


def test_clause_without_inner_hits_works_in_aggregation(place: Place, kind: str) -> None:
    clause = place.clause(kind, place.query(kind, QUERY, COUNT // 3, min_cosine=LEAST))
    body = {"size": 0, "aggs": {"near": {"filter": clause}}}
    answer = place.engine.search(place.fields[kind].index, body)
    expected = len(place.true(kind, QUERY, LEAST))
    assert answer["aggregations"]["near"]["doc_count"] == expected
    # Where nothing but a count is asked for, engines take short cuts.
    assert place.engine.count(place.fields[kind].index, clause) == expected
    everything = len(place.true(kind, QUERY))
    other = {"bool": {"must_not": [clause]}}
    assert place.engine.count(place.fields[kind].index, other) == everything - expected
