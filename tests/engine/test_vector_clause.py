"""A vector search as a clause of a larger query, on each real engine, compared with brute force."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import chunk_values
from es_sbert.index.mapping import ChunkRules
from es_sbert.index.vector_field import FieldRequest, VectorField, ensure_vector_field
from es_sbert.search.search_scope import choose_method, choose_oversample
from es_sbert.search.vector_query import SearchMethod, VectorQuery, cosine_from_score, search_body, vector_clause
from es_sbert.vectors import Vectors
from tests.engine.vectors import cosines, load, random_vectors

COUNT, DIMENSIONS, SHARDS, LEAST = 300, 32, 3, 0.3
TYPES = ("hnsw", "int8_hnsw", "flat", "passages")
PASSAGES = 3  # vectors of a document of the type `passages`


@dataclass(frozen=True)
class Place:
    """The same vectors under each index type, and an index that lacks the field."""

    engine: Engine
    fields: dict[str, VectorField]
    lacking: str
    vectors: Vectors  # (COUNT, DIMENSIONS)

    def query(self, kind: str, vector: Vectors, k: int, **more: Any) -> VectorQuery:
        meta = self.fields[kind].meta
        return VectorQuery(
            "v",
            vector,
            k,
            oversample=choose_oversample(meta),
            num_candidates=COUNT,
            passages=meta.passages is not None,
            **more,
        )

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


@pytest.fixture(scope="module")
def place(engine_url: str) -> Iterator[Place]:
    engine = connect(EngineSettings(url=engine_url))
    vectors = random_vectors(COUNT, DIMENSIONS)
    stem = f"test-{uuid.uuid4().hex[:12]}"
    with closing(engine):
        fields = {
            kind: ensure_vector_field(
                engine,
                f"{stem}-{kind}",
                FieldRequest(
                    name="v",
                    fingerprint="f" * 32,
                    model_name="random",
                    dimensions=DIMENSIONS,
                    index_type="hnsw" if kind == "passages" else kind,
                    passages=ChunkRules(tokens=8, overlap=0) if kind == "passages" else None,
                ),
                shards=SHARDS,
                replicas=0,
            )
            for kind in TYPES
        }
        lacking = f"{stem}-lacking"
        engine.create_index(lacking, {"mappings": {"properties": {"title": {"type": "text"}}}})
        engine.bulk(lacking, b'{"index":{"_id":"other"}}\n{"title":"document"}\n')
        engine.refresh(lacking)
        for kind in TYPES[:3]:
            load(engine, fields[kind].index, "v", vectors, lambda number: {"group": number % 10, "title": "document"})
        load_passages(engine, fields["passages"].index, vectors)
        yield Place(engine, fields, lacking, vectors)
        for name in [lacking, *(field.index for field in fields.values())]:
            engine.delete_index(name)


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
    chosen: str = request.param
    return chosen


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


def test_body_returns_k_documents(place: Place, kind: str) -> None:
    body = search_body(place.engine.info.engine_type, place.method(kind), place.query(kind, QUERY, 4))
    assert_same(place.found(kind, body), dict(list(place.true(kind, QUERY).items())[:4]))


def test_fewer_matches_than_k_are_all_found(place: Place, kind: str) -> None:
    expected = place.true(kind, QUERY, group=3)
    query = place.query(kind, QUERY, 2 * len(expected), filter={"term": {"group": 3}})
    assert_same(place.found(kind, {"query": place.clause(kind, query)}), expected)


@pytest.mark.parametrize("boost", [1.0, 2.5])
def test_min_cosine_is_exact_under_any_boost(place: Place, kind: str, boost: float) -> None:
    expected = place.true(kind, QUERY, LEAST)
    assert 0 < len(expected) < COUNT / 3
    clause = place.clause(kind, place.query(kind, QUERY, COUNT // 3, min_cosine=LEAST, boost=boost))
    assert_same(place.found(kind, {"query": clause}, boost), expected)
    around = {"bool": {"must": [clause], "boost": 3.0}}
    assert_same(place.found(kind, {"query": around}, 3 * boost), expected)
    as_filter = {"bool": {"must": [{"match_all": {}}], "filter": [clause], "boost": 3.0}}
    assert set(place.found(kind, {"query": as_filter})) == set(expected)


def test_min_cosine_of_body_is_exact(place: Place, kind: str) -> None:
    query = place.query(kind, QUERY, COUNT // 3, min_cosine=LEAST, filter={"term": {"group": 3}}, boost=2.0)
    body = search_body(place.engine.info.engine_type, place.method(kind), query)
    assert_same(place.found(kind, body, 2.0), place.true(kind, QUERY, LEAST, 3))


def test_min_cosine_hits_have_passages_when_quantized(place: Place) -> None:
    """Elasticsearch chooses it by quantized vectors, of which all of a hit's may be below the minimum."""
    info = place.engine.info
    index = f"{place.lacking}-quantized"
    made = ensure_vector_field(
        place.engine,
        index,
        FieldRequest(
            name="v",
            fingerprint="f" * 32,
            model_name="random",
            dimensions=DIMENSIONS,
            index_type="int4_flat" if info.engine_type is EngineType.ELASTICSEARCH else "int8_hnsw",
            passages=ChunkRules(tokens=8, overlap=0),
        ),
        replicas=0,
        shards=1,
    )
    try:
        load_passages(place.engine, index, place.vectors)
        expected = place.true("passages", QUERY, LEAST)
        query = VectorQuery(
            "v",
            QUERY,
            COUNT // 3,
            oversample=choose_oversample(made.meta),
            num_candidates=COUNT,
            passages=True,
            min_cosine=LEAST,
            boost=2.0,
            inner_hits="near",
        )
        body = search_body(info.engine_type, SearchMethod.KNN, query) | {
            "aggs": {"all": {"value_count": {"field": "group"}}}
        }
        answer = place.engine.search(index, body)
    finally:
        place.engine.delete_index(index)
    hits = answer["hits"]["hits"]
    assert {hit["_id"] for hit in hits} == set(expected)
    assert answer["aggregations"]["all"]["value"] == answer["hits"]["total"]["value"] == len(expected)
    assert all(hit["inner_hits"]["near"]["hits"]["hits"] for hit in hits)


def test_index_without_the_field_adds_no_hits(place: Place, kind: str) -> None:
    query = place.query(kind, QUERY, 4, inner_hits="near" if kind == "passages" else None)
    for body in (
        {"query": place.clause(kind, query)},
        search_body(place.engine.info.engine_type, place.method(kind), query),
    ):
        assert place.engine.search(place.lacking, body)["hits"]["hits"] == []


def test_two_passage_clauses_use_separate_inner_hits(place: Place) -> None:
    other = random_vectors(1, DIMENSIONS, seed=10)[0]
    clauses = [
        place.clause("passages", place.query("passages", vector, 20, inner_hits=name))
        for name, vector in (("first", QUERY), ("second", other))
    ]
    body = {"query": {"bool": {"should": clauses}}, "size": 5}
    hits = place.engine.search(place.fields["passages"].index, body)["hits"]["hits"]
    assert len(hits) == 5
    for hit in hits:
        own = place.vectors.reshape(-1, PASSAGES, DIMENSIONS)[int(hit["_id"])]
        for name, vector in (("first", QUERY), ("second", other)):
            for inner in hit["inner_hits"][name]["hits"]["hits"]:
                assert inner["_nested"]["offset"] == int(np.argmax(cosines(vector, own)))


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
