"""ES|QL through the gateway: the vectors that the engine gets, and what passes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import BadRequestError, Elasticsearch

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from es_sbert.gateway.settings import SearchLogSettings
from tests.engine.ingest_support import wait_until
from tests.gateway.bed import Bed, bed_of, ids
from tests.gateway.esql_front import EsqlFront
from tests.gateway.serving import served

TEXTS = ["the cat sleeps on the mat", "a man plays guitar", "the guitar sleeps", "a cat plays with a man"]
DOCUMENTS = [{"id": str(number), "text": text, "tag": "ab"[number % 2]} for number, text in enumerate(TEXTS)]
TEXT = "the cat plays"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "searches.jsonl"


@pytest.fixture(scope="module")
def front(es9_url: str) -> EsqlFront:
    return EsqlFront(es9_url)


@pytest.fixture(scope="module")
def bed(es9_url: str, front: EsqlFront, log: Path, tiny: Path, tiny_encoder: Encoder) -> Iterator[Bed]:
    settings: Any = {"k": 3, "search_log": SearchLogSettings(path=log, log_queries=False, gateway="g")}
    with (
        served(front.app()) as address,
        bed_of(es9_url, tiny, tiny_encoder, DOCUMENTS, front=address, **settings) as bed,
    ):
        yield bed


def rows(bed: Bed, query: str, path: str = "/_query", **body: Any) -> list[Any]:
    answer = bed.gateway.post(path, json={"query": query.replace("docs", bed.index), **body})
    assert answer.status_code == 200, answer.text
    values: list[Any] = answer.json()["values"]
    return values


def expected(bed: Bed, query: Json, size: int = 3) -> list[Any]:
    hits = bed.search({"query": query, "size": size})["hits"]["hits"]
    return [[hit["_id"], pytest.approx(hit["_score"])] for hit in hits]


SEMANTIC: Json = {"match": {"semantic": TEXT}}
IN_A: Json = {"bool": {"must": SEMANTIC, "filter": {"match": {"tag": "a"}}}}


@pytest.mark.parametrize(
    ("condition", "params", "query"),
    [
        (f'MATCH(semantic, "{TEXT}")', [], SEMANTIC),
        (f'semantic : """{TEXT}"""', [], SEMANTIC),
        ('KNN(embedding, ?q, {"min_candidates": 100})', [{"q": TEXT}], SEMANTIC),
        ("MATCH(semantic.embedding, ?1)", [TEXT], SEMANTIC),
        (f'MATCH(semantic, "{TEXT}") AND tag == "a"', [], IN_A),
        (
            'MATCH(semantic, ?q, {"k": 2, "min_cosine": 0.1, "boost": 3.0})',
            [{"q": TEXT}],
            {"match": {"semantic": {"query": TEXT, "k": 2, "min_cosine": 0.1, "boost": 3.0}}},
        ),
    ],
)
def test_engine_gets_the_vector_of_the_text(bed: Bed, condition: str, params: list[Any], query: Json) -> None:
    esql = f"FROM docs METADATA _id, _score | WHERE {condition} | SORT _score DESC | LIMIT 3"
    assert rows(bed, esql, params=params) == expected(bed, query)
    assert rows(bed, esql, "/_query/async?drop_null_columns=true", params=params) == expected(bed, query)


def test_client_finds_the_same_through_an_alias(bed: Bed) -> None:
    alias = f"{bed.index}-alias"
    bed.engine.put(f"/{bed.index}/_alias/{alias}").raise_for_status()
    with Elasticsearch(str(bed.gateway.base_url)) as client:
        esql = f"FROM {alias}, missing-* METADATA _id, _score | WHERE MATCH(semantic, ?text) | LIMIT 2"
        found = client.esql.query(query=esql.replace(", missing-*", ""), params=[{"text": TEXT}])
        assert found["values"] == expected(bed, SEMANTIC, 2)
        with pytest.raises(BadRequestError, match="semantic field, outside of MATCH"):
            client.esql.query(query=f"FROM {alias} | SORT semantic")
        with pytest.raises(BadRequestError, match="does not support semantic queries"):
            client.esql.query(query=f'FROM {bed.index} | WHERE KQL("semantic: cat")')


@pytest.mark.parametrize(
    "body",
    [
        b'{"query" : "FROM docs | WHERE text : \\"semantic\\" | LIMIT 1", "filter": {"bool": {"filter": []}}}',
        b'{"query":"FROM docs // MATCH(semantic, \\"x\\")\\n| LIMIT 1" }',
        b'{"query":"FROM missing | WHERE MATCH(semantic, \\"x\\") | LIMIT 1" }',
        b'{"query":"FROM docs | WHERE KNN(embedding, [1.0, 2.0]) | KEEP x","params":[1.10]}',
    ],
)
def test_other_queries_pass_byte_for_byte(bed: Bed, front: EsqlFront, body: bytes) -> None:
    body = body.replace(b"docs", bed.index.encode())
    bed.gateway.post("/_query", content=body, headers={"content-type": "application/json"})
    assert front.received[-1] == body
    semantic = f'{{"query": "FROM {bed.index} | WHERE MATCH(semantic, \\"x\\")" }}'.encode()
    headers = {"content-type": "application/json", "x-es-sbert": "off"}
    bed.gateway.post("/_query", content=semantic, headers=headers)
    assert front.received[-1] == semantic


def test_semantic_queries_are_logged_and_measured(bed: Bed, log: Path) -> None:
    def requests() -> float:
        lines = bed.gateway.get("/metrics").text.splitlines()
        counted = 'es_sbert_gateway_requests_total{kind="search",'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(counted))

    def logged() -> list[Json]:
        records = [json.loads(line) for line in log.read_text().splitlines()]
        return [
            record
            for record in records
            if (record["api"] == "_query" and record["kind"] != "semantic") or record.get("k") == 1
        ]

    before = requests()
    rows(bed, "FROM docs | LIMIT 1")
    rows(bed, f'FROM docs | WHERE MATCH(semantic, "{TEXT}", {{"k": 1}}) | LIMIT 1')
    wait_until(lambda: logged() != [])  # the gateway writes in another thread
    [record] = logged()
    assert (record["index"], record["kind"], record["status"]) == (bed.index, "semantic", 200)
    assert requests() == before + 2


@pytest.mark.parametrize("engine_url", ["es8", "opensearch"], indirect=True, scope="session")
def test_engine_without_knn(engine_url: str, tiny: Path, tiny_encoder: Encoder) -> None:
    with bed_of(engine_url, tiny, tiny_encoder, DOCUMENTS) as bed:
        query = {"query": f'FROM {bed.index} | WHERE MATCH(semantic, "x")'}
        plain = {"query": f"FROM {bed.index}"}
        refused, passed = bed.gateway.post("/_query", json=query), bed.gateway.post("/_query", json=plain)
        assert passed.status_code == bed.engine.post("/_query", json=plain).status_code
        if bed.is_opensearch:
            assert refused.text == bed.engine.post("/_query", json=query).text
        else:
            assert refused.status_code == 400
            assert "ES|QL of Elasticsearch 8." in refused.text
            assert ids(bed.search({"query": SEMANTIC}))
