"""What becomes of a request if the gateway cannot look up the mapping that it needs: never a silent one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import httpx
import orjson
import pytest

from es_sbert.engines.rest import Json
from tests.gateway import patient
from tests.gateway.echo import HEAD, OK, Echo, Received, is_question, whole
from tests.gateway.serving import gateway
from tests.gateway.writes.support import JSON, Counters, bulk_lines

_SECONDS = 1.0
NOT_SIMILAR: Json = {"query": {"bool": {"must_not": [{"match": {"semantic": "a cat"}}]}}}
REQUESTS: dict[str, tuple[str, str, Json | bytes]] = {
    "search": ("POST", "/_search", NOT_SIMILAR),
    "count": ("POST", "/_count", NOT_SIMILAR),
    "delete by query": ("POST", "/_delete_by_query", NOT_SIMILAR),
    "document": ("PUT", "/_doc/1", {"text": "a cat"}),
    "bulk": ("POST", "/_bulk", bulk_lines([("index", {"_id": "1"}, {"text": "a cat"})])),
}
Fault = Callable[[BinaryIO], bool]


def status(number: int) -> Fault:
    body = b'{"error":{"type":"some_exception","reason":"no"},"status":%d}' % number
    return lambda out: bool(out.write(whole(body, b"%d No" % number)))


def cut_off(out: BinaryIO) -> bool:
    out.write(HEAD + b'content-length: 1000\r\n\r\n{"docs":{"mapp')
    return False


def half_json(out: BinaryIO) -> bool:
    out.write(HEAD + b'content-length: 14\r\n\r\n{"docs":{"mapp')
    return True


def slow(out: BinaryIO) -> bool:
    time.sleep(3 * _SECONDS)
    return False


# Of these, the engine refuses the caller's own request for the same reason.
OF_THE_CALLER = {"400": status(400), "401": status(401), "404": status(404)}
OF_THE_ENGINE = {str(number): status(number) for number in (408, 429, 500)} | {
    "cut off": cut_off,
    "half JSON": half_json,
    "slow": slow,
}


class FaultyEngine(Echo):
    """An engine that answers all requests but the gateway's own questions."""

    fault: Fault = staticmethod(status(500))

    def own_requests(self) -> list[str]:
        """Paths, without the index, of requests of callers that arrived."""
        arrived = [got.target.decode() for got in self.received if not is_question(got)]
        return [target[target.index("/", 1) :] for target in arrived if target.startswith("/docs-")]

    def answer(self, got: Received, out: BinaryIO) -> bool:
        # Of an index that does not exist, the templates are asked for: there are none.
        if is_question(got) and b"template" not in got.target:
            return self.fault(out)
        return bool(out.write(OK))


@pytest.fixture(scope="module")
def engine() -> Iterator[FaultyEngine]:
    engine = FaultyEngine()
    engine.reply = engine.answer
    with engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: FaultyEngine, tiny: Path) -> Iterator[str]:
    with gateway(engine.url, tiny, answer_seconds=_SECONDS) as url:
        yield url


def send(url: str, request: str) -> httpx.Response:
    """Send a request for a new index, about which the gateway knows nothing yet."""
    method, path, body = REQUESTS[request]
    content, kind = (body, patient.NDJSON) if isinstance(body, bytes) else (orjson.dumps(body), JSON)
    with patient.client(url) as client:
        return client.request(method, f"/docs-{uuid.uuid4().hex[:8]}{path}", content=content, headers=kind)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("fault", OF_THE_ENGINE)
def test_request_is_refused_for_a_retry_if_the_engine_fails(
    fault: str, request_name: str, engine: FaultyEngine, url: str
) -> None:
    engine.fault, engine.received[:] = OF_THE_ENGINE[fault], []
    answer = send(url, request_name)
    # Clients and load balancers send a request again after these.
    assert answer.status_code in (429, 502, 503, 504), answer.text
    assert "es_sbert" in answer.text or fault in answer.text
    assert engine.own_requests() == []


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("fault", OF_THE_CALLER)
def test_request_passes_if_the_engine_refuses_it_for_the_same_reason(
    fault: str, request_name: str, engine: FaultyEngine, url: str
) -> None:
    engine.fault, engine.received[:] = OF_THE_CALLER[fault], []
    assert send(url, request_name).status_code == 200
    assert engine.own_requests() == [REQUESTS[request_name][1]]


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_caller_who_may_not_read_the_mapping_is_refused_or_counted(
    request_name: str, engine: FaultyEngine, url: str
) -> None:
    engine.fault, engine.received[:] = status(403), []
    with patient.client(url) as client:
        counters = Counters(client)
        answer = send(url, request_name)
        if request_name in ("document", "bulk"):
            assert (answer.status_code, counters.documents()) == (200, {"mapping_unreadable": 1})
        else:
            assert (answer.status_code, engine.own_requests()) == (403, [])
            assert "view_index_metadata" in answer.text
