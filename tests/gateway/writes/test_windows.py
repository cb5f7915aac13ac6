"""Bulk requests that go to the engine in several windows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.index.document_vectors import text_hash
from tests.engine.ingest_support import contents, open_engine, same_vectors, wait_until
from tests.engine.vectors import field_of
from tests.gateway import patient
from tests.gateway.echo import Echo, Received, whole
from tests.gateway.serving import gateway
from tests.gateway.writes.support import JSON, OUTCOMES, Counters, body_like, bulk_lines, documents, vectors

pytestmark = pytest.mark.one_engine

Action = tuple[str, dict[str, Any], Any]
WINDOW = 10


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of ten actions: the requests of these tests go in several."""
    monkeypatch.setattr("es_sbert.gateway.writes.write_handler._WINDOW_ITEMS", WINDOW)


def results(client: httpx.Client, actions: list[Action]) -> list[dict[str, Any]]:
    """Results of the items of one request: action and result, without what differs from one write to the next."""
    answer = client.post("/_bulk", content=bulk_lines(actions), headers=JSON)
    assert answer.status_code == 200, answer.text
    items = [next(iter(item.items())) for item in answer.json()["items"]]
    assert answer.json()["errors"] is any("error" in result for _, result in items)
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


def test_windowed_bulk_equals_single_requests(
    engine_url: str, client: httpx.Client, loaded: str, empty: str, unknown: str, fresh_index: Callable[[str], str]
) -> None:
    other = fresh_index(engine_url)
    with open_engine(engine_url) as engine:
        engine.create_index(other, body_like(engine, loaded))
    actions = mixed(empty, unknown)
    assert len(actions) > 5 * WINDOW
    answered = results(client, actions)
    assert answered == [results(client, [action])[0] for action in mixed(other, unknown)]
    assert {503, 409, 404} <= {result["status"] for result in answered}
    one, two = contents(engine_url, empty), contents(engine_url, other)
    assert one.keys() == two.keys()
    for name, source in one.items():
        assert [source.get(field) == two[name].get(field) for field in ("text", "title", "_version")] == [True] * 3
        for meta in ("embedding_meta", "parts_meta"):
            assert (source.get(meta) or {}).get("text_hash") == (two[name].get(meta) or {}).get("text_hash")
        assert same_vectors(vectors(source), vectors(two[name]))
    updated = [source for source in one.values() if str(source.get("title", "")).startswith("a mat")]
    assert len(updated) > WINDOW
    for source in updated:
        assert source["parts_meta"]["text_hash"] == text_hash(f"{source['title']}. {source['text']}")


@pytest.mark.parametrize(
    "filter_path",
    [
        "errors", "-items", "items.*.error", "errors,items.*.status", "**.status", "items.*.create",
        "*,-items.*._[vs]*,-items.*._v*,-items.*._s*", "-**", "nothing", "errors,",
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
    direct = patient.post(f"{engine_url}/_bulk", content=lines, headers=JSON, params=params).json()
    assert ("took" in joined) == ("took" in direct)
    assert joined | {"took": 0} == direct | {"took": 0}


def test_bulk_with_broken_end_writes_nothing(engine_url: str, client: httpx.Client, empty: str) -> None:
    lines = bulk_lines([("index", {"_index": empty}, {"text": "a cat"})] * 35)
    for end in (b'{"bogus":{}}\n{}\n', b'{"index":{"_index":', b'{"index":{}}\n{"text":"a"}\n'):
        answer = client.post("/_bulk", content=lines + end, headers=JSON)
        assert answer.status_code == 400, answer.text
    assert contents(engine_url, empty) == {}


class Bulks:
    """An engine with one index. It answers bulk requests as it is told; None hangs up. Beyond, all items are written.

    Attributes:
        sent: Of each bulk request that arrived, the body.
    """

    def __init__(self, encoder: Encoder, *answers: bytes | None) -> None:
        self.sent: list[bytes] = []
        self._answers = answers
        meta = field_of(encoder.info).model_dump(mode="json")
        self._mapping = {"_meta": {"es_sbert": {"fields": {"embedding": meta}}}, "properties": {"embedding": {}}}

    def __call__(self, got: Received, out: BinaryIO) -> bool:
        if got.target.partition(b"?")[0] != b"/docs/_bulk":
            out.write(whole(orjson.dumps({"docs": {"mappings": self._mapping}})))
            return True
        self.sent.append(got.body)
        number = len(self.sent) - 1
        answer = self._answers[number] if number < len(self._answers) else written(got.body)
        out.write(answer or b"")
        return answer is not None


def written(body: bytes) -> bytes:
    ids = [orjson.loads(line)["index"]["_id"] for line in body.splitlines()[::2]]
    items = [{"index": {"_id": id, "status": 201}} for id in ids]
    return whole(orjson.dumps({"took": 1, "errors": False, "items": items}))


@contextmanager
def before(bulks: Bulks, tiny: Path) -> Iterator[str]:
    with Echo(reply=bulks) as echo, gateway(echo.url, tiny) as url:
        yield f"{url}/docs/_bulk"


def numbered(count: int) -> bytes:
    return bulk_lines([("index", {"_id": str(number)}, {"text": f"a cat {number}"}) for number in range(count)])


def statuses(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    items = [item["index"] for item in answer.json()["items"]]
    assert [item["_id"] for item in items] == [str(number) for number in range(len(items))]
    return [item["status"] for item in items]


def test_first_window_error_is_returned(tiny: Path, tiny_encoder: Encoder) -> None:
    refused = b'{"error":{"type":"t","reason":"no"},"status":403}'
    bulks = Bulks(tiny_encoder, whole(refused, b"403 Forbidden"), None)
    with before(bulks, tiny) as url:
        answer = patient.post(url, content=numbered(35), headers=JSON)
        assert (answer.status_code, answer.content, len(bulks.sent)) == (403, refused, 1)
        answer = patient.post(url, content=numbered(35), headers=JSON)
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "es_sbert_upstream_unreachable")
        assert len(bulks.sent) == 2


def test_later_window_error_affects_only_its_items(tiny: Path, tiny_encoder: Encoder) -> None:
    overloaded = whole(b'{"error":{"type":"busy","reason":"r"},"status":429}', b"429 Too Many Requests")
    bulks = Bulks(tiny_encoder, written(numbered(WINDOW)), overloaded, None)
    with before(bulks, tiny) as url:
        answer = patient.post(url, content=numbered(45), headers=JSON)
    assert statuses(answer) == [201] * 10 + [429] * 10 + [502] * 10 + [201] * 15
    assert answer.json()["errors"] is True
    assert answer.json()["items"][12]["index"]["error"]["type"] == "busy"
    assert len(bulks.sent) == 5


def test_invalid_item_of_later_window_is_refused_alone(tiny: Path, tiny_encoder: Encoder) -> None:
    bulks = Bulks(tiny_encoder, written(numbered(WINDOW)), *[whole(b'{"status":400}', b"400 Bad Request")] * 5)
    with before(bulks, tiny) as url:
        answer = patient.post(url, content=numbered(45), headers=JSON)
    assert statuses(answer) == [201] * 10 + [400] + [201] * 34


def test_unreachable_engine_gets_no_more_windows(tiny: Path, tiny_encoder: Encoder) -> None:
    bulks = Bulks(tiny_encoder, written(numbered(WINDOW)), None, None)
    with before(bulks, tiny) as url:
        answer = patient.post(url, content=numbered(95), headers=JSON)
    assert statuses(answer) == [201] * 10 + [502] * 85
    assert len(bulks.sent) == 3


def test_disconnected_client_stops_embedding_and_sending(tiny: Path, tiny_encoder: Encoder) -> None:
    bulks = Bulks(tiny_encoder)
    arrived, may_answer = threading.Event(), threading.Event()

    def slowly(got: Received, out: BinaryIO) -> bool:
        if got.target.startswith(b"/docs/_bulk"):
            arrived.set()
            may_answer.wait(120)
        return bulks(got, out)

    with Echo(reply=slowly) as echo, gateway(echo.url, tiny) as url, patient.client(url) as client:
        counters = Counters(client)
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=300) as connection:
            body = numbered(500)
            head = "POST /docs/_bulk HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            assert arrived.wait(120)
        wait_until(lambda: "es_sbert_gateway_requests_running 0.0" in client.get("/metrics").text)
        may_answer.set()
        echo.start_anew()
        assert "es_sbert_gateway_texts_waiting 0.0" in client.get("/metrics").text
        assert counters.increase(OUTCOMES) == {"embedded": WINDOW}
    assert len(bulks.sent) <= 1
