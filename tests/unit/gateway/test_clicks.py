"""Clicks: what a request may say, what the log gets, and which responses name the ids of their searches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from es_sbert.gateway.clicks import SEARCH_ID_HEADER, ClickRecord, click_document, parse_click
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search_log import (
    SearchLog,
    SearchRecorder,
    SearchTrace,
    bulk_body,
    is_internal_search,
    new_search_id,
)
from es_sbert.gateway.settings import QueryTextPolicy, SearchLogSettings, monthly_index_pattern
from es_sbert.mappings import read_body

ID = "0123456789abcdef0123"
AT = datetime(2026, 1, 31, 23, 59, 59, 123456, UTC)
GOOD = {"search_id": ID, "document_id": "42", "position": 3}
POLICY = QueryTextPolicy.from_options(queries=True)


def test_click_is_read() -> None:
    found = parse_click(orjson.dumps(GOOD | {"index": "docs"}))
    assert (found.search_id, found.document_id, found.position, found.index) == (ID, "42", 3, "docs")
    assert parse_click(orjson.dumps(GOOD)).index is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[]", "the body is not a JSON object"),
        (GOOD | {"user": "me"}, "unknown member 'user'"),
        ({"document_id": "42", "position": 3}, "'search_id' is not the id of a search"),
        (GOOD | {"search_id": ID.upper()}, "'search_id' is not the id of a search"),
        (GOOD | {"search_id": ID + "0"}, "'search_id' is not the id of a search"),
        (GOOD | {"search_id": 5}, "'search_id' is not the id of a search"),
        (GOOD | {"document_id": ""}, "'document_id' is not the id of a document"),
        (GOOD | {"document_id": "é" * 257}, "'document_id' is not the id of a document"),
        (GOOD | {"document_id": 42}, "'document_id' is not the id of a document"),
        (GOOD | {"position": 0}, "'position' is not the position of a hit"),
        (GOOD | {"position": 10_001}, "'position' is not the position of a hit"),
        (GOOD | {"position": True}, "'position' is not the position of a hit"),
        (GOOD | {"position": 1.0}, "'position' is not the position of a hit"),
        (GOOD | {"index": ""}, "'index' is not the name of an index"),
        (GOOD | {"index": ["docs"]}, "'index' is not the name of an index"),
    ],
)
def test_invalid_clicks_are_refused(body: Any, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_click(body if isinstance(body, bytes) else orjson.dumps(body))
    assert message in caught.value.message


def test_search_ids_are_accepted_in_clicks() -> None:
    ids = {new_search_id() for _ in range(100)}
    assert len(ids) == 100
    assert {parse_click(orjson.dumps(GOOD | {"search_id": id})).search_id for id in ids} == ids


def test_a_click_sent_twice_is_one_record() -> None:
    first, again = ClickRecord(ID, "42", 3), ClickRecord(ID, "42", 7)
    assert first.id == again.id
    others = [ClickRecord(ID, "43", 3), ClickRecord(ID, "42", 3, "docs"), ClickRecord(ID[::-1], "42", 3)]
    assert len({first.id, *(other.id for other in others)}) == 4


def test_clicks_are_written_to_an_index_of_their_own() -> None:
    lines = bulk_body([ClickRecord(ID, "42", 3, "docs", AT)], "es-sbert-searches", POLICY, "here").splitlines()
    action = orjson.loads(lines[0])["create"]
    assert action["_index"] == "es-sbert-searches_clicks-2026.01"
    # The dashboards of searches do not count clicks.
    assert not action["_index"].startswith(monthly_index_pattern("es-sbert-searches").removesuffix("*"))
    assert orjson.loads(lines[1]) == {
        "@timestamp": "2026-01-31T23:59:59.123+00:00",
        "gateway": "here",
        "search_id": ID,
        "index": "docs",
        "document_id": "42",
        "position": 3,
    }
    assert is_internal_search(action["_index"], "es-sbert-searches")


def test_mapping_has_exactly_the_fields_of_clicks() -> None:
    properties = read_body("common/clicks")["mappings"]["properties"]
    assert properties.keys() == click_document(ClickRecord(ID, "42", 3, "docs", AT), "here").keys()


def _recorder(*searches: SearchTrace, sends_ids: bool = True) -> SearchRecorder:
    return SearchRecorder("docs", "msearch", list(searches), 200, sends_ids=sends_ids)


def test_response_names_the_ids_of_the_logged_searches() -> None:
    recorder = _recorder(SearchTrace(), SearchTrace())
    [(name, value)] = recorder.response_headers()
    assert name == SEARCH_ID_HEADER
    assert value.decode().split(",") == [record.id for record in recorder.records()]


def test_responses_without_ids() -> None:
    assert _recorder(SearchTrace(), sends_ids=False).response_headers() == []
    assert _recorder(SearchTrace(returns_hits=False)).response_headers() == []
    assert _recorder().response_headers() == []
    many = _recorder(*[SearchTrace()] * 101)
    assert many.response_headers() == []
    assert len({record.id for record in many.records()}) == 101


@pytest.mark.parametrize("clicks", [True, False])
def test_only_a_log_with_clicks_takes_them(clicks: bool) -> None:
    async def call(method: str, path: str, body: bytes, content_type: str) -> tuple[int, Any]:
        raise AssertionError

    settings = SearchLogSettings(POLICY, "here", index="log", buffer=2, clicks=clicks)
    assert SearchLog(settings, call).takes_clicks("docs") is clicks
    assert not SearchLog(settings, call).takes_clicks(".kibana")


def test_full_buffer_refuses_clicks() -> None:
    async def call(method: str, path: str, body: bytes, content_type: str) -> tuple[int, Any]:
        raise AssertionError

    log = SearchLog(SearchLogSettings(POLICY, "here", index="log", buffer=2, clicks=True), call)
    assert [log.record_click(ClickRecord(ID, str(number), 1)) for number in range(3)] == [True, True, False]
    assert (log.waiting, log.dropped) == (2, 1)
