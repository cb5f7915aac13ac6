"""Requests of Kibana and OpenSearch Dashboards through the gateway, as the products' own sources build them or as sent.

`kibana/*.json` are the requests, with where each is from. Those that ask by meaning must find the nearest documents,
as brute force over the encoder's own vectors finds them; all others must be answered as by the engine itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from es_sbert.engines.engine_info import EngineType
from tests.gateway.indexed_gateway import IndexedGateway, K, indexed_gateway

REQUESTS = {
    file.stem: orjson.loads(file.read_bytes()) for file in sorted((Path(__file__).parent / "kibana").glob("*.json"))
}


def _expecting(*expected: str) -> list[str]:
    return sorted(name for name, request in REQUESTS.items() if request["expect"] in expected)


OTHERS, REFUSED, WITHOUT_VECTORS = _expecting("same"), _expecting("refused"), _expecting("nothing")
MEANT = sorted(set(REQUESTS) - {*OTHERS, *REFUSED, *WITHOUT_VECTORS})
# What differs between two answers to one request.
_VOLATILE = frozenset({"took", "_seq_no", "_version", "result", "max_concurrent_shard_requests"})


@pytest.fixture(scope="module")
def served(engine_url: str) -> Iterator[IndexedGateway]:
    # As `saved_objects_create` writes it again: whether that is visible yet makes no difference.
    with indexed_gateway(engine_url, REQUESTS["saved_objects_create"]["lines"][1]) as made:
        yield made


def _send(url: str, request: dict[str, Any], served: IndexedGateway, pit: str = "") -> httpx.Response:
    def filled(text: str) -> str:
        return text.replace("{index}", served.index).replace("{objects}", served.objects).replace("{pit}", pit)

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
        headers=({"content-type": kind} if content else {}) | request.get("headers", {}),
        trust_env=False,
        timeout=120,
    )


def _request(name: str, served: IndexedGateway) -> dict[str, Any]:
    request: dict[str, Any] = REQUESTS[name]
    if served.engine_type.value not in request["engines"]:
        pytest.skip(f"{served.engine_type} is never sent this")
    return request


def _ids(found: dict[str, Any]) -> list[str]:
    return [hit["_id"] for hit in found["hits"]["hits"]]


def _total(found: dict[str, Any]) -> int:
    total = found["hits"]["total"] if "hits" in found else found["count"]
    return int(total["value"] if isinstance(total, dict) else total)


@pytest.mark.parametrize("name", MEANT)
def test_query_bar_search_finds_nearest(name: str, served: IndexedGateway) -> None:
    request = _request(name, served)
    pit = ""
    if "{pit}" in str(request):
        opened = httpx.post(f"{served.gateway}/{served.index}/_pit?keep_alive=1m", trust_env=False, timeout=60)
        pit = opened.json()["id"]
    answer = _send(served.gateway, request, served, pit)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    if request["path"].endswith("/_async_search"):
        assert found["is_running"] is False
        found = found["response"]
    nearest = served.nearest[:K]
    nature = [identity for identity in served.nearest if served.tags[identity] == "nature"]
    music = {identity for identity, tag in served.tags.items() if tag == "music"}
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
            assert set(_ids(found)) == set(served.tags) - set(nearest)
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


@pytest.mark.parametrize("name", WITHOUT_VECTORS)
def test_panel_on_index_without_vectors_is_empty(name: str, served: IndexedGateway) -> None:
    """As for any field that the index of a panel does not have."""
    request = _request(name, served)
    answer, direct = (_send(url, request, served) for url in (served.gateway, served.engine))
    assert answer.status_code == 200, answer.text
    found = answer.json().get("response", answer.json())
    assert (_total(found), found["aggregations"]["2"]["buckets"]) == (0, [])
    assert _steady(answer.json()) == _steady(direct.json())


def _dashboards_dialog(error: dict[str, Any]) -> str:
    """What the error dialog of OpenSearch Dashboards shows, and Kibana's of a panel: the cause, else only a stack."""
    cause = error.get("caused_by")
    return "" if cause is None else f"{cause['type']}\n{cause['reason']}"


def _kibana_message(error: dict[str, Any]) -> str:
    """What Kibana shows of a search: the innermost cause."""
    return _kibana_message(error["caused_by"]) if "caused_by" in error else str(error["reason"])


@pytest.mark.parametrize("name", REFUSED)
def test_dialogs_show_why_a_query_is_refused(name: str, served: IndexedGateway) -> None:
    request = _request(name, served)
    answer = _send(served.gateway, request, served)
    if name == "multi_search_refused":
        assert answer.status_code == 200
        refused, found = answer.json()["responses"]
        assert _total(found) == 1
    else:
        assert answer.status_code == 400
        refused = answer.json()
    for text in (_dashboards_dialog(refused["error"]), _kibana_message(refused["error"])):
        assert "the text of match_phrase on semantic is empty" in text
        assert "Send the text to search for as a string." in text


def test_search_log_holds_what_people_search_for(served: IndexedGateway) -> None:
    """Refused semantic queries are semantic; searches of the dashboards for themselves are not there, or marked."""
    begin = datetime.now(UTC)
    kibana = served.engine_type is EngineType.ELASTICSEARCH
    prefix, api = ("discover", "_async_search") if kibana else ("dashboards", "_search")
    for name in (f"{prefix}_refused", "multi_search_refused"):
        _send(served.gateway, REQUESTS[name], served)
    for path in ("/es-sbert-searches-2026.01/_search", "/%2Ekibana*/_search", f"/{served.index}/_search"):
        body = {"size": 0, "aggs": {"2": {"terms": {"field": "tag"}}}}
        _send(served.gateway, {"method": "POST", "path": path, "body": body}, served)
    opened = "dashboards_opened"  # Discover before anything is typed
    _send(served.gateway, REQUESTS[opened], served)
    last = {"method": "POST", "path": f"/{served.index}%2Cdoes-not-exist%2A/_search", "body": {"size": 1}}
    _send(served.gateway, last, served)
    records = _logged(served, begin, lambda record: record["index"] == f"{served.index},does-not-exist*")
    told = [(each["index"], each["api"], each["kind"], each["status"], each["returns_hits"]) for each in records]
    index = served.index
    assert sorted(told) == sorted(
        [
            (index, api, "semantic", 400, True),
            (index, "_msearch", "semantic", 400, True),
            (index, "_msearch", "lexical", 200, True),
            (index, "_search", "lexical", 200, False),
            (index, "_search", "browse", 200, True),
            (f"{index},does-not-exist*", "_search", "lexical", 200, True),
        ]
    )


@pytest.mark.parametrize("name", OTHERS)
def test_other_dashboard_requests_are_answered_as_by_engine(name: str, served: IndexedGateway) -> None:
    request = _request(name, served)
    through, direct = _send(served.gateway, request, served), _send(served.engine, request, served)
    assert through.status_code == direct.status_code == 200, through.text
    if request["method"] == "HEAD":
        assert through.content == direct.content == b""
        return
    assert _steady(through.json()) == _steady(direct.json())


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _steady(inner) for name, inner in value.items() if name not in _VOLATILE}
    return [_steady(inner) for inner in value] if isinstance(value, list) else value


def test_search_is_logged_without_its_text(served: IndexedGateway) -> None:
    kibana = served.engine_type is EngineType.ELASTICSEARCH
    request = REQUESTS["discover_phrase" if kibana else "dashboards_discover"]
    begin = datetime.now(UTC)  # records of other tests are in the log too
    assert _send(served.gateway, request, served).status_code == 200
    api = "_async_search" if kibana else "_search"
    record = _logged(served, begin, lambda record: record["api"] == api)[-1]
    assert (record["index"], record["kind"], record["hits"], record["zero_hits"]) == (
        served.index,
        "semantic",
        K,
        False,
    )
    assert 0 < record["milliseconds"]["embedding"] <= record["milliseconds"]["total"]
    assert len(record["query_hash"]) == 1
    assert "plants" not in served.log.read_text()


def _logged(served: IndexedGateway, begin: datetime, is_last: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The records since a time, once the one that is looked for is among them: the gateway writes in another thread."""
    since, end = begin.isoformat(timespec="milliseconds"), time.monotonic() + 120
    while True:
        records = [orjson.loads(line) for line in served.log.read_bytes().splitlines()]
        found = [record for record in records if record["@timestamp"] >= since]
        if any(map(is_last, found)):
            return found
        assert time.monotonic() < end, "no record was written"
        time.sleep(0.01)
