"""The gateway before several nodes: dead ones, frozen ones, and slow ones that must not be taken for frozen."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import httpx
import orjson
import pytest

from tests.conftest import free_port
from tests.engine.relay import Relay
from tests.gateway import patient
from tests.gateway.echo import HEAD, OK, Echo, Received, raw
from tests.gateway.serving import gateway

JSON = {"content-type": "application/json"}
OFF = {"x-es-sbert": "off"}
# Sooner than by default; an answer to a health request is waited for as long.
SOON = {"unanswered_seconds": 0.3, "health_seconds": 1.5}


@contextmanager
def proxied(tiny: Path, *upstreams: str) -> Iterator[httpx.Client]:
    with gateway(",".join(upstreams), tiny, **SOON) as url, patient.client(url, headers=JSON) as client:
        yield client


def asked(echo: Echo, target: bytes) -> int:
    return sum(got.target == target for got in echo.received)


@pytest.fixture
def echoes() -> Iterator[tuple[Echo, Echo]]:
    with Echo() as one, Echo() as other:
        yield one, other


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_any_request_goes_on_to_the_next_node_if_one_refuses_connections(tiny: Path, method: str) -> None:
    with Echo() as echo, proxied(tiny, f"http://127.0.0.1:{free_port()}", echo.url) as client:
        for number in range(4):
            assert client.request(method, f"/docs/_doc/{number}", content=b'{"a":1}').status_code == 200
        # A body that arrives in parts is sent from its beginning.
        assert client.request(method, "/docs/_doc/5", content=iter([b'{"a"', b":1}"])).status_code == 200
        assert {got.body for got in echo.received if b"_doc" in got.target and got.body} == {b'{"a":1}'}
        shown = client.get("/metrics").text
        assert 'es_sbert_gateway_upstream_up{node="1"} 0.0' in shown
        assert 'es_sbert_gateway_upstream_up{node="2"} 1.0' in shown
        assert client.get("/readyz").json()["engine"] == "ok"


def test_a_read_goes_on_to_the_next_node_if_one_freezes(tiny: Path, echoes: tuple[Echo, Echo]) -> None:
    with Relay(echoes[0].url) as relay, proxied(tiny, relay.url, echoes[1].url) as client:
        relay.freeze()
        for _ in range(4):
            assert client.get("/docs/_doc/1").status_code == 200
        assert asked(echoes[1], b"/docs/_doc/1") == 4


def test_a_write_is_not_repeated_if_a_node_freezes(tiny: Path, echoes: tuple[Echo, Echo]) -> None:
    with Relay(echoes[0].url) as relay, proxied(tiny, relay.url, echoes[1].url) as client:
        for _ in range(2):
            assert client.post("/docs/_refresh").status_code == 200
        relay.freeze()
        answers = [client.post("/docs/_forcemerge") for _ in range(4)]
        # One of them went to the frozen node, which is left out from then on.
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 504]
        [failed] = [answer for answer in answers if answer.status_code == 504]
        reason = failed.json()["error"]["reason"]
        assert "has stopped answering" in reason
        assert "check before you repeat a write" in reason
        assert relay.url.rpartition(":")[2] not in reason
        assert asked(echoes[1], b"/docs/_forcemerge") == 3


def test_a_single_frozen_engine_is_a_504(tiny: Path, echoes: tuple[Echo, Echo]) -> None:
    with Relay(echoes[0].url) as relay, proxied(tiny, relay.url) as client:
        assert client.post("/docs/_doc/1").status_code == 200
        relay.freeze()
        failed = client.post("/docs/_doc/1")
        assert failed.status_code == 504
        assert "has stopped answering" in failed.json()["error"]["reason"]
        ready = client.get("/readyz")
        assert (ready.status_code, "127.0.0.1" in ready.text) == (503, False)
        relay.thaw()
        assert client.post("/docs/_doc/1").status_code == 200


def slowly(seconds: float, *, in_body: bool) -> Callable[[Received, BinaryIO], bool]:
    """Answer health requests at once, and others after a while, before the answer or within it."""

    def reply(got: Received, out: BinaryIO) -> bool:
        if got.target == b"/":
            out.write(OK)
        elif in_body:
            out.write(HEAD + b"content-length: 2\r\n\r\n{")
            out.flush()
            time.sleep(seconds)
            out.write(b"}")
        else:
            time.sleep(seconds)
            out.write(OK)
        return True

    return reply


@pytest.mark.parametrize("in_body", [False, True])
def test_a_slow_answer_of_a_healthy_node_is_waited_for(tiny: Path, in_body: bool) -> None:
    reply = slowly(3.0, in_body=in_body)
    with Echo(reply) as one, Echo(reply) as other, proxied(tiny, one.url, other.url) as client:
        answer = client.get("/docs/_doc/1")
        assert (answer.status_code, answer.text) == (200, "{}")
        assert asked(one, b"/docs/_doc/1") + asked(other, b"/docs/_doc/1") == 1
        # It was looked at: a stopped node would have been noticed.
        assert asked(one, b"/") + asked(other, b"/") > 1


def hang_up(got: Received, out: BinaryIO) -> bool:
    if got.target == b"/":
        out.write(OK)
    return got.target == b"/"


REPEATED = {
    "GET /docs/_settings": 2,
    "POST /docs/_search": 2,
    "POST /docs/_search?scroll=1m": 1,
    "POST /docs/_forcemerge": 1,
    "PUT /docs/_doc/1": 1,
}


@pytest.mark.parametrize("single", [False, True])
def test_only_reads_are_repeated_after_a_connection_broke(tiny: Path, single: bool) -> None:
    """The engine, or a proxy in front of it, may have closed an idle connection in that moment."""
    for request, sent in REPEATED.items():
        method, path = request.split()
        with Echo(hang_up) as one, Echo(hang_up) as two, proxied(tiny, one.url, *[two.url][single:]) as client:
            assert client.request(method, path, content=b"{}", headers=OFF).status_code == 502
            assert asked(one, path.encode()) + asked(two, path.encode()) == sent, request


def member_of(cluster: str) -> Callable[[Received, BinaryIO], bool]:
    """Answer as a node of a cluster, and to other requests than that for the root as `OK`."""
    root = orjson.dumps({"cluster_uuid": cluster, "version": {"number": "9.0.0"}})
    answer = raw(HEAD + b"content-length: %d\r\n\r\n%s" % (len(root), root))
    return lambda got, out: (answer if got.target == b"/" else raw(OK))(got, out)


def test_node_that_comes_back_with_another_cluster_gets_nothing(tiny: Path) -> None:
    with Echo(member_of("one")) as one, Echo(member_of("one")) as same, Echo(member_of("two")) as other:
        relay = Relay(one.url)
        port = int(relay.url.rpartition(":")[2])
        with proxied(tiny, relay.url, same.url) as client:
            for _ in range(4):
                assert client.post("/docs/_refresh").status_code == 200
            assert [asked(echo, b"/docs/_refresh") for echo in (one, same)] == [2, 2]
            relay.stop()
            time.sleep(1.1)  # no engine starts within the second for which its cluster is known
            # No request fails in the meantime: the next one finds a node that listens.
            with Relay(other.url, port=port):
                for _ in range(8):
                    assert client.put("/docs/_doc/1", json={"a": 1}).status_code == 200
                assert asked(other, b"/docs/_doc/1") == 0
                assert asked(same, b"/docs/_doc/1") == 8
                assert "another cluster" in client.get("/readyz").json()["nodes"]
            deadline = time.monotonic() + 120
            with Relay(one.url, port=port):
                while not asked(one, b"/docs/_doc/1"):
                    assert client.put("/docs/_doc/1", json={"a": 1}).status_code == 200
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            assert asked(other, b"/docs/_doc/1") == 0


def test_serve_refuses_addresses_of_different_clusters(tmp_path: Path) -> None:
    with Echo(member_of("one")) as one, Echo(member_of("two")) as two:
        command = [sys.executable, "-m", "es_sbert.cli.main", "serve", "--port", "0"]
        command += ["--upstream", f"{one.url},{two.url}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "belong to different clusters" in done.stderr
