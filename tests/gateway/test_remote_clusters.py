"""Semantic queries on indices of a remote cluster, through the gateway of the cluster that connects to it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.local import start_engine, stop_engine
from es_sbert.engines.rest import Json
from es_sbert.gateway.app import create_app
from es_sbert.gateway.settings import GatewaySettings, SemanticSettings
from es_sbert.index.index_options import request_vector_field
from es_sbert.index.vector_field import ensure_vector_field
from tests.conftest import build_of, delete_index, free_port
from tests.engine.ingest_support import load, write_jsonl
from tests.engine.secured import Secured
from tests.gateway import patient
from tests.gateway.conftest import tiny_settings
from tests.gateway.serving import served
from tests.gateway.test_search_privileges import owner
from tests.gateway.test_semantic_search import documents, scores
from tests.memory import folder_in_memory
from tests.shared import alone_on_engines, folder_of_run
from tests.tiny import write_tiny_bert

K = 7
QUERY = "the cat sleeps"
SEMANTIC: Json = {"query": {"match": {"semantic": QUERY}}, "size": 50}
# A cluster at whose address nothing listens.
AWAY = "away"


@dataclass
class Clusters:
    """Two clusters, of which the first knows the second as `far`, with a gateway before the first.

    Half of the documents are in `near`, an index of the first, the others in `far`, an index of the second.
    """

    near_url: str
    far_url: str
    gateway: str
    prefix: str
    tiny: Path
    encoder: Encoder
    folder: Path
    made: list[tuple[str, str]] = field(default_factory=list)

    def index(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def load(self, url: str, name: str, docs: list[Json], encoder: Encoder | None = None, **options: Any) -> str:
        """Load documents into a new index; its name."""
        index = self.index(name)
        self.made.append((url, index))
        file = write_jsonl(self.folder / f"{name}-{len(self.made)}.jsonl", docs)
        load(url, encoder or self.encoder, index, file, dead=self.folder / "dead", id_field="id", **options)
        return index

    def send(self, expression: str, body: Json, api: str = "_search", **headers: str) -> httpx.Response:
        return patient.post(f"{self.gateway}/{expression}/{api}", json=body, headers=headers)

    def search(self, expression: str, body: Json = SEMANTIC) -> Json:
        answer = self.send(expression, body)
        assert answer.status_code == 200, answer.text
        return orjson.loads(answer.content)  # type: ignore[no-any-return]

    def refusal(self, expression: str, body: Json = SEMANTIC, **headers: str) -> tuple[int, str]:
        """Status and reason of an error in the engine's format."""
        answer = self.send(expression, body, **headers)
        assert answer.status_code >= 400, answer.text
        error = answer.json()
        assert error["status"] == answer.status_code
        assert error["error"]["root_cause"][0]["type"] == error["error"]["type"]
        return answer.status_code, error["error"]["reason"]

    @property
    def near(self) -> str:
        return self.index("near")

    @property
    def far(self) -> str:
        return f"far:{self.index('far')}"

    def nearest(self, docs: list[Json], count: int = K) -> list[float]:
        """The scores that the nearest of these documents must have, best first."""
        vectors = self.encoder.encode([each["text"] for each in docs], "document")  # (documents, dimensions)
        [query] = self.encoder.encode([QUERY], "query")
        return [(1 + cosine) / 2 for cosine in sorted(map(float, vectors @ np.asarray(query)), reverse=True)[:count]]


HALF = documents()[::2], documents()[1::2]


@pytest.fixture(scope="module", params=["es9", "opensearch"])
def clusters(
    request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clusters]:
    near_url: str = request.getfixturevalue(f"{request.param}_url")
    with ExitStack() as stack:
        stack.enter_context(alone_on_engines(folder_of_run(tmp_path_factory)))  # settings of the cluster are changed
        data = stack.enter_context(folder_in_memory())
        settings = {"path.data": str(data)} if data else {}
        server = start_engine(build_of(request.param), port=free_port(), heap="512m", timeout=600, settings=settings)
        stack.callback(stop_engine, server, purge=True)
        nodes = patient.get(f"{server.url}/_nodes/_local").json()["nodes"]
        [address] = [node["transport_address"] for node in nodes.values()]
        stack.callback(connect_clusters, near_url, far=None, away=None)
        connect_clusters(near_url, far=address, away=f"127.0.0.1:{free_port()}")
        encoder = stack.enter_context(Encoder(str(tiny), device="cpu", precision="fp32", threads=1))
        gateway = stack.enter_context(
            served(
                create_app(
                    GatewaySettings(
                        upstream=EngineSettings(url=near_url),
                        models=tiny_settings(tiny),
                        semantic=SemanticSettings(k=K, num_candidates=100),
                    )
                )
            )
        )
        made = Clusters(
            near_url,
            server.url,
            gateway,
            f"test-{uuid.uuid4().hex[:12]}",
            tiny,
            encoder,
            tmp_path_factory.mktemp("remote"),
        )
        stack.callback(lambda: [delete_index(url, index) for url, index in made.made])
        made.load(near_url, "near", HALF[0])
        made.load(server.url, "far", HALF[1])
        yield made


def connect_clusters(url: str, **addresses: str | None) -> None:
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
        {"match": {"semantic": QUERY}},
        {"query_string": {"query": f'semantic:"{QUERY}"'}},
        {"semantic": {"field": "embedding", "query": QUERY}},
        {"term": {"semantic": QUERY}},
    ],
)
def test_nearest_documents_of_both_clusters_are_found(clusters: Clusters, query: Json) -> None:
    remote = clusters.search(clusters.far, {"query": query, "size": 50})
    assert scores(remote) == pytest.approx(clusters.nearest(HALF[1]), abs=1e-5)
    assert {hit["_index"] for hit in remote["hits"]["hits"]} == {clusters.far}

    both = clusters.search(f"{clusters.near},{clusters.far}", {"query": query, "size": 50})
    assert scores(both) == pytest.approx(clusters.nearest(documents()), abs=1e-5)
    assert {hit["_index"] for hit in both["hits"]["hits"]} == {clusters.near, clusters.far}


def test_patterns_of_cluster_and_index_names_are_resolved(clusters: Clusters) -> None:
    near, far = clusters.nearest(HALF[0]), clusters.nearest(HALF[1])
    for expression, expected in (
        (f"far:{clusters.prefix}-fa*", far),
        (f"f*:{clusters.index('far')}", far),
        (f"{clusters.prefix}-no*,{clusters.far}", far),
        (f"{clusters.near},far:{clusters.prefix}-no*", near),
    ):
        assert scores(clusters.search(expression)) == pytest.approx(expected, abs=1e-5), expression


def test_pattern_of_no_cluster_finds_what_the_engine_searches(clusters: Clusters, tiny: Path) -> None:
    """All local indices, or on OpenSearch, in a cluster that knows no other, none."""
    settings = GatewaySettings(
        upstream=EngineSettings(url=clusters.far_url), models=tiny_settings(tiny), semantic=SemanticSettings(k=K)
    )
    with served(create_app(settings)) as url:
        every = patient.post(f"{url}/_all/_search", json=SEMANTIC).json()
        assert scores(every) == pytest.approx(clusters.nearest(HALF[1]), abs=1e-5)
        for expression in ("*:docs", "no*:docs,*:*"):
            searched = patient.post(f"{clusters.far_url}/{expression}/_search", json={"size": 1}).json()
            found = patient.post(f"{url}/{expression}/_search", json=SEMANTIC).json()
            assert scores(found) == (scores(every) if searched["hits"]["hits"] else [])
        named = patient.post(f"{url}/{clusters.index('far')},*:docs/_search", json=SEMANTIC).json()
        assert scores(named) == pytest.approx(clusters.nearest(HALF[1]), abs=1e-5)


def test_filter_applies_during_the_search_in_both_clusters(clusters: Clusters) -> None:
    english: Json = {"term": {"lang.keyword": "en"}}
    body: Json = {"query": {"bool": {"must": [SEMANTIC["query"]], "filter": [english]}}, "size": 50}
    found = clusters.search(f"{clusters.near},{clusters.far}", body)
    expected = clusters.nearest([each for each in documents() if each["lang"] == "en"])
    assert scores(found) == pytest.approx(expected, abs=1e-5)


def test_remote_indices_of_other_types_and_with_passages_are_searched(clusters: Clusters) -> None:
    for kind in ("flat", "int8_hnsw"):
        index = clusters.load(clusters.far_url, kind, HALF[1], index_type=kind)
        expected = clusters.nearest(HALF[1])
        assert scores(clusters.search(f"far:{index}")) == pytest.approx(expected, abs=1e-5), kind
        both = scores(clusters.search(f"{clusters.near},far:{index}"))
        assert both == pytest.approx(clusters.nearest(documents()), abs=1e-5), kind
    index = clusters.load(clusters.far_url, "passages", HALF[1], passages=("16",))
    assert scores(clusters.search(f"far:{index}")) == pytest.approx(clusters.nearest(HALF[1]), abs=1e-5)
    assert "one per chunk" in clusters.refusal(f"{clusters.near},far:{index}")[1]


def test_native_queries_on_a_flat_remote_index_keep_k_documents(clusters: Clusters) -> None:
    index = clusters.load(clusters.far_url, "native-flat", HALF[1], index_type="flat")
    knn: Json = {"field": "embedding", "k": K, "num_candidates": 50}
    knn["query_vector_builder"] = {"text_embedding": {"model_text": QUERY}}
    found = clusters.search(f"far:{index}", {"query": {"knn": knn}, "size": 50})
    assert scores(found) == pytest.approx(clusters.nearest(HALF[1]), abs=1e-5)


def test_count_msearch_and_point_in_time_include_the_remote(clusters: Clusters) -> None:
    expression = f"{clusters.near},{clusters.far}"
    assert clusters.send(expression, {"query": SEMANTIC["query"]}, "_count").json()["count"] == K

    lines: list[Json] = [{"index": [clusters.near, clusters.far]}, SEMANTIC, {"index": f"{AWAY}:docs"}, SEMANTIC]
    answer = patient.post(
        f"{clusters.gateway}/_msearch",
        content=b"".join(orjson.dumps(line) + b"\n" for line in lines),
        headers={"content-type": "application/x-ndjson"},
    )
    both, away = answer.json()["responses"]
    assert scores(both) == pytest.approx(clusters.nearest(documents()), abs=1e-5)
    assert away["status"] == 502
    assert f"{AWAY}:docs" in away["error"]["reason"]

    opened = patient.post(f"{clusters.gateway}/{expression}/_pit?keep_alive=1m")
    if opened.status_code != 200:  # OpenSearch
        opened = patient.post(f"{clusters.gateway}/{expression}/_search/point_in_time?keep_alive=1m")
    pit = opened.json().get("id") or opened.json()["pit_id"]
    answer = patient.post(f"{clusters.gateway}/_search", json={**SEMANTIC, "pit": {"id": pit}})
    assert scores(answer.json()) == pytest.approx(clusters.nearest(documents()), abs=1e-5), answer.text


def test_remote_indices_of_another_model_are_refused_by_name(
    clusters: Clusters, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_tiny_bert(tmp_path_factory.mktemp("other") / "tiny", seed=7)
    with Encoder(str(folder), precision="fp32", threads=1) as other:
        index = clusters.load(clusters.far_url, "far-other", HALF[1], other)
    status, reason = clusters.refusal(f"{clusters.near},far:{index}")
    assert status == 400
    assert f"another model in far:{index}" in reason
    status, reason = clusters.refusal(f"far:{clusters.prefix}-far*")
    assert status == 400
    assert f"several models in far:{clusters.prefix}-far*" in reason


def test_remote_vectors_of_an_unknown_model_are_refused_by_name(clusters: Clusters) -> None:
    index = clusters.load(clusters.far_url, "unknown", HALF[1])
    vector = clusters.encoder.encode("the cat").tolist()
    document = {"text": "the cat", "embedding": vector}
    assert patient.put(f"{clusters.far_url}/{index}/_doc/x?refresh=true", json=document).status_code == 201
    status, reason = clusters.refusal(f"far:{index}")
    assert status == 400
    assert f"far:{index}" in reason
    assert "do not record the model" in reason


def test_cluster_that_does_not_respond_is_refused_by_name(clusters: Clusters) -> None:
    """The engine would answer without it, and such an answer looks complete."""
    for expression in (f"{AWAY}:docs", f"{clusters.near},{AWAY}:docs", f"{clusters.near},*:docs"):
        status, reason = clusters.refusal(expression)
        assert status == 502, reason
        assert expression.rpartition(",")[2] in reason
        assert "_remote/info" in reason


def test_search_that_is_not_semantic_passes_through_without_the_remote(clusters: Clusters) -> None:
    body: Json = {"query": {"match": {"text": "a semantic cat"}}, "size": 50}
    direct = patient.post(f"{clusters.near_url}/{clusters.near},{AWAY}:docs/_search", json=body).json()
    passed = clusters.search(f"{clusters.near},{AWAY}:docs", body)
    assert passed["hits"] == direct["hits"]
    assert passed["_clusters"]["skipped"] == 1


def test_hybrid_query_that_would_lack_the_remote_is_refused_by_name(clusters: Clusters) -> None:
    body: Json = {"query": {"match": {"text": QUERY}}, "size": 50}
    hybrid = {"X-Es-Sbert": "hybrid"}
    status, reason = clusters.refusal(f"{clusters.near},{clusters.far}", body, **hybrid)
    assert status == 400
    assert clusters.far in reason
    # Without vectors in the remote index there is nothing that could be missing.
    words = clusters.index("words")
    clusters.made.append((clusters.far_url, words))
    patient.put(f"{clusters.far_url}/{words}/_doc/1?refresh=true", json={"text": "the cat"})
    answer = clusters.send(f"{clusters.near},far:{words}", body, **hybrid)
    assert answer.status_code == 200, answer.text
    assert f"far:{words}" in {hit["_index"] for hit in answer.json()["hits"]["hits"]}
    assert "have no vector field" in clusters.refusal(f"far:{words}")[1]


def test_missing_remote_index_is_reported(clusters: Clusters) -> None:
    status, reason = clusters.refusal(f"{clusters.near},far:{clusters.index('missing')}")
    assert status in (404, 502)
    assert clusters.index("missing") in reason


@pytest.mark.usefixtures("alone_on_engines")
@pytest.mark.parametrize("versions", ["2 before 3", "3 before 2"])
def test_semantic_queries_between_opensearch_2_and_3_are_refused(
    versions: str, opensearch2_url: str, opensearch_url: str, tiny: Path, tmp_path: Path
) -> None:
    """Their kNN queries differ: the cluster would be left out of the answer."""
    urls = [opensearch2_url, opensearch_url]
    near_url, far_url = urls if versions == "2 before 3" else reversed(urls)
    [node] = patient.get(f"{far_url}/_nodes/_local").json()["nodes"].values()
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    settings = GatewaySettings(upstream=EngineSettings(url=near_url), models=tiny_settings(tiny))
    with ExitStack() as stack:
        encoder = stack.enter_context(Encoder(str(tiny), device="cpu", precision="fp32", threads=1))
        stack.callback(connect_clusters, near_url, other=None)
        connect_clusters(near_url, other=node["transport_address"])
        clusters = Clusters(
            near_url, far_url, stack.enter_context(served(create_app(settings))), prefix, tiny, encoder, tmp_path
        )
        stack.callback(lambda: [delete_index(url, index) for url, index in clusters.made])
        near, far = clusters.load(near_url, "near", HALF[0]), f"other:{clusters.load(far_url, 'far', HALF[1])}"
        words = clusters.index("words")
        clusters.made.append((far_url, words))
        patient.put(f"{far_url}/{words}/_doc/1?refresh=true", json={"text": "the cat"})
        for expression in (far, f"{near},{far}", f"{near},other:{words}"):
            status, reason = clusters.refusal(expression)
            assert status == 400
            assert "OpenSearch 2 and 3 do not understand each other's" in reason
        lexical = clusters.search(f"{near},{far}", {"query": {"match": {"text": "cat"}}, "size": 50})
        assert {hit["_index"] for hit in lexical["hits"]["hits"]} == {near, far}
        assert scores(clusters.search(near)) == pytest.approx(clusters.nearest(HALF[0], len(HALF[0])), abs=1e-5)


@pytest.fixture(scope="module")
def own_remote(secured_es8: Secured, tiny: Path) -> Iterator[Secured]:
    """A server with users that is its own remote cluster, `self`, with one document in `remote-shelf`."""
    with Encoder(str(tiny), device="cpu", precision="fp32", threads=1) as encoder:
        [vector] = encoder.encode(["the cat"], "document")
        engine = connect(owner(secured_es8))
        try:
            ensure_vector_field(engine, "remote-shelf", request_vector_field(encoder, text_template="{text}"))
        finally:
            engine.close()
        document = {"text": "the cat", "embedding": vector.tolist()}
        document["embedding_meta"] = {"fingerprint": encoder.info.fingerprint}
    secured_es8.ask("PUT", "/remote-shelf/_doc/1?refresh=true", document)
    [node] = secured_es8.ask("GET", "/_nodes/_local")["nodes"].values()
    seeds = "cluster.remote.self.seeds"
    secured_es8.ask("PUT", "/_cluster/settings", {"persistent": {seeds: [node["transport_address"]]}})
    yield secured_es8
    secured_es8.ask("PUT", "/_cluster/settings", {"persistent": {seeds: None}})
    secured_es8.ask("DELETE", "/remote-shelf")


@pytest.mark.parametrize("allowed", [True, False])
def test_remote_indices_are_read_with_the_rights_of_the_caller(own_remote: Secured, tiny: Path, allowed: bool) -> None:
    """The gateway itself may do all. What the caller may not search, neither the model nor a text is looked up for."""
    key = own_remote.api_key(index={"remote-shelf" if allowed else "another": ["read"]})
    settings = GatewaySettings(upstream=owner(own_remote), models=tiny_settings(tiny), semantic=SemanticSettings(k=1))
    with served(create_app(settings)) as url:
        answer = patient.post(
            f"{url}/self:remote-shelf/_search", json=SEMANTIC, headers={"authorization": f"ApiKey {key}"}
        )
        embedded = patient.get(f"{url}/metrics").text
    if allowed:
        assert [hit["_index"] for hit in answer.json()["hits"]["hits"]] == ["self:remote-shelf"], answer.text
    else:
        assert answer.status_code == 403, answer.text
        assert "self:remote-shelf" in answer.json()["error"]["reason"]
    assert ('es_sbert_gateway_vectors_total{source="model"} 1.0' in embedded) is allowed, embedded
