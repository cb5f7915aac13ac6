"""What callers learn of the engine behind the gateway, what the log says, and how much is quoted."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httpx
import orjson
import pytest

from es_sbert.cli.logs import configure_logging
from tests.gateway import patient
from tests.gateway.echo import HEAD, Echo, Received, raw
from tests.gateway.recorded import Request
from tests.gateway.security.conftest import JSON
from tests.gateway.serving import gateway
from tests.gateway.wire import send, talk

SEMANTIC = orjson.dumps({"query": {"match": {"semantic": "cats"}}})
REQUESTS = [
    Request("GET", "/a"), Request("POST", "/a/_search", JSON, SEMANTIC), Request("POST", "/a/_doc", JSON, b"{}"),
    Request("POST", "/a/_bulk", JSON, b'{"index":{}}\n{"a":"b"}\n'), Request("GET", "/ui/api/indices"),
]  # fmt: skip


def hangs(got: Received, out: BinaryIO) -> bool:
    return not threading.Event().wait(3)


@pytest.mark.parametrize(
    ("scheme", "reply", "limits", "status", "words"),
    [("http", None, {}, 502, "nothing listens at"),
     ("https", raw(b"x"), {}, 502, "the connection to https://"),
     ("http", raw(b"", close=True), {}, 502, "ended its response early"),
     ("http", hangs, {"answer_seconds": 0.3, "connect_seconds": 0.3}, 504, "did not respond in time")],
    ids=["nobody", "no TLS", "breaks off", "hangs"],
)  # fmt: skip
def test_engine_address_is_hidden_from_clients(
    tiny: Path, caplog: pytest.LogCaptureFixture, silent_port: int, scheme: str, reply: Any, limits: dict[str, float],
    status: int, words: str,
) -> None:  # fmt: skip
    with Echo() as engine:
        engine.reply = reply or engine.reply
        port = silent_port if reply is None else urlsplit(engine.url).port
        with gateway(f"{scheme}://localhost:{port}", tiny, **limits) as url:
            for request in REQUESTS:
                answer = send(url, request)
                assert answer.status == status, answer
                assert b"The gateway's log has the reason" in answer.body
                for secret in (b"localhost", str(port).encode(), b"SSL", b"certificate"):
                    assert secret not in answer.body, (request, answer)
                if status == 502:  # the engine was never seen
                    assert answer.header("x-elastic-product") is None
            ready, told = (send(url, Request("GET", path)).body for path in ("/readyz", "/metrics"))
            assert b"localhost" not in ready
            assert reply is not None or b'upstream_errors_total{reason="unreachable"}' in told
    said = [message for message in caplog.messages if words in message]
    assert f"localhost:{port}" in said[0]


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
    written = capfd.readouterr().err
    assert "pass without vectors" in written
    for line in written.splitlines():
        assert line.isprintable()
        assert not line.startswith("Error: forged")
        if form == "json":
            assert orjson.loads(line)["message"]


def test_non_utf8_header_is_rejected(url: str, echo: Echo) -> None:
    """The client library could not send it on unchanged."""
    said = talk(url, b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-opaque-id: caf\xe9\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"Write it in ASCII or UTF-8" in said
    assert echo.received == []


@pytest.mark.parametrize(
    ("body", "status"),
    [({"model": "m" * 1_000_000}, 404), ({"input_type": "v" * 1_000_000}, 400), ({"x" * 1_000_000: "v"}, 400)],
    ids=["model", "value", "name"],
)
def test_invalid_fields_are_not_echoed_at_length(echo: Echo, tiny: Path, body: dict[str, str], status: int) -> None:
    with gateway(echo.url, tiny) as url:
        answer = patient.post(f"{url}/v1/embeddings", json={"input": "a", **body})
    assert answer.status_code == status
    assert len(answer.content) < 5000


def test_response_that_is_cut_off_is_logged_with_its_path(
    url: str, echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    echo.reply = raw(head + b'{"a":', close=True)
    with caplog.at_level(logging.WARNING), pytest.raises(httpx.RemoteProtocolError):
        patient.get(f"{url}/docs/_doc/cut?secret=1")
    lines = [record.getMessage() for record in caplog.records]
    assert any("the response to GET /docs/_doc/cut was cut off" in line for line in lines), lines
    assert not any("ASGI callable" in line or "secret" in line for line in lines)
