"""One request with very much in it is refused, and keeps nobody waiting."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from tests.engine.ingest_support import sentences, wait_until
from tests.gateway import patient
from tests.gateway.conftest import loaded_index
from tests.gateway.patient import NDJSON
from tests.gateway.running import serve

JSON = {"content-type": "application/json"}


def _queries(count: int) -> list[object]:
    return [{"match": {"semantic": f"text number {number}"}} for number in range(count)]


def _nested(depth: int, inside: object) -> object:
    for _ in range(depth):
        inside = {"bool": {"filter": [inside]}}
    return inside


def _searches(count: int) -> bytes:
    line = json.dumps({"query": {"match": {"semantic": "a cat"}}})
    return f"{{}}\n{line}\n".encode() * count


def _body(query: object) -> bytes:
    return json.dumps({"query": query}).encode()


PLAIN = [{"term": {"lang": f"l{number}"}} for number in range(60_000)]
# What is sent → path, body, headers and the status that it is refused with.
MUCH: dict[str, tuple[str, bytes, dict[str, str], int]] = {
    "60,000 queries": ("_search", _body({"bool": {"should": _queries(60_000)}}), JSON, 400),
    "200 levels of bools around 60,000 filters": (
        "_search", _body(_nested(200, {"bool": {"must": [*_queries(300), *PLAIN]}})), JSON, 400),
    "100,000 searches": ("_msearch", _searches(100_000), NDJSON, 400),
    "one text in Lucene's syntax": (
        "_search", _body({"query_string": {"query": " OR ".join(["semantic:a"] * 50_000)}}), JSON, 400),
    "a search of 40 MB": ("_search", _body({"terms": {"lang": ["semantic " * 100] * 45_000}}), JSON, 413),
    "what unfolds to 90 MB": (
        "_search", gzip.compress(_body({"match": {"semantic": "a" * 90_000_000}})), JSON | {"content-encoding": "gzip"},
        413),
    "a bulk of 4,700,000 lines": ("_bulk", b'{"index":{}}\n{"text":"a cat and a dog"}\n' * 2_350_000, NDJSON, 413),
    "a text of 300 kB": ("_search", _body({"match": {"semantic": "a cat " * 50_000}}), JSON, 400),
}  # fmt: skip


@pytest.fixture(scope="module")
def index(es9_url: str, tiny_encoder: Encoder) -> Iterator[str]:
    with loaded_index(es9_url, tiny_encoder, sentences(20)) as name:
        yield name


@pytest.fixture(scope="module")
def url(es9_url: str, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway in another process, which shares no interpreter with the clock."""
    with serve(es9_url, tmp_path_factory.mktemp("gateway"), "--model", str(tiny), "--threads", "1") as address:
        httpx.post(f"{address}/v1/embeddings", json={"input": "a cat"}, timeout=120).raise_for_status()
        yield address


class Gaps:
    """How long another caller had to wait for the simplest of answers."""

    longest = 0.0


@contextmanager
def heartbeat(url: str) -> Iterator[Gaps]:
    gaps, stop = Gaps(), threading.Event()

    def beat() -> None:
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
            while not stop.is_set():
                start = time.perf_counter()
                client.get("/healthz").raise_for_status()
                gaps.longest = max(gaps.longest, time.perf_counter() - start)
                time.sleep(0.01)

    with ThreadPoolExecutor(1) as thread:
        beating = thread.submit(beat)
        try:
            yield gaps
        finally:
            stop.set()
            beating.result()


def seconds_to_parse() -> float:
    """What reading the largest of the searches once takes here: others may wait for some of these, not for hundreds."""
    body = MUCH["200 levels of bools around 60,000 filters"][1]
    start = time.perf_counter()
    json.loads(body)
    return time.perf_counter() - start


@pytest.mark.parametrize("name", list(MUCH))
def test_oversized_request_is_rejected_without_blocking_others(url: str, index: str, name: str) -> None:
    path, body, headers, status = MUCH[name]
    once = max(seconds_to_parse() for _ in range(3))
    with heartbeat(url) as gaps, httpx.Client(timeout=600, trust_env=False) as client:
        answer = client.post(f"{url}/{index}/{path}", content=body, headers=headers)
    assert answer.status_code == status, answer.text[:300]
    assert answer.json()["error"]["reason"]
    assert gaps.longest < 40 * once


@pytest.mark.parametrize(
    "query",
    [{"bool": {"should": PLAIN[:900], "must": {"match": {"semantic": "a cat"}}}}, {"bool": {"should": _queries(250)}}],
    ids=["filters", "queries"],
)
def test_large_searches_within_limits_are_answered(url: str, index: str, query: object) -> None:
    answer = httpx.post(f"{url}/{index}/_search", content=_body(query), headers=JSON, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.json()["hits"]["hits"]


def _metric(url: str, name: str) -> float:
    metrics = patient.get(f"{url}/metrics").text
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith(f"es_sbert_gateway_{name} "))


@pytest.mark.parametrize("api", ["_msearch", "embeddings"])
def test_disconnected_client_leaves_no_queued_texts(url: str, index: str, api: str) -> None:
    """Texts that are embedded for nobody keep those of others waiting."""
    callers, each, made = 10, 250, 'vectors_total{source="model"}'
    before = _metric(url, made)
    for caller in range(callers):
        texts = [f"{'cat mat ' * 100} {api} {caller} {number}" for number in range(each)]
        queries = [line for text in texts for line in ({}, {"query": {"match": {"semantic": text}}})]
        path, kind = (f"{index}/_msearch", NDJSON) if api == "_msearch" else ("v1/embeddings", JSON)
        content = patient.ndjson(*queries) if api == "_msearch" else json.dumps({"input": texts})
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/{path}", content=content, headers=kind, timeout=httpx.Timeout(60, read=0.002))
    wait_until(lambda: not _metric(url, "requests_running"))
    assert _metric(url, "texts_waiting") == 0
    # Of each, a batch of 64 may have run before the caller was gone, and one may run still.
    assert _metric(url, made) - before < callers * each / 2
