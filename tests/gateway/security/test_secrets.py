"""Credentials go where they belong and nowhere else, and nobody else is let in."""

from __future__ import annotations

import base64
import logging
import random
import string
from pathlib import Path

import pytest

from es_sbert.gateway.settings import ListenSettings
from tests.gateway.echo import OK, Echo, is_question, raw
from tests.gateway.recorded import Request
from tests.gateway.security.conftest import END, JSON, MOST_BYTES
from tests.gateway.serving import gateway
from tests.gateway.wire import send, talk


@pytest.mark.parametrize("granted", [b"", b"access-control-allow-origin: http://shop.example\r\n"])
def test_only_the_engine_grants_access_to_pages_of_other_origins(url: str, echo: Echo, granted: bytes) -> None:
    echo.reply = raw(OK.replace(b"content-type", granted + b"content-type"))
    asked = (("origin", "http://shop.example"), ("access-control-request-method", "POST"))
    for method in ("GET", "OPTIONS"):
        answer = send(url, Request(method, "/v1/embeddings", asked))
        headers = [value for name, value in answer.headers if name.lower().startswith("access-control")]
        assert headers == (["http://shop.example"] if granted else [])
        arrived = echo.received.pop()
        assert (arrived.method.decode(), arrived.values(b"origin")) == (method, [b"http://shop.example"])


def secret() -> str:
    return "".join(random.SystemRandom().choices(string.ascii_letters, k=24))


def test_credentials_pass_through_and_are_never_logged(
    echo: Echo, tiny: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    names = ("authorization", "cookie", "es-client-authentication", "es-secondary-authorization", "x-api-key")
    secrets = {name: secret() for name in names}
    headers = (*secrets.items(), ("content-type", "application/json"))
    bodies = [b'{"query":{"match":{"semantic":"cats"}}}', b'{"query":', b"x" * (MOST_BYTES + 1)]
    replies = [
        raw(OK),
        raw(b"", close=True),
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", close=True),
        raw(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\n{}"),
    ]
    with gateway(echo.url, tiny, body_bytes=MOST_BYTES) as address:
        for reply in replies:
            echo.reply = reply
            for body in bodies:
                for target in ("/a/_search", "/a/_bulk", "/a/_doc/1"):
                    framing = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
                    talk(address, f"POST {target} HTTP/1.1\r\nhost: x\r\n{head}{framing}".encode() + body)
        passed = [got for got in echo.received if got.target == b"/a/_doc/1"]
        assert all(got.values(name.encode()) == [value.encode()] for got in passed for name, value in secrets.items())
        assert passed
        # What cannot be read is not shown either.
        talk(address, f"GET /a HTTP/1.1\r\nauthorization: {secrets['authorization']}\x00\r\n".encode() + END)
        told = send(address, Request("GET", "/metrics")).body.decode()
    written = caplog.text + "".join(capfd.readouterr()) + told
    assert "ended its response early" in written
    for value in secrets.values():
        assert value not in written
        assert base64.b64encode(value.encode()).decode() not in written


def test_credentials_of_the_gateway_and_cookies_of_others_are_not_used_for_clients(echo: Echo, tiny: Path) -> None:
    own = secret()
    echo.reply = raw(OK.replace(b"content-type", b"set-cookie: session=1\r\ncontent-type"))
    named = echo.url.replace("127.0.0.1", "localhost")  # an address has no cookies
    with gateway(named.replace("http://", f"http://gateway:{own}@"), tiny) as address:
        for target in ("/a/_doc/1", "/a/_bulk", "/_cluster/settings"):
            send(address, Request("PUT", target, JSON, b"{}"))
        send(address, Request("POST", "/a/_search", JSON, b'{"query":{"match":{"semantic":"cats"}}}'))
        answer = send(address, Request("GET", "/a", (("authorization", "Basic eDp5"),)))
    others = [got for got in echo.received if not is_question(got)]
    assert [got.values(b"authorization") for got in others] == [[], [], [], [], [b"Basic eDp5"]]
    assert [got for got in echo.received if got.values(b"cookie")] == []
    assert len(echo.received) > len(others)
    assert own not in str(answer)


def test_listens_on_localhost_by_default() -> None:
    assert ListenSettings().host == "127.0.0.1"
