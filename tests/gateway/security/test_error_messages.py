"""What callers learn of the engine behind the gateway and of its bugs, what the log says, and how much is quoted."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from es_sbert.cli.logs import configure_logging
from es_sbert.gateway.app import Gateway
from tests.gateway import patient
from tests.gateway.echo import HEAD, Echo, Received, raw
from tests.gateway.recorded import Request
from tests.gateway.serving import gateway
from tests.gateway.wire import send, talk

JSON = (("content-type", "application/json"),)
SEMANTIC = orjson.dumps({"query": {"match": {"semantic": "cats"}}})
REQUESTS = [
    Request("GET", "/a"), Request("POST", "/a/_search", JSON, SEMANTIC), Request("POST", "/a/_doc", JSON, b"{}"),
    Request("POST", "/a/_bulk", JSON, b'{"index":{}}\n{"a":"b"}\n'), Request("GET", "/ui/api/indices"),
    Request("GET", "/readyz"),
]  # fmt: skip


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def hangs(got: Received, out: BinaryIO) -> bool:
    return not threading.Event().wait(3)


@pytest.mark.parametrize(
    ("scheme", "reply", "limits", "status", "words"),
    [("http", None, {}, 502, "nothing listens at"),
     ("https", raw(b"x"), {}, 502, "the connection to https://"),
     ("http", raw(b"", close=True), {}, 502, "ended its response early"),
     ("http", raw(b"no HTTP\r\n\r\n", close=True), {}, 502, "ended its response early"),
     ("http", raw(b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\n{}"), {}, 200, ""),
     ("http", hangs, {"answer_seconds": 0.3, "connect_seconds": 0.3}, 504, "did not respond in time")],
    ids=["nobody", "no TLS", "breaks off", "no HTTP", "compressed", "hangs"],
)  # fmt: skip
def test_engine_address_is_hidden_from_clients(
    tiny: Path,
    caplog: pytest.LogCaptureFixture,
    scheme: str,
    reply: Any,
    limits: dict[str, float],
    status: int,
    words: str,
) -> None:
    with Echo() as engine:
        if reply is not None:
            engine.reply = reply
        port = urlsplit(engine.url).port if reply is not None else closed_port()
        with gateway(f"{scheme}://localhost:{port}", tiny, **limits) as url:
            for request in REQUESTS:
                answer = send(url, request)
                for secret in (b"localhost", str(port).encode(), b"SSL", b"certificate"):
                    assert secret not in answer.body, (request, answer)
                if request.target == "/readyz":
                    assert answer.status in (200, 503)
                elif status != 200:
                    assert answer.status == status, answer
                    assert b"The gateway's log has the reason" in answer.body
                    if status == 502:  # the engine was never seen
                        assert answer.header("x-elastic-product") is None
    if words:
        said = [message for message in caplog.messages if words in message]
        assert said
        assert f"localhost:{port}" in said[0]


def test_repeated_failures_are_counted_and_log_is_rate_limited(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    with gateway(f"http://127.0.0.1:{closed_port()}", tiny) as url:
        for _ in range(50):
            assert send(url, Request("GET", "/a")).status == 502
        told = send(url, Request("GET", "/metrics")).body.decode()
    assert 'es_sbert_gateway_upstream_errors_total{reason="unreachable"} 50.0' in told
    assert 1 <= len([message for message in caplog.messages if "nothing listens" in message]) < 25


@pytest.mark.parametrize("form", ["text", "json"])
def test_internal_error_is_logged_with_traceback(
    echo: Echo, tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], form: str
) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("first\nsecond\x1b[2J")

    monkeypatch.setattr(Gateway, "_dispatch", broken)
    configure_logging(form)
    with gateway(echo.url, tiny) as url:
        answer = send(url, Request("GET", "/a"))
    assert answer.status == 500
    assert b"second" not in answer.body
    lines = capfd.readouterr().err.splitlines()
    if form == "json":
        [bug] = [one for one in map(orjson.loads, lines) if "failed to handle a request" in one["message"]]
        assert "Traceback" in bug["traceback"]
        assert "in broken" in bug["traceback"]
        return
    first = lines.index("the gateway failed to handle a request")
    trace = lines[first + 1 :]
    assert trace[0] == "    Traceback (most recent call last):"
    assert any("in broken" in line for line in trace)
    assert trace[-1].startswith("    KeyError: 'first")
    assert all(line.startswith("    ") and line.isprintable() for line in trace)


@pytest.mark.parametrize("form", ["text", "json"])
def test_request_names_cannot_forge_log_lines(
    echo: Echo, tiny: Path, capfd: pytest.CaptureFixture[str], form: str
) -> None:
    def reply(got: Received, out: BinaryIO) -> bool:
        # The mapping may not be read, which a write is logged for.
        status = b"403 Forbidden" if b"_meta.es_sbert" in got.target else b"200 OK"
        out.write(HEAD.replace(b"200 OK", status) + b"content-length: 2\r\n\r\n{}")
        return True

    echo.reply = reply
    configure_logging(form)
    with gateway(echo.url, tiny) as url:
        name = "x%0aError:%20forged%0d%1b%5b2J%e2%80%ae"
        send(url, Request("POST", f"/{name}/_doc", JSON, b'{"title":"cats"}'))
        send(url, Request("POST", "/a/_doc", (*JSON, ("x-opaque-id", "\x1b[2J")), b'{"title":"cats"}'))
        send(url, Request("GET", "/a", (("x-broken", "\x1b[2J\x00"),)))
    written = capfd.readouterr().err
    assert "pass without vectors" in written
    for line in written.splitlines():
        assert line.isprintable()
        assert not line.startswith("Error: forged")
        if form == "json":
            assert orjson.loads(line)["message"]


def test_non_utf8_header_is_rejected(echo: Echo, tiny: Path) -> None:
    """The client library could not send it on as it is."""
    with gateway(echo.url, tiny) as url:
        said = talk(url, b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-opaque-id: caf\xe9\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"Write it in ASCII or UTF-8" in said
        assert echo.received == []
        talk(url, "GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-opaque-id: café\r\n\r\n".encode())
    assert echo.only().values(b"x-opaque-id") == ["café".encode()]


MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def wide_url(echo: Echo, tiny: Path) -> Iterator[str]:
    with gateway(echo.url, tiny) as address:
        yield address


def test_unknown_model_is_not_echoed_at_length(wide_url: str) -> None:
    answer = patient.post(f"{wide_url}/v1/embeddings", json={"input": "a", "model": "m" * MEGABYTE})
    assert answer.status_code == 404
    assert len(answer.content) < 5000
    assert "characters" in answer.json()["error"]["message"]


@pytest.mark.parametrize("field", ["encoding_format", "input_type", "x" * MEGABYTE])
def test_invalid_fields_are_not_echoed_at_length(wide_url: str, field: str) -> None:
    answer = patient.post(f"{wide_url}/v1/embeddings", json={"input": "a", field: "v" * MEGABYTE})
    assert answer.status_code == 400
    assert len(answer.content) < 5000


def test_response_that_is_cut_off_is_logged_with_its_path(
    wide_url: str, echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    echo.reply = raw(head + b'{"a":', close=True)
    with caplog.at_level(logging.WARNING), pytest.raises(httpx.RemoteProtocolError):
        patient.get(f"{wide_url}/docs/_doc/cut?secret=1")
    lines = [record.getMessage() for record in caplog.records]
    assert any("the response to GET /docs/_doc/cut was cut off" in line for line in lines), lines
    assert not any("ASGI callable" in line or "secret" in line for line in lines)
