"""Requests of engines to small web servers: trust, and answers that are not JSON. Real engines: tests/engine."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import trustme
from elastic_transport._node import _http_urllib3
from pydantic import SecretStr

from es_sbert.config import EngineSettings
from es_sbert.engines import clients
from es_sbert.engines.address import parse_addresses
from es_sbert.engines.clients import TransportEngine
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.node_watch import _WatchedNode
from es_sbert.engines.retry import RetryPolicy, is_transient
from es_sbert.errors import AccessDenied, EngineError, EngineUnreachable, RequestFailed, TlsFailed
from tests.raised import raises_as_recorded
from tests.unit.engines.web_server import served

BOTH = pytest.mark.parametrize("engine_type", list(EngineType))


def engine_at(engine_type: EngineType, settings: EngineSettings) -> Engine:
    addresses = parse_addresses(settings)
    return TransportEngine.at(EngineInfo(engine_type, (9, 0, 0), addresses[0].url), addresses)


@BOTH
@pytest.mark.parametrize("is_own", [True, False])
def test_only_the_given_authority_is_trusted(
    engine_type: EngineType, is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, public = trustme.CA(), trustme.CA()
    own.cert_pem.write_to_path(str(tmp_path / "own.pem"))
    public.cert_pem.write_to_path(str(tmp_path / "public.pem"))
    # Takes the place of the public authorities of certifi.
    monkeypatch.setattr(_http_urllib3, "DEFAULT_CA_CERTS", str(tmp_path / "public.pem"))
    with served(certificate=(own if is_own else public).issue_cert("127.0.0.1")) as server:
        settings = EngineSettings(url=server.url, ca_certs=tmp_path / "own.pem", api_key=SecretStr("secret"))
        with closing(_WatchedNode(parse_addresses(settings)[0].node_config())) as watched:
            assert watched.answers() is is_own
        with closing(engine_at(engine_type, settings)) as engine:
            if is_own:
                assert engine.send("GET", "/docs").status == 200
                connect(settings).close()
            else:
                with pytest.raises(TlsFailed):
                    engine.send("GET", "/docs")
                with pytest.raises(TlsFailed):
                    connect(settings)
                assert server.requests == []


_FORMS = {
    "untyped": ({}, b"Refused"),
    "octets": ({"content-type": "application/octet-stream"}, b"\x00\xff Refused"),
    "xml": ({"content-type": "application/xml"}, b"<error>Refused</error>"),
    "problem": ({"content-type": "application/problem+json"}, b'{"title": "Refused"}'),
    "labelled": ({"content-type": "application/json"}, b"Refused"),
    "latin1": ({"content-type": "text/html; charset=iso-8859-1"}, "<html>Refusé, Refused".encode("latin-1")),
    "html": ({"content-type": "text/html"}, b"<html>Refused</html>"),
}
_STATUSES: list[tuple[int, type[EngineError], bool]] = [
    (200, EngineUnreachable, True),
    (302, RequestFailed, False),
    (401, AccessDenied, False),
    (403, AccessDenied, False),
    (413, RequestFailed, False),
    (429, RequestFailed, True),
    (503, RequestFailed, True),
]


@BOTH
def test_an_answer_that_is_not_json_keeps_its_status(engine_type: EngineType) -> None:
    with served() as server, closing(engine_at(engine_type, EngineSettings(url=server.url))) as engine:
        for form, (headers, body) in _FORMS.items():
            server.headers, server.body = headers, body
            for status, kind, transient in _STATUSES:
                server.status = status
                with raises_as_recorded(EngineError) as caught:
                    engine.search("docs", {})
                assert type(caught.value) is kind, (form, status, caught.value)
                assert is_transient(caught.value) is transient, (form, status)
                assert caught.value.status == (0 if kind is EngineUnreachable else status)
            server.status = 413
            with raises_as_recorded(RequestFailed) as refused:
                engine.bulk("docs", b'{"index":{}}\n{}\n')
            assert refused.value.status == 413, form  # the writer sends smaller bodies
            server.status = 404
            assert engine.get_index("docs") is None, form


@BOTH
def test_deprecation_warnings_are_logged_once(engine_type: EngineType, caplog: pytest.LogCaptureFixture) -> None:
    with served() as server, closing(engine_at(engine_type, EngineSettings(url=server.url))) as engine:
        server.headers = {**server.headers, "warning": '299 Engine-9.0.0-abc "[old] is deprecated"'}
        for _ in range(2):
            assert engine.send("GET", "/docs").status == 200
    logged = [each.message for each in caplog.records if each.name == "es_sbert"]
    assert len(logged) == 1
    assert logged[0].endswith("warns: [old] is deprecated")


@BOTH
@pytest.mark.parametrize(("status", "is_left_out"), [(413, False), (429, False), (500, False), (503, True)])
def test_only_a_node_that_is_down_is_left_out(
    engine_type: EngineType, status: int, is_left_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "NODE_BACKOFF", RetryPolicy(0, first=30.0))
    with served() as refuses, served() as answers:
        refuses.status = status
        with closing(engine_at(engine_type, EngineSettings(url=f"{refuses.url},{answers.url}"))) as engine:
            for _ in range(20):
                engine.send("GET", "/docs")
    assert len(refuses.requests) == (1 if is_left_out else 10)
