"""Semantic queries on indices of remote clusters are refused by name; other searches on them pass through unchanged."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from tests.conftest import free_port
from tests.gateway import patient
from tests.gateway.bed import Bed, bed_of
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
        near: An index with vectors.
        far: The same index, by its name in the remote cluster.
        away: An index of a remote cluster that does not respond and may be skipped.
    """

    bed: Bed
    near: str
    far: str
    away: str

    def hits(self, expression: str, query: Json, mode: str) -> Json:
        """What the gateway finds, which is what the engine itself finds."""
        answer = self.bed.search({"query": query}, index=expression, mode=mode)
        assert answer["hits"] == self.bed.direct({"query": query}, index=expression)["hits"]
        return answer

    def refusal(self, expression: str, query: Json, api: str = "_search", mode: str = "on") -> str:
        """Reason of a refusal in the engine's format."""
        answer = self.bed.post({"query": query}, api, index=expression, mode=mode)
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
        bed = stack.enter_context(bed_of(engine, tiny, tiny_encoder, documents(), k=7))
        yield Clusters(bed, bed.index, f"far{unique}:{bed.index}", f"away{unique}:docs")


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
    assert clusters.far in clusters.refusal(f"{clusters.near},{clusters.far}", SEMANTIC, "_count")
    several = {"index": [clusters.near, clusters.far]}
    both, near = clusters.bed.msearch(several, {"query": SEMANTIC}, {}, {"query": SEMANTIC})
    assert (both["status"], near["status"]) == (400, 200)
    assert clusters.far in both["error"]["reason"]
    pit = {"id": clusters.bed.point_in_time(clusters.far)}
    answer = clusters.bed.gateway.post("/_search", json={"query": SEMANTIC, "pit": pit})
    assert (answer.status_code, clusters.far in answer.json()["error"]["reason"]) == (400, True)


def test_search_that_is_not_semantic_passes_through_unchanged(clusters: Clusters) -> None:
    words: Json = {"match": {"text": "a semantic cat"}}
    for expression in (clusters.far, f"{clusters.near},{clusters.far}", f"{clusters.near},{clusters.away}"):
        passed = clusters.hits(expression, words, "on")
        assert passed["hits"]["hits"]
    assert passed["_clusters"]["skipped"] == 1
    assert clusters.hits(clusters.far, SEMANTIC, "off")["hits"]["hits"] == []


def test_query_that_would_become_hybrid_is_refused_with_a_remote_index(clusters: Clusters) -> None:
    both, phrase = f"{clusters.near},{clusters.far}", {"match_phrase": {"text": "the cat"}}
    for query in (WORDS, {"multi_match": {"query": QUERY, "fields": ["te*"]}}):
        reason = clusters.refusal(both, query, mode="hybrid")
        assert clusters.far in reason
        assert "X-Es-Sbert: on" in reason
    clusters.hits(both, WORDS, "on")
    for expression, other in ((clusters.far, WORDS), (both, {"match": {"lang": "en"}}), (both, phrase)):
        assert clusters.hits(expression, other, "hybrid")["hits"]["hits"]
