"""Large bulk requests without vectors: they go to the engine in parts, as they came."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.engine.ingest_support import contents
from tests.gateway.writes.bulks import Bulks, before, numbered, statuses, taken, whole
from tests.gateway.writes.support import JSON, bulk_lines

PART = 10


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of ten actions, and requests of more than two of them are large."""
    monkeypatch.setattr("es_sbert.gateway.writes.bulk_items._PART_ITEMS", PART)
    monkeypatch.setattr("es_sbert.gateway.writes.write_handler._MAX_UNSPLIT_PARTS", 2)


def post(url: str, body: bytes, headers: dict[str, str] = JSON, **params: str) -> httpx.Response:
    return httpx.post(f"{url}/docs/_bulk", content=body, headers=headers, params=params, timeout=300, trust_env=False)


def test_split_bulk_equals_whole_bulk(engine_url: str, client: httpx.Client, fresh_index: Callable[[str], str]) -> None:
    def answer(url: str) -> tuple[list[Any], dict[str, Any]]:
        index, actions = fresh_index(engine_url), []
        client.put(f"/{index}", json={"mappings": {"properties": {"n": {"type": "long"}}}}).raise_for_status()
        for number in range(95):
            document = {"n": number if number % 10 != 7 else "no number", "text": f"a cat {number}"}
            actions.append(("create" if number % 4 else "index", {"_id": str(number % 60)}, document))
            if number % 8 == 5:
                actions.append(("update", {"_id": str(number - 40)}, {"doc": {"text": "a dog"}}))
                actions.append(("delete", {"_id": str(number - 3)}, None))
        lines = bulk_lines(actions) + b'{"index":{}}\n'  # whose document is missing: engines pass over it
        got = httpx.post(f"{url}/{index}/_bulk", content=lines, headers=JSON, timeout=300, trust_env=False).json()
        assert got["errors"] is True
        results = [(name, result) for item in got["items"] for name, result in item.items()]
        items = [
            (name, result.get("error", {}).get("type"), *map(result.get, ("_id", "status", "result", "_version")))
            for name, result in results
        ]
        return items, contents(engine_url, index)

    assert answer(str(client.base_url).rstrip("/")) == answer(engine_url)


def test_large_bulk_with_broken_end_writes_nothing(engine_url: str, client: httpx.Client, index_name: str) -> None:
    lines = bulk_lines([("index", {"_index": index_name}, {"text": "a cat"})] * 95)
    for end in (b'{"bogus":{}}\n{}\n', b'{"index":{"_index":'):
        answer = client.post("/_bulk", content=lines + end, headers=JSON)
        assert answer.status_code == 400, answer.text
    assert client.head(f"/{index_name}").status_code == 404


@pytest.mark.parametrize("compressed", [False, True])
def test_parts_concatenate_to_the_request(tiny: Path, compressed: bool) -> None:
    bulks = Bulks(None, [])
    body = numbered(95)
    sent = gzip.compress(body) if compressed else body
    headers = {**JSON, "content-encoding": "gzip"} if compressed else JSON
    with before(bulks, tiny) as url:
        answer = post(url, sent, headers)
    assert statuses(answer) == [201] * 95
    assert answer.json() | {"items": []} == {"took": 10, "errors": False, "items": []}
    assert b"".join(bulks.bodies) == body
    assert list(map(len, bulks.sent)) == [PART] * 9 + [5]


@pytest.mark.parametrize(("count", "params"), [(2 * PART, {}), (95, {"refresh": "wait_for"})])
def test_small_or_wait_for_refresh_bulk_is_not_split(tiny: Path, count: int, params: dict[str, str]) -> None:
    bulks = Bulks(None, [])
    with before(bulks, tiny) as url:
        assert statuses(post(url, numbered(count), **params)) == [201] * count
    assert bulks.bodies == [numbered(count)]


def test_first_part_error_is_returned(tiny: Path) -> None:
    refused = b'{"error":{"type":"t","reason":"no"},"status":403}'
    bulks = Bulks(None, [whole(refused, b"403 Forbidden"), None])
    with before(bulks, tiny) as url:
        answer = post(url, numbered(95))
        assert (answer.status_code, answer.content) == (403, refused)
        answer = post(url, numbered(95))
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "es_sbert_upstream_unreachable")
    assert len(bulks.sent) == 2


def test_later_part_error_affects_only_its_items(tiny: Path) -> None:
    overloaded = whole(b'{"error":{"type":"busy","reason":"r"},"status":429}', b"429 Too Many Requests")
    first = [str(number) for number in range(PART)]
    bulks = Bulks(None, [taken(first), overloaded, None])
    with before(bulks, tiny) as url:
        answer = post(url, numbered(45))
    assert statuses(answer) == [201] * 10 + [429] * 10 + [502] * 10 + [201] * 15
    assert answer.json()["errors"] is True
    assert answer.json()["items"][12]["index"]["error"]["type"] == "busy"


def test_unreachable_engine_gets_no_more_parts(tiny: Path) -> None:
    first = [str(number) for number in range(PART)]
    bulks = Bulks(None, [taken(first), None, None])
    with before(bulks, tiny) as url:
        answer = post(url, numbered(95))
    assert statuses(answer) == [201] * 10 + [502] * 85
    assert len(bulks.sent) == 3


def test_errors_flag_and_filter_path_cover_all_parts(tiny: Path) -> None:
    failed = [
        {"index": {"_id": str(number), "status": 400, "error": {"type": "t"}}} for number in range(PART, 2 * PART)
    ]
    first = [str(number) for number in range(PART)]
    second = whole(orjson.dumps({"took": 1, "errors": True, "items": failed}))
    bulks = Bulks(None, [taken(first), second])
    with before(bulks, tiny) as url:
        answer = post(url, numbered(35))
        assert statuses(answer) == [201] * 10 + [400] * 10 + [201] * 15
        assert answer.json()["errors"] is True
    filtered = [whole(orjson.dumps({"items": failed})), *[whole(b'{"items":[]}')] * 3]
    bulks = Bulks(None, [*filtered])
    with before(bulks, tiny) as url:
        assert post(url, numbered(35)).json() == {"errors": True, "items": failed}
