"""Bulk requests that go to the engine in several windows."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httpx
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.document_vectors import text_hash
from tests.engine.ingest_support import contents, same_vectors
from tests.gateway.echo import Echo, Received
from tests.gateway.serving import gateway
from tests.gateway.writes.bulks import Bulks, before, numbered, statuses, taken, whole
from tests.gateway.writes.support import JSON, assert_vector, bulk_lines, documents, vectors

pytestmark = pytest.mark.one_engine

Action = tuple[str, dict[str, Any], Any]
WINDOW = 10


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of ten actions: the requests of these tests go in several."""
    monkeypatch.setattr("es_sbert.gateway.writes.write_handler._WINDOW_ITEMS", WINDOW)


def results(client: httpx.Client, actions: list[Action], **options: Any) -> list[dict[str, Any]]:
    """Results of the items of one request: action and result, without what differs from one write to the next."""
    answer = client.post("/_bulk", content=bulk_lines(actions), headers=JSON, **options)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    items = [next(iter(item.items())) for item in said["items"]]
    assert said["errors"] is any("error" in result for _, result in items)
    assert said["took"] >= 0
    return [
        {"action": name} | {key: result.get(key) for key in ("_id", "status", "result", "_version")}
        for name, result in items
    ]


def mixed(index: str, unknown: str) -> list[Action]:
    """Every operation, on documents of the same window and of earlier ones, with refused items among them."""
    actions: list[Action] = []
    for number, document in enumerate(documents(40)):
        name = document["id"]
        actions.append(("create" if number % 3 else "index", {"_index": index, "_id": name}, document))
        if number % 4 == 1:
            actions.append(("index", {"_index": unknown, "_id": name}, document))
        if number % 5 == 4:
            actions.append(("create", {"_index": index, "_id": name}, document))
        if number >= 15:
            earlier = f"{documents(40)[number - 15]['id']}"
            actions.append(("update", {"_index": index, "_id": earlier}, {"doc": {"title": f"a mat {number}"}}))
        if number % 11 == 7:
            actions.append(("delete", {"_index": index, "_id": name}, None))
            actions.append(("update", {"_index": index, "_id": name}, {"doc": {"text": "a cat"}}))
    return actions


def same_documents(url: str, index: str, other: str) -> None:
    one, two = contents(url, index), contents(url, other)
    assert one.keys() == two.keys()
    for name, source in one.items():
        for field in ("text", "title", "_version"):
            assert source.get(field) == two[name].get(field)
        for meta in ("embedding_meta", "parts_meta"):
            mine, others = source.get(meta) or {}, two[name].get(meta) or {}
            assert mine.get("text_hash") == others.get("text_hash")
        assert same_vectors(vectors(source), vectors(two[name]))


def test_windowed_bulk_equals_single_requests(
    engine_url: str, client: httpx.Client, loaded: str, empty: str, unknown: str, fresh_index: Callable[[str], str]
) -> None:
    other = fresh_index(engine_url)
    mapping = client.get(f"/{empty}").json()[empty]
    knn = {"index.knn": True} if "knn" in mapping["settings"]["index"] else {}
    client.put(f"/{other}", json={"mappings": mapping["mappings"], "settings": knn}).raise_for_status()
    actions = mixed(empty, unknown)
    assert len(actions) > 5 * WINDOW
    whole = results(client, actions)
    single = [results(client, [action])[0] for action in mixed(other, unknown)]
    assert whole == single
    assert {503, 409, 404} <= {result["status"] for result in whole}
    same_documents(engine_url, empty, other)
    held = contents(engine_url, empty)
    updated = [source for source in held.values() if str(source.get("title", "")).startswith("a mat")]
    assert len(updated) > WINDOW
    for source in updated:
        assert source["parts_meta"]["text_hash"] == text_hash(f"{source['title']}. {source['text']}")


def test_each_window_honors_encoding_and_filter_path(
    engine_url: str, client: httpx.Client, empty: str, unknown: str, tiny_encoder: Encoder
) -> None:
    actions: list[Action] = [
        ("index", {"_index": unknown if number % 7 == 3 else empty, "_id": str(number)}, {"text": f"a cat {number}"})
        for number in range(35)
    ]
    lines = bulk_lines(actions)
    compressed = client.post("/_bulk", content=gzip.compress(lines), headers={**JSON, "content-encoding": "gzip"})
    statuses = [item["index"]["status"] for item in compressed.json()["items"]]
    assert statuses == [503 if number % 7 == 3 else 201 for number in range(35)]
    filtered = client.post("/_bulk", content=lines, headers=JSON, params={"filter_path": "items.*.status"}).json()
    assert [item["index"]["status"] for item in filtered["items"]] == [
        503 if number % 7 == 3 else 200 for number in range(35)
    ]
    errors = client.post("/_bulk", content=lines, headers=JSON, params={"filter_path": "took,items.*.error"}).json()
    assert [item["index"]["status"] for item in errors["items"]] == [503] * 5
    assert filtered["errors"] is errors["errors"] is True
    for asked in ({"params": {"format": "yaml"}}, {"headers": {**JSON, "accept": "application/yaml"}}):
        answer = client.post("/_bulk", content=lines, **{"headers": JSON, **asked})
        assert len(answer.json()["items"]) == 35
    good = bulk_lines([action for action in actions if action[1]["_index"] == empty])
    answer = client.post("/_bulk", content=good, headers=JSON, params={"filter_path": "errors,items.*.error"})
    assert answer.json() == {"errors": False}
    for name, source in contents(engine_url, empty).items():
        assert_vector(source, tiny_encoder, f"a cat {name}")


@pytest.mark.parametrize(
    "filter_path",
    [
        "errors", "-items", "items.*.error", "errors,items.*.status", "**.status", "**.errors", "items.index._id",
        "items.*.create", "e*", "*,-items.*._[vs]*,-items.*._v*,-items.*._s*", "-items.*", "-**", "nothing", "errors,",
        "-took,-items.*._version,-items.*._seq_no,-items.index.error.caused_by",
        "-took,-items.*._version,-items.*._seq_no,-items.*.error.*",
    ],
)  # fmt: skip
def test_filtered_response_to_windows_is_that_of_the_engine(
    engine_url: str, client: httpx.Client, empty: str, filter_path: str
) -> None:
    lines = bulk_lines([
        ("create" if number % 3 == 1 else "index", {"_index": empty, "_id": str(number)}, {"text": f"a cat {number}"})
        for number in range(25)
    ])  # fmt: skip
    client.post("/_bulk", content=lines, headers=JSON).raise_for_status()
    params = {"filter_path": filter_path}
    joined = client.post("/_bulk", content=lines, headers=JSON, params=params).json()
    direct = httpx.post(f"{engine_url}/_bulk", content=lines, headers=JSON, params=params).json()
    assert ("took" in joined) == ("took" in direct)
    assert joined | {"took": 0} == direct | {"took": 0}


def test_bulk_with_broken_end_writes_nothing(engine_url: str, client: httpx.Client, empty: str) -> None:
    lines = bulk_lines([("index", {"_index": empty}, {"text": "a cat"})] * 35)
    for end in (b'{"bogus":{}}\n{}\n', b'{"index":{"_index":', b'{"index":{}}\n{"text":"a"}\n'):
        answer = client.post("/_bulk", content=lines + end, headers=JSON)
        assert answer.status_code == 400, answer.text
    assert contents(engine_url, empty) == {}


def test_trailing_action_without_document_is_ignored(
    engine_url: str, client: httpx.Client, empty: str, tiny_encoder: Encoder
) -> None:
    """Engines write the documents before it, and pass over the last line."""
    for count in (1, 35):
        lines = bulk_lines([("index", {"_index": empty}, {"text": "a cat"})] * count) + b'{"index":{}}\n'
        answer = client.post("/_bulk", content=lines, headers=JSON).json()
        assert (answer["errors"], len(answer["items"])) == (False, count)
    held = contents(engine_url, empty)
    assert len(held) == 36
    for source in held.values():
        assert_vector(source, tiny_encoder, "a cat")


def test_bulk_without_texts_passes_through(engine_url: str, client: httpx.Client, empty: str) -> None:
    actions: list[Action] = [("index", {"_index": empty, "_id": str(number)}, {"n": number}) for number in range(25)]
    assert [result["status"] for result in results(client, actions)] == [201] * 25
    assert {source["n"] for source in contents(engine_url, empty).values()} == set(range(25))


def test_first_window_error_is_returned(tiny: Path, tiny_encoder: Encoder) -> None:
    refused = b'{"error":{"type":"t","reason":"no"},"status":403}'
    bulks = Bulks(tiny_encoder, [whole(refused, b"403 Forbidden"), None])
    with before(bulks, tiny) as url:
        answer = httpx.post(f"{url}/docs/_bulk", content=numbered(35), headers=JSON, timeout=300, trust_env=False)
        assert (answer.status_code, answer.content) == (403, refused)
        assert len(bulks.sent) == 1
        answer = httpx.post(f"{url}/docs/_bulk", content=numbered(35), headers=JSON, timeout=300, trust_env=False)
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "es_sbert_upstream_unreachable")
        assert len(bulks.sent) == 2


def test_later_window_error_affects_only_its_items(tiny: Path, tiny_encoder: Encoder) -> None:
    overloaded = whole(b'{"error":{"type":"busy","reason":"r"},"status":429}', b"429 Too Many Requests")
    first = [str(number) for number in range(WINDOW)]
    bulks = Bulks(tiny_encoder, [taken(first), overloaded, None])
    with before(bulks, tiny) as url:
        answer = httpx.post(f"{url}/docs/_bulk", content=numbered(45), headers=JSON, timeout=300, trust_env=False)
    assert statuses(answer) == [201] * 10 + [429] * 10 + [502] * 10 + [201] * 15
    assert answer.json()["errors"] is True
    assert answer.json()["items"][12]["index"]["error"]["type"] == "busy"
    assert len(bulks.sent) == 5


def test_unreachable_engine_gets_no_more_windows(tiny: Path, tiny_encoder: Encoder) -> None:
    first = [str(number) for number in range(WINDOW)]
    bulks = Bulks(tiny_encoder, [taken(first), None, None])
    with before(bulks, tiny) as url:
        answer = httpx.post(f"{url}/docs/_bulk", content=numbered(95), headers=JSON, timeout=300, trust_env=False)
    assert statuses(answer) == [201] * 10 + [502] * 85
    assert len(bulks.sent) == 3


def test_disconnected_client_stops_embedding_and_sending(tiny: Path, tiny_encoder: Encoder) -> None:
    bulks = Bulks(tiny_encoder, [])
    may_answer = threading.Event()

    def slowly(got: Received, out: BinaryIO) -> bool:
        if got.target.startswith(b"/docs/_bulk"):
            bulks.arrived.set()
            may_answer.wait(120)
        return bulks(got, out)

    with Echo(reply=slowly) as echo, gateway(echo.url, tiny) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=300) as connection:
            body = numbered(500)
            head = "POST /docs/_bulk HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            assert bulks.arrived.wait(120)
        metrics = wait_until_quiet(url)
        may_answer.set()
        echo.start_anew()
        assert metrics == wait_until_quiet(url)
    assert len(bulks.sent) <= 1
    assert metrics["es_sbert_gateway_texts_waiting"] == 0
    assert metrics['es_sbert_gateway_documents_total{outcome="embedded"}'] == WINDOW


def wait_until_quiet(url: str) -> dict[str, float]:
    """What the gateway tells of texts and documents once no request is under way."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        text = httpx.get(f"{url}/metrics", timeout=300, trust_env=False).text
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        found = {name: float(value) for name, _, value in lines}
        if found["es_sbert_gateway_requests_running"] == 0:
            return {name: value for name, value in found.items() if "documents_total" in name or "texts" in name}
        time.sleep(0.02)
    raise TimeoutError("a request never ends")


def test_bulk_without_vectors_passes_through_whole(tiny: Path) -> None:
    bulks = Bulks(None, [])
    with before(bulks, tiny) as url:
        answer = httpx.post(f"{url}/docs/_bulk", content=numbered(95), headers=JSON, timeout=300, trust_env=False)
    assert statuses(answer) == [201] * 95
    assert bulks.bodies == [numbered(95)]
