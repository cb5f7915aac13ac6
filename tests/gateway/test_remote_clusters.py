"""Semantic queries on indices of remote clusters are refused by name; other searches on them pass through unchanged."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from tests.conftest import free_port
from tests.gateway import patient
from tests.gateway.conftest import loaded_index, tiny_gateway
from tests.gateway.test_semantic_search import documents
from tests.shared import alone_on_engines, folder_of_run

pytestmark = pytest.mark.engine  # servers are requested while the tests run, which the fixtures do not show

QUERY = "the cat sleeps"
SEMANTIC: Json = {"match": {"semantic": QUERY}}
WORDS: Json = {"match": {"text": QUERY}}


@dataclass(frozen=True)
class Clusters:
    """A cluster that is its own remote cluster, with a gateway before it.

    Attributes:
        engine, gateway: Addresses.
        near: An index with vectors.
        far: The same index, by its name in the remote cluster.
        away: An index of a remote cluster that does not respond and may be skipped.
    """

    engine: str
    gateway: str
    near: str
    far: str
    away: str

    def send(self, expression: str, query: Json, api: str = "_search", mode: str = "on") -> httpx.Response:
        return patient.post(f"{self.gateway}/{expression}/{api}", json={"query": query}, headers={"X-Es-Sbert": mode})

    def direct(self, expression: str, query: Json) -> Json:
        hits: Json = patient.post(f"{self.engine}/{expression}/_search", json={"query": query}).json()["hits"]
        return hits

    def refusal(self, expression: str, query: Json, api: str = "_search", mode: str = "on") -> str:
        """Reason of a refusal in the engine's format."""
        answer = self.send(expression, query, api, mode)
        assert answer.status_code == 400, answer.text
        error = answer.json()
        assert (error["status"], error["error"]["root_cause"][0]["type"]) == (400, error["error"]["type"])
        reason: str = error["error"]["reason"]
        return reason


@pytest.fixture(scope="module", params=["es9", "opensearch"])
def clusters(
    request: pytest.FixtureRequest, tiny: Path, tiny_encoder: Encoder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clusters]:
    engine: str = request.getfixturevalue(f"{request.param}_url")
    unique = uuid.uuid4().hex[:12]
    with ExitStack() as stack:
        stack.enter_context(alone_on_engines(folder_of_run(tmp_path_factory)))  # settings of the cluster are changed
        [node] = patient.get(f"{engine}/_nodes/_local").json()["nodes"].values()
        names = {f"far{unique}": node["transport_address"], f"away{unique}": f"127.0.0.1:{free_port()}"}
        stack.callback(connect_clusters, engine, dict.fromkeys(names))
        connect_clusters(engine, names)
        near = stack.enter_context(loaded_index(engine, tiny_encoder, documents()))
        gateway = stack.enter_context(tiny_gateway(engine, tiny, k=7))
        yield Clusters(engine, gateway, near, f"far{unique}:{near}", f"away{unique}:docs")


def connect_clusters(url: str, addresses: dict[str, str | None]) -> None:
    """Name remote clusters, or forget them. An answer without them is complete for the engine (`skip_unavailable`)."""
    settings: Json = {}
    for name, address in addresses.items():
        settings[f"cluster.remote.{name}.skip_unavailable"] = None if address is None else True
        settings[f"cluster.remote.{name}.seeds"] = None if address is None else [address]
    answer = patient.put(f"{url}/_cluster/settings", json={"persistent": settings})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "query",
    [
        SEMANTIC,
        {"bool": {"must_not": [SEMANTIC]}},
        {"knn": {"field": "embedding", "k": 3, "query_vector_builder": {"text_embedding": {"model_text": QUERY}}}},
        {"neural": {"embedding": {"query_text": QUERY, "k": 3}}},
    ],
)
def test_semantic_query_on_a_remote_index_is_refused_by_name(clusters: Clusters, query: Json) -> None:
    for expression in (clusters.far, f"{clusters.near},{clusters.far}", f"{clusters.near},*:docs", clusters.away):
        reason = clusters.refusal(expression, query)
        assert expression.removeprefix(f"{clusters.near},") in reason
        assert "a gateway of each cluster" in reason


def test_other_search_apis_refuse_semantic_queries_on_a_remote_index(clusters: Clusters) -> None:
    expression = f"{clusters.near},{clusters.far}"
    assert clusters.far in clusters.refusal(expression, SEMANTIC, "_count")
    lines: list[Json] = [{"index": [clusters.near, clusters.far]}, {"query": SEMANTIC}, {}, {"query": SEMANTIC}]
    content = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    answer = patient.post(
        f"{clusters.gateway}/{clusters.near}/_msearch",
        content=content,
        headers={"content-type": "application/x-ndjson"},
    )
    both, near = answer.json()["responses"]
    assert (both["status"], near["status"]) == (400, 200)
    assert clusters.far in both["error"]["reason"]

    opened = patient.post(f"{clusters.gateway}/{clusters.far}/_pit?keep_alive=1m")
    if "x-elastic-product" not in opened.headers:  # OpenSearch
        opened = patient.post(f"{clusters.gateway}/{clusters.far}/_search/point_in_time?keep_alive=1m")
    assert opened.status_code == 200, opened.text
    pit = opened.json().get("id") or opened.json()["pit_id"]
    answer = patient.post(f"{clusters.gateway}/_search", json={"query": SEMANTIC, "pit": {"id": pit}})
    assert answer.status_code == 400, answer.text
    assert clusters.far in answer.json()["error"]["reason"]


def test_search_that_is_not_semantic_passes_through_unchanged(clusters: Clusters) -> None:
    words: Json = {"match": {"text": "a semantic cat"}}
    for expression in (clusters.far, f"{clusters.near},{clusters.far}", f"{clusters.near},{clusters.away}"):
        passed = clusters.send(expression, words).json()
        assert passed["hits"] == clusters.direct(expression, words)
        assert passed["hits"]["hits"]
    assert passed["_clusters"]["skipped"] == 1


def test_semantic_query_passes_through_with_the_mode_off(clusters: Clusters) -> None:
    answer = clusters.send(clusters.far, SEMANTIC, mode="off")
    assert (answer.status_code, answer.json()["hits"]["hits"]) == (200, [])


def test_query_that_would_become_hybrid_is_refused_with_a_remote_index(clusters: Clusters) -> None:
    expression = f"{clusters.near},{clusters.far}"
    for query in (WORDS, {"multi_match": {"query": QUERY, "fields": ["te*"]}}):
        reason = clusters.refusal(expression, query, mode="hybrid")
        assert clusters.far in reason
        assert "X-Es-Sbert: on" in reason
    assert clusters.send(expression, WORDS, mode="on").json()["hits"] == clusters.direct(expression, WORDS)


def test_full_text_query_that_cannot_become_hybrid_here_passes_with_a_remote_index(clusters: Clusters) -> None:
    both, phrase = f"{clusters.near},{clusters.far}", {"match_phrase": {"text": "the cat"}}
    for expression, query in ((clusters.far, WORDS), (both, {"match": {"lang": "en"}}), (both, phrase)):
        answer = clusters.send(expression, query, mode="hybrid")
        assert answer.status_code == 200, answer.text
        assert answer.json()["hits"] == clusters.direct(expression, query)
        assert answer.json()["hits"]["hits"]
