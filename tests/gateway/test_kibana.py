"""Requests of Kibana and OpenSearch Dashboards through the gateway, each as the products' own sources build it.

`kibana/*.json` are the requests, with where each is from. Those that ask by meaning must find the nearest documents,
as brute force over the encoder's own vectors finds them; all others must be answered as by the engine itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from es_sbert.engines.engine import EngineType
from tests.gateway.behind import QUERY, TITLES, Behind, K, behind_a_gateway

REQUESTS = {
    file.stem: orjson.loads(file.read_bytes()) for file in sorted((Path(__file__).parent / "kibana").glob("*.json"))
}
MEANT = sorted(name for name, request in REQUESTS.items() if request["expect"] != "same")
OTHERS = sorted(set(REQUESTS) - set(MEANT))
# What differs between two answers to one request.
_VOLATILE = frozenset({"took", "_seq_no", "_version", "result", "max_concurrent_shard_requests"})


@pytest.fixture(scope="module")
def behind(engine_url: str) -> Iterator[Behind]:
    # As `saved_objects_create` writes it again: whether that is visible yet makes no difference.
    with behind_a_gateway(engine_url, REQUESTS["saved_objects_create"]["lines"][1]) as made:
        yield made


def _send(url: str, request: dict[str, Any], behind: Behind, pit: str = "") -> httpx.Response:
    def filled(text: str) -> str:
        return text.replace("{index}", behind.index).replace("{objects}", behind.objects).replace("{pit}", pit)

    content, kind = None, "application/json"
    if "body" in request:
        content = filled(orjson.dumps(request["body"]).decode()).encode()
    if "lines" in request:
        content = "".join(filled(orjson.dumps(line).decode()) + "\n" for line in request["lines"]).encode()
        kind = "application/x-ndjson"
    return httpx.request(
        request["method"],
        url + filled(request["path"]),
        params=request.get("params", {}),
        content=content,
        headers={"content-type": kind} if content else {},
        trust_env=False,
        timeout=120,
    )


def _request(name: str, behind: Behind) -> dict[str, Any]:
    request: dict[str, Any] = REQUESTS[name]
    if behind.engine_type.value not in request["engines"]:
        pytest.skip(f"{behind.engine_type} is never sent this")
    return request


def _ids(found: dict[str, Any]) -> list[str]:
    return [hit["_id"] for hit in found["hits"]["hits"]]


def _total(found: dict[str, Any]) -> int:
    total = found["hits"]["total"] if "hits" in found else found["count"]
    return int(total["value"] if isinstance(total, dict) else total)


@pytest.mark.parametrize("name", MEANT)
def test_query_bar_search_finds_nearest(name: str, behind: Behind) -> None:
    request = _request(name, behind)
    pit = ""
    if "{pit}" in str(request):
        opened = httpx.post(f"{behind.gateway}/{behind.index}/_pit?keep_alive=1m", trust_env=False, timeout=60)
        pit = opened.json()["id"]
    answer = _send(behind.gateway, request, behind, pit)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    if request["path"].endswith("/_async_search"):
        assert found["is_running"] is False
        found = found["response"]
    nearest = behind.nearest[:K]
    nature = [identity for identity in behind.nearest if behind.tags[identity] == "nature"]
    music = {identity for identity, tag in behind.tags.items() if tag == "music"}
    match request["expect"]:
        case "nearest by score":
            assert _ids(found) == nearest
            scores = [hit["_score"] for hit in found["hits"]["hits"]]
            assert scores == sorted(scores, reverse=True)
            assert scores[0] > scores[-1] > 0
        case "nearest by time":
            assert _ids(found) == sorted(nearest, key=int, reverse=True)
        case "nearest with the tag":
            # Three, whether the tag is looked at during the search or afterwards: all near ones are of nature.
            assert _ids(found) == nature[:K]
        case "nearest and others":
            assert set(_ids(found)) == set(nearest) | music
        case "all but nearest":
            assert set(_ids(found)) == set(behind.tags) - set(nearest)
        case "nearest counted":
            assert _total(found) == K
            buckets = found.get("aggregations", {}).get("2", {}).get("buckets", [{"doc_count": K}])
            assert sum(bucket["doc_count"] for bucket in buckets) == K
        case "nearest in each":
            by_meaning, by_words = found["responses"]
            assert _ids(by_meaning) == nearest
            assert _total(by_words) == 1
        case other:
            pytest.fail(f"{name} expects {other!r}, which no test knows")


@pytest.mark.parametrize("name", OTHERS)
def test_other_dashboard_requests_are_answered_as_by_engine(name: str, behind: Behind) -> None:
    request = _request(name, behind)
    through, direct = _send(behind.gateway, request, behind), _send(behind.engine, request, behind)
    assert through.status_code == direct.status_code == 200, through.text
    if request["method"] == "HEAD":
        assert through.content == direct.content == b""
        return
    assert _steady(through.json()) == _steady(direct.json())


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _steady(inner) for name, inner in value.items() if name not in _VOLATILE}
    return [_steady(inner) for inner in value] if isinstance(value, list) else value


def test_search_is_logged_without_its_text(behind: Behind) -> None:
    kibana = behind.engine_type is EngineType.ELASTICSEARCH
    request = REQUESTS["discover_phrase" if kibana else "dashboards_discover"]
    begin = datetime.now(UTC)  # records of other tests are in the log too
    assert _send(behind.gateway, request, behind).status_code == 200
    end = time.monotonic() + 120
    api = "_async_search" if kibana else "_search"
    since = {"range": {"@timestamp": {"gte": begin.isoformat(timespec="milliseconds")}}}
    body = {"query": {"bool": {"filter": [{"term": {"api": api}}, since]}}}
    while not (found := _search_log(behind, body)):
        assert time.monotonic() < end, "no record was written"
    record = found[0]["_source"]
    assert (record["index"], record["kind"], record["hits"], record["zero_hits"]) == (
        behind.index,
        "semantic",
        K,
        False,
    )
    assert 0 < record["milliseconds"]["embedding"] <= record["milliseconds"]["total"]
    assert len(record["query_hash"]) == 1
    assert "plants" not in str(found)


def _search_log(behind: Behind, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The newest records that a search sees, of the engine itself."""
    for method, path in (("POST", "_refresh"), ("POST", "_search")):
        content = orjson.dumps(body) if path == "_search" else b""
        answer = httpx.request(
            method,
            f"{behind.engine}/{behind.log}/{path}",
            content=content,
            headers={"content-type": "application/json"},
            trust_env=False,
            timeout=60,
        )
    hits: list[dict[str, Any]] = answer.json().get("hits", {}).get("hits", [])
    return hits


def test_query_shares_no_word_with_its_hits(behind: Behind) -> None:
    titles = [title for titles in TITLES.values() for title in titles]
    words = set(QUERY.split())
    assert all(not words & set(titles[int(identity)].lower().split()) for identity in behind.nearest[:K])


def test_each_recorded_request_names_its_source() -> None:
    assert len(REQUESTS) >= 30
    assert all(len(request["source"]) > 20 and request["engines"] for request in REQUESTS.values())
