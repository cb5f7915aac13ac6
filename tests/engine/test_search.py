"""Search on each real engine, compared with brute force over the same vectors."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.errors import FeatureMissing
from es_sbert.index.mapping import supported_index_types
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.search.semantic_index import SemanticIndex
from es_sbert.search.vector_query import SearchMethod
from es_sbert.vectors import Vectors
from tests.conftest import also_es8, on_every_version
from tests.engine.ingest_support import ask, open_engine
from tests.engine.vectors import cosines, load, random_vectors
from tests.raised import raises_as_recorded

COUNT, GROUPS, DIMENSIONS, QUERIES = 1500, 50, 64, 10


@dataclass(frozen=True)
class Corpus:
    """Loaded vectors: document i has `group` i mod GROUPS and, every tenth, no vector at all under `bare-i`."""

    engine: Engine
    flat: str
    hnsw: str
    int8: str
    vectors: Vectors


@pytest.fixture(scope="module")
def corpus(engine_url: str) -> Iterator[Corpus]:
    vectors = random_vectors(COUNT, DIMENSIONS)
    with open_engine(engine_url) as engine:
        types = [each for each in ("flat", "hnsw", "int8_hnsw") if each in supported_index_types(engine.info)]
        names = {index_type: f"test-{uuid.uuid4().hex[:12]}" for index_type in types}
        for index_type, name in names.items():
            request = FieldRequest("v", "f" * 32, "random", DIMENSIONS, index_type=index_type)
            ensure_vector_field(engine, name, request, shards=2, replicas=0)
            load(engine, name, "v", vectors, lambda number: {"group": number % GROUPS, "title": f"document {number}"})
            engine.bulk(name, b'{"index":{"_id":"bare"}}\n{"group":1,"title":"without a vector"}\n')
            engine.refresh(name)
        yield Corpus(engine, names.get("flat", ""), names["hnsw"], names["int8_hnsw"], vectors)
        for name in names.values():
            ask(engine, "DELETE", f"/{name}")


@pytest.fixture
def flat(corpus: Corpus) -> SemanticIndex:
    return SemanticIndex(corpus.flat, corpus.engine, vector_field="v")


@pytest.fixture
def hnsw(corpus: Corpus) -> SemanticIndex:
    return SemanticIndex(corpus.hnsw, corpus.engine, vector_field="v")


def best(query: Vectors, corpus: Corpus, k: int, group: int | None = None) -> list[tuple[str, float]]:
    """Brute force: ids and cosines of the k nearest vectors."""
    similar = cosines(query, corpus.vectors)
    order = [int(i) for i in np.argsort(-similar) if group is None or i % GROUPS == group][:k]
    return [(str(i), float(similar[i])) for i in order]


@on_every_version
def test_knn_cosines_match_numpy(corpus: Corpus, hnsw: SemanticIndex) -> None:
    for query in random_vectors(QUERIES, DIMENSIONS, seed=2):
        similar = cosines(query, corpus.vectors)
        result = hnsw.search_vector(query, 10)
        assert result.method is SearchMethod.KNN
        assert [hit.cosine for hit in result] == pytest.approx([similar[int(hit.id)] for hit in result], abs=1e-5)
        assert [hit.cosine for hit in result] == sorted((hit.cosine for hit in result), reverse=True)


@also_es8
def test_quantized_index_returns_exact_cosines(corpus: Corpus) -> None:
    """The engines' own int8 estimates are off by up to 0.08 on these vectors; rescored ones are not."""
    index = SemanticIndex(corpus.int8, corpus.engine, vector_field="v")
    for query in random_vectors(QUERIES, DIMENSIONS, seed=4):
        similar = cosines(query, corpus.vectors)
        result = index.search_vector(query, 10, num_candidates=COUNT)
        assert [hit.cosine for hit in result] == pytest.approx([similar[int(hit.id)] for hit in result], abs=1e-5)
        assert len({hit.id for hit in result} & {id for id, _ in best(query, corpus, 10)}) >= 8


@on_every_version
def test_exact_search_of_hnsw_index(corpus: Corpus, hnsw: SemanticIndex) -> None:
    query = random_vectors(1, DIMENSIONS, seed=5)[0]
    if not has_scripting(corpus.engine):
        with raises_as_recorded(FeatureMissing) as caught:
            hnsw.search_vector(query, 10, exact=True)
        assert caught.value.module == "lang-painless"
        return
    result = hnsw.search_vector(query, 10, exact=True)
    expected = best(query, corpus, 10)
    assert result.method is SearchMethod.EXACT
    assert [hit.id for hit in result] == [id for id, _ in expected]
    assert [hit.cosine for hit in result] == pytest.approx([cosine for _, cosine in expected], abs=1e-5)


def has_scripting(engine: Engine) -> bool:
    """False on the integration-test build of Elasticsearch 9, which comes without painless."""
    nodes = ask(engine, "GET", "/_nodes/plugins", {"filter_path": "nodes.*.modules.name"})["nodes"].values()
    return all("lang-painless" in {module["name"] for module in node["modules"]} for node in nodes)


@pytest.mark.parametrize("name", ["flat", "hnsw"])
def test_filter_is_applied_before_top_k(corpus: Corpus, name: str, request: pytest.FixtureRequest) -> None:
    """30 of 1,500 documents pass: a filter applied after the search would leave almost nothing of the 30 nearest."""
    index: SemanticIndex = request.getfixturevalue(name)
    query = random_vectors(1, DIMENSIONS, seed=7)[0]
    result = index.search_vector(query, 30, filter={"term": {"group": 1}})
    expected = best(query, corpus, 30, group=1)
    assert [hit.id for hit in result] == [id for id, _ in expected]
    assert all(hit.source.keys() == {"group", "title"} and hit.source["group"] == 1 for hit in result)


def test_documents_without_vector_are_not_found(corpus: Corpus, flat: SemanticIndex, hnsw: SemanticIndex) -> None:
    query = random_vectors(1, DIMENSIONS, seed=8)[0]
    in_group = {"term": {"group": 1}}
    with_vector = {"bool": {"filter": [in_group, {"exists": {"field": "v"}}]}}
    searches: list[tuple[SemanticIndex, Any]] = [
        (hnsw, {"filter": in_group}),
        (flat, {"filter": in_group, "min_cosine": -0.99}),
        (flat, {"filter": with_vector}),
    ]
    if corpus.engine.info.label != "Elasticsearch 9.4.3":  # which finds them in a flat index
        searches.append((flat, {"filter": in_group}))
    for index, options in searches:
        result = index.search_vector(query, 100, **options)
        assert len(result) == 30
        assert "bare" not in {hit.id for hit in result}
