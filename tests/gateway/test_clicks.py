"""Clicks on hits: ids of searches in responses, the endpoint, the log, and the judgements made of it."""

from __future__ import annotations

import csv
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from es_sbert.cli.main import main
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.gateway.app import create_app
from es_sbert.gateway.settings import (
    GatewaySettings,
    ListenSettings,
    QueryTextPolicy,
    SearchLogSettings,
    click_log_index,
    monthly_index_pattern,
)
from es_sbert.search import SemanticIndex
from tests.conftest import delete_index
from tests.gateway.conftest import tiny_settings
from tests.gateway.serving import served

TEXTS = ("a man plays guitar", "the cat sleeps", "the cat sleeps on the mat", "a man sleeps", "the guitar on the mat")
QUERY = "the cat on the mat"
SEMANTIC = {"query": {"match": {"semantic": {"query": QUERY}}}, "_source": False}


@dataclass(frozen=True)
class Logged:
    """An index behind two gateways, one of which takes clicks."""

    engine: str
    index: str
    log: str
    with_clicks: str
    without: str


@pytest.fixture(scope="module")
def logged(es9_url: str, tiny: Path) -> Iterator[Logged]:
    unique = uuid.uuid4().hex[:12]
    index, log = f"test-clicks-{unique}", f"test-click-log-{unique}"
    models = tiny_settings(tiny)

    def app(*, clicks: bool, prefix: str = "") -> Any:
        settings = SearchLogSettings(
            QueryTextPolicy.from_options(queries=True), "here", index=log, flush_seconds=0.1, clicks=clicks
        )
        return create_app(
            GatewaySettings(
                upstream=EngineSettings(url=es9_url),
                models=models,
                search_log=settings,
                listen=ListenSettings(path_prefix=prefix, cors_origins=("http://app.example",)),
            )
        )

    try:
        with (
            Encoder(str(tiny), precision="fp32", threads=1) as encoder,
            SemanticIndex.create(index, es9_url, encoder=encoder, text_template="{text}") as made,
        ):
            made.add([{"_id": str(number), "text": text} for number, text in enumerate(TEXTS)])
        with served(app(clicks=True, prefix="/-")) as with_clicks, served(app(clicks=False)) as without:
            yield Logged(es9_url, index, log, with_clicks, without)
    finally:
        delete_index(es9_url, index)
        for name in (log, click_log_index(log)):
            for month in httpx.get(f"{es9_url}/{monthly_index_pattern(name)}").json():
                delete_index(es9_url, month)


def _click(logged: Logged, **body: Any) -> httpx.Response:
    # As `navigator.sendBeacon` sends it.
    return httpx.post(f"{logged.with_clicks}/-/_es_sbert/click", content=orjson.dumps(body))


def _stored(logged: Logged, name: str) -> list[dict[str, Any]]:
    url = f"{logged.engine}/{monthly_index_pattern(name)}"
    httpx.post(f"{url}/_refresh")
    return [
        hit["_source"] | {"_id": hit["_id"]} for hit in httpx.get(f"{url}/_search?size=1000").json()["hits"]["hits"]
    ]


def _wait_for(logged: Logged, name: str, count: int) -> list[dict[str, Any]]:
    limit = time.monotonic() + 60
    while len(found := _stored(logged, name)) < count and time.monotonic() < limit:
        time.sleep(0.1)
    return found


def test_only_a_gateway_that_takes_clicks_adds_the_header(logged: Logged) -> None:
    names = "x-es-sbert-search-id"
    for body in (SEMANTIC, {"query": {"match": {"text": "cat"}}}):
        responses = [
            httpx.post(f"{url}/{logged.index}/_search?filter_path=hits", json=body)
            for url in (logged.with_clicks, logged.without)
        ]
        assert [response.status_code for response in responses] == [200, 200]
        assert responses[0].content == responses[1].content
        with_id, without = ([name for name, _ in response.headers.raw] for response in responses)
        assert sorted(with_id) == sorted([*without, names.encode()])
        assert len(responses[0].headers[names]) == 20
    for path, method in ((f"{logged.index}/_count", "GET"), ("", "GET"), (f"{logged.index}/_mapping", "GET")):
        assert names not in httpx.request(method, f"{logged.with_clicks}/{path}").headers
    failed = httpx.post(f"{logged.with_clicks}/{logged.index}/_search", json={"query": {"nothing": {}}})
    assert failed.status_code == 400
    assert names not in failed.headers
    several = b"".join(orjson.dumps(line) + b"\n" for line in ({}, SEMANTIC, {}, {"query": {"match_all": {}}}))
    answer = httpx.post(
        f"{logged.with_clicks}/{logged.index}/_msearch",
        content=several,
        headers={"content-type": "application/x-ndjson", "origin": "http://app.example"},
    )
    assert len(set(answer.headers[names].split(","))) == 2
    assert answer.headers["access-control-expose-headers"] == names


def test_without_the_option_the_path_is_the_engines(logged: Logged) -> None:
    answers = [httpx.post(f"{url}/_es_sbert/click", json={}) for url in (logged.without, logged.engine)]
    assert answers[0].status_code == answers[1].status_code
    assert answers[0].content == answers[1].content


@pytest.mark.parametrize(
    ("content", "status"), [(b"{}", 400), (b"[" * 100_000, 413), (b"nothing", 400), (b'{"search_id": "x"}', 400)]
)
def test_invalid_clicks_are_refused_with_the_reason(logged: Logged, content: bytes, status: int) -> None:
    answer = httpx.post(f"{logged.with_clicks}/-/_es_sbert/click", content=content)
    assert answer.status_code == status
    assert answer.json()["error"]["reason"]


def test_clicks_become_judgements_and_training_pairs(
    logged: Logged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in range(6):
        answer = httpx.post(f"{logged.with_clicks}/{logged.index}/_search", json=SEMANTIC)
        search_id = answer.headers["x-es-sbert-search-id"]
        hits = [hit["_id"] for hit in answer.json()["hits"]["hits"]]
        for _ in range(2):  # opened twice, or sent twice
            accepted = _click(
                logged, search_id=search_id, document_id=hits[run % 3 and 1], position=1 + (run % 3 and 1), index="x"
            )
            assert (accepted.status_code, accepted.json()) == (202, {"accepted": True})
    assert _click(logged, search_id="0" * 20, document_id="1", position=1).status_code == 202
    clicks = _wait_for(logged, click_log_index(logged.log), 7)
    assert len(clicks) == 7
    searched = {each["_id"]: each for each in _stored(logged, logged.log)}
    known = [each for each in clicks if each["search_id"] in searched]
    assert len(known) == 6
    assert all(searched[each["search_id"]]["query"] == [QUERY] for each in known)

    output, pairs = tmp_path / "judgements.csv", tmp_path / "pairs.jsonl"
    how = ["--url", logged.engine, "--search-log", logged.log]
    with pytest.raises(SystemExit) as ended:
        main(["index", "judgements", logged.index, *how, "-o", str(output), "--pairs", str(pairs)])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    assert "left out: 1 click of other searches" in printed.err
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["query"], row["document"], row["clicks"]) for row in rows} == {
        (QUERY, hits[0], "2"),
        (QUERY, hits[1], "4"),
    }
    lines = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert {"anchor": QUERY, "positive": TEXTS[int(hits[1])]} in lines
    for name, message in (("nothing-of-that-name", "no semantic search of"),):
        with pytest.raises(SystemExit) as ended:
            main(["index", "judgements", logged.index, *how, "--searched", name, "-o", str(output)])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
