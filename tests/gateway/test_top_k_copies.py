"""The search and the one for the cosine of its k-th document ask the same copies of the shards, as both must see the
same documents: copies are refreshed at different times."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from es_sbert.index.vector_field import ensure_vector_field, request_vector_field
from tests.conftest import delete_index
from tests.engine.ingest_support import open_engine
from tests.faulty_proxy import Exchange, FaultyProxy
from tests.gateway import patient
from tests.gateway.serving import gateway

BODY: Json = {"query": {"match": {"semantic": "the cat sleeps"}}}


@dataclass
class Recorder:
    """A gateway before an index of two shards, and the searches that arrive at the engine."""

    url: str
    index: str
    seen: list[Exchange]

    def post(self, path: str, **more: Any) -> httpx.Response:
        headers = {"accept-encoding": "identity", **more.pop("headers", {})}  # the proxy drops the encoding's name
        return patient.post(f"{self.url}{path}", headers=headers, **more)

    def search(self, api: str = "_search", body: Json = BODY, **params: str) -> list[str | None]:
        """The preference of each search that one request causes."""
        self.seen.clear()
        answer = self.post(f"/{self.index}/{api}", json=body, params=params)
        assert answer.status_code == 200, answer.text
        return [parse_qs(urlsplit(each.path).query).get("preference", [None])[0] for each in self._searches()]

    def msearch(self, header: Json) -> list[Any]:
        self.seen.clear()
        lines = patient.ndjson(header, BODY)
        answer = self.post(f"/{self.index}/_msearch", content=lines, headers=patient.NDJSON)
        assert answer.json()["responses"][0]["status"] == 200, answer.text
        [first, second] = self._searches()
        in_url = parse_qs(urlsplit(first.path).query).get("preference", [None])[0]
        return [in_url, orjson.loads(second.body.splitlines()[0]).get("preference")]

    def _searches(self) -> list[Exchange]:
        apis = ("/_search", "/_msearch", "/_count")
        return [each for each in self.seen if urlsplit(each.path).path.endswith(apis) and b"knn" in each.body]


@pytest.fixture(scope="module")
def recorder(es9_url: str, tiny: Path, tiny_encoder: Encoder) -> Iterator[Recorder]:
    index = f"test-{uuid.uuid4().hex[:12]}"
    with open_engine(es9_url) as engine:
        request = request_vector_field(tiny_encoder, text_template="{text}")
        ensure_vector_field(engine, index, request, shards=2, replicas=0)
    seen: list[Exchange] = []

    def record(exchange: Exchange) -> tuple[int, bytes]:
        seen.append(exchange)
        return exchange.forward()

    try:
        with FaultyProxy(es9_url, always=record, paths="") as proxy, gateway(proxy.url, tiny, k=3) as url:
            yield Recorder(url, index, seen)
    finally:
        delete_index(es9_url, index)


def test_searches_of_one_request_ask_the_same_copies_and_those_of_another_may_ask_others(recorder: Recorder) -> None:
    """Otherwise one copy of each shard would answer all searches."""
    asked = [recorder.search(), recorder.search(), recorder.search("_count"), recorder.msearch({})]
    for first, second in asked:
        assert first == second
    assert len({first for first, _ in asked} - {None}) == len(asked)


def test_preference_of_the_caller_is_kept(recorder: Recorder) -> None:
    assert recorder.search(preference="mine") == ["mine", "mine"]
    assert recorder.msearch({"preference": "mine"}) == ["mine", "mine"]


def test_search_without_a_cut_off_has_no_preference(recorder: Recorder) -> None:
    """The engine's own queries keep k documents of each shard."""
    neural: Json = {"query": {"neural": {"embedding": {"query_text": "the cat", "k": 3}}}}
    assert recorder.search(body=neural) == [None]


def test_point_in_time_determines_the_copies(recorder: Recorder) -> None:
    pit = recorder.post(f"/{recorder.index}/_pit?keep_alive=1m").json()["id"]
    recorder.seen.clear()
    answer = recorder.post("/_search", json=BODY | {"pit": {"id": pit}})
    assert answer.status_code == 200, answer.text
    assert not any("preference" in each.path for each in recorder.seen)
