"""The recorded set is what it says, and comparing answers finds every difference but those that mean nothing."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from tests.gateway.recorded import request, scenarios
from tests.gateway.replay import comparable
from tests.gateway.wire import Answer

KEYS = {"method", "target", "headers", "json", "ndjson", "text", "base64", "gzip", "chunked", "save", "refused"}
BODIES = {"json", "ndjson", "text", "base64"}

FOUND = Answer(
    200,
    (("X-elastic-product", "Elasticsearch"), ("content-type", "application/json"), ("content-length", "21")),
    b'{"took":5,"hits":[1]}',
)


def test_recorded_set_is_large_and_varied() -> None:
    lines = [line for scenario in scenarios().values() for line in scenario]
    assert len(lines) >= 700
    assert {"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"} <= {line["method"] for line in lines}


@pytest.mark.parametrize("name", scenarios())
def test_every_recorded_line_is_a_valid_request(name: str) -> None:
    saved: dict[str, str] = {}
    for line in scenarios()[name]:
        assert set(line) <= KEYS
        assert len(BODIES & set(line)) <= 1
        asked = request(line, {"prefix": "rq-a", **saved})
        assert asked.target.startswith("/")
        for word in ("{prefix}", "{long}", "{longer}", *(f"{{{name}}}" for name in saved)):
            assert word not in asked.target
            assert word.encode() not in asked.body
        saved |= dict.fromkeys(asked.save, "saved")


def test_recorded_body_is_sent_as_written() -> None:
    line = {"method": "POST", "target": "/{prefix}-a/_bulk", "ndjson": [{"index": {}}, {"text": "é {prefix}"}]}
    asked = request(line, {"prefix": "rq7"})
    assert asked.target == "/rq7-a/_bulk"
    assert asked.body == '{"index": {}}\n{"text": "é rq7"}\n'.encode()
    assert asked.headers == (("content-type", "application/x-ndjson"),)
    packed = request({**line, "gzip": True}, {"prefix": "rq7"})
    assert gzip.decompress(packed.body) == asked.body
    assert ("content-encoding", "gzip") in packed.headers


@pytest.mark.parametrize(
    "other",
    [
        replace(FOUND, body=b'{"took":9,"hits":[1]}'),
        replace(FOUND, headers=FOUND.headers[::-1]),
        replace(FOUND, headers=(*FOUND.headers, ("Connection", "close"))),
        replace(FOUND, headers=tuple((name.upper(), value) for name, value in FOUND.headers)),
    ],
    ids=["took", "order of headers", "hop-by-hop", "case of names"],
)
def test_insignificant_differences_are_ignored(other: Answer) -> None:
    assert comparable("GET", other, {}) == comparable("GET", FOUND, {})


@pytest.mark.parametrize(
    "other",
    [
        replace(FOUND, status=201),
        replace(FOUND, body=b'{"took":5,"hits":[2]}'),
        replace(FOUND, body=b'{"took":5,"hits":[1]}\n', headers=(*FOUND.headers[:2], ("content-length", "22"))),
        replace(FOUND, headers=FOUND.headers[1:]),
        replace(FOUND, headers=FOUND.headers[:2]),
        replace(FOUND, headers=(*FOUND.headers, ("server", "a proxy"))),
        replace(FOUND, headers=(*FOUND.headers, FOUND.headers[0])),
    ],
    ids=["status", "body", "newline", "header lost", "length lost", "header more", "header twice"],
)
def test_significant_differences_are_detected(other: Answer) -> None:
    assert comparable("GET", other, {}) != comparable("GET", FOUND, {})


def test_wrong_content_length_is_detected() -> None:
    with pytest.raises(AssertionError):
        comparable("GET", replace(FOUND, body=b"{}"), {})


def test_generated_ids_are_normalized() -> None:
    def answer(uuid: str, scroll: str) -> Answer:
        return Answer(200, (), f'{{"_scroll_id":"{scroll}","a":"[rq1-a/{uuid}]","index_uuid":"{uuid}"}}'.encode())

    first = comparable("GET", answer("A" * 22, "first"), {"scroll": "first"})
    assert first == comparable("GET", answer("B" * 22, "second"), {"scroll": "second"})
    assert first.body == b'{"_scroll_id":"{scroll}","a":"[rq1-a/]","index_uuid":}'


def test_compressed_responses_are_compared_decompressed() -> None:
    def answer(took: int) -> Answer:
        body = gzip.compress(b'{"took":%d}' % took, mtime=0)
        return Answer(200, (("content-encoding", "gzip"), ("content-length", str(len(body)))), body)

    assert comparable("GET", answer(1), {}) == comparable("GET", answer(20_000), {})
    assert comparable("GET", answer(1), {}).body == b'{"took":}'
