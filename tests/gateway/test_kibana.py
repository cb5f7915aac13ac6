"""Requests of Kibana and OpenSearch Dashboards through the gateway, as the products' own sources build them or as sent.

`kibana/*.json` are the requests, with where each is from. Those that ask by meaning must find the nearest documents,
as brute force over the encoder's own vectors finds them; all others must be answered as by the engine itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.gateway.settings import SearchLogSettings
from tests.engine.ingest_support import load, open_engine, wait_until, write_jsonl
from tests.gateway import patient
from tests.gateway.async_search import async_search_before
from tests.gateway.serving import gateway
from tests.gateway.serving import served as served_app

REQUESTS = {
    file.stem: orjson.loads(file.read_bytes()) for file in sorted((Path(__file__).parent / "kibana").glob("*.json"))
}


def _expecting(*expected: str) -> list[str]:
    return sorted(name for name, request in REQUESTS.items() if request["expect"] in expected)


OTHERS, REFUSED, WITHOUT_VECTORS = _expecting("same"), _expecting("refused"), _expecting("nothing")
MEANT = sorted(set(REQUESTS) - {*OTHERS, *REFUSED, *WITHOUT_VECTORS})
# What differs between two answers to one request.
_VOLATILE = frozenset({"took", "_seq_no", "_version", "result", "max_concurrent_shard_requests"})


QUERY = "how do plants make energy"
K = 3
TITLES = {
    "nature": [
        "Photosynthesis turns sunlight into sugar inside green leaves.",
        "Chlorophyll absorbs light in leaves.",
        "Trees store the sun's power as carbohydrates.",
        "Wolves hunt deer in packs.",
        "Bees carry pollen to flowers.",
    ],
    "music": [
        "A concert pianist practises every day.",
        "The piano was tuned for the evening.",
        "Violins are made of maple.",
    ],
    "work": ["The bank raised its interest rates.", "She repaired the engine of a lorry.", "Trains leave every hour."],
}


@dataclass(frozen=True)
class IndexedGateway:
    """An index behind a gateway, and one like that in which Kibana keeps saved objects.

    Attributes:
        nearest: Ids in the order of their cosine to the query.
        tags: Id → tag.
    """

    engine_type: EngineType
    engine: str
    gateway: str
    index: str
    objects: str
    log: Path
    nearest: list[str]
    tags: dict[str, str]


@pytest.fixture(scope="module")
def served(engine_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IndexedGateway]:
    folder, unique = tmp_path_factory.mktemp("kibana"), uuid.uuid4().hex[:12]
    index, objects = f"test-{unique}", f"test-kibana-{unique}"
    documents = [
        {"id": str(number), "title": title, "tag": tag, "at": f"2026-01-{number + 1:02}"}
        for number, (tag, title) in enumerate((tag, title) for tag, titles in TITLES.items() for title in titles)
    ]
    log = SearchLogSettings(folder / "searches.jsonl", False, "here")
    with (
        open_engine(engine_url) as engine,
        served_app(async_search_before(engine_url)) as front,
        Encoder(threads=1) as encoder,
    ):
        vectors = encoder.encode([document["title"] for document in documents], "document")  # (documents, dimensions)
        cosines = vectors @ encoder.encode([QUERY], "query")[0]  # (documents,)
        # Below the k-th document, so that it is the same whether the nearest are kept or excluded.
        near = np.sort(cosines)[::-1]  # (documents,)
        knn = {"index.knn": True} if engine.info.engine_type is EngineType.OPENSEARCH else {}
        mappings = {"properties": {"title": {"type": "text"}, "tag": {"type": "keyword"}, "at": {"type": "date"}}}
        engine.create_index(index, {"settings": knn | {"number_of_shards": 1}, "mappings": mappings})
        rows = write_jsonl(folder / "rows.jsonl", documents)
        load(engine_url, encoder, index, rows, dead=folder / "dead", id_field="id", vectors=("embedding={title}",))
        title = {"properties": {"title": {"type": "text"}}}
        mappings = {"properties": {"type": {"type": "keyword"}, "dashboard": title}}
        engine.create_index(objects, {"mappings": mappings})
        # As `saved_objects_create` writes it again: whether that is visible yet makes no difference.
        saved = REQUESTS["saved_objects_create"]["lines"][1]
        engine.bulk(objects, patient.ndjson({"index": {"_id": "dashboard:semantic"}}, saved))
        engine.refresh(objects)
        minimum = float(near[K - 1] + near[K]) / 2
        with gateway(front, k=K, min_cosine=minimum, search_log=log) as url:
            nearest = [str(number) for number in np.argsort(-cosines)]
            tags = {str(document["id"]): str(document["tag"]) for document in documents}
            yield IndexedGateway(engine.info.engine_type, front, url, index, objects, log.path, nearest, tags)
        engine.delete_index(index)
        engine.delete_index(objects)


def _send(url: str, request: dict[str, Any], served: IndexedGateway, pit: str = "") -> httpx.Response:
    def filled(text: str) -> str:
        return text.replace("{index}", served.index).replace("{objects}", served.objects).replace("{pit}", pit)

    content, kind = None, "application/json"
    if "body" in request:
        content = filled(orjson.dumps(request["body"]).decode()).encode()
    if "lines" in request:
        content = "".join(filled(orjson.dumps(line).decode()) + "\n" for line in request["lines"]).encode()
        kind = "application/x-ndjson"
    headers = ({"content-type": kind} if content else {}) | request.get("headers", {})
    with patient.client(url) as client:
        path, params = filled(request["path"]), request.get("params", {})
        return client.request(request["method"], path, params=params, content=content, headers=headers)


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
        opened = patient.post(f"{served.gateway}/{served.index}/_pit?keep_alive=1m")
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
    begin = datetime.now(UTC).isoformat(timespec="milliseconds")  # records of other tests are in the log too

    def logged() -> list[dict[str, Any]]:
        records = [orjson.loads(line) for line in served.log.read_bytes().splitlines()]
        api = "_async_search" if kibana else "_search"
        return [record for record in records if record["@timestamp"] >= begin and record["api"] == api]

    request = REQUESTS["discover_phrase" if kibana else "dashboards_discover"]
    assert _send(served.gateway, request, served).status_code == 200
    wait_until(lambda: logged() != [])  # the gateway writes in another thread
    [record] = logged()
    told = [record[name] for name in ("index", "kind", "hits", "zero_hits")]
    assert told == [served.index, "semantic", K, False]
    assert 0 < record["milliseconds"]["embedding"] <= record["milliseconds"]["total"]
    assert len(record["query_hash"]) == 1
    assert "plants" not in served.log.read_text()
