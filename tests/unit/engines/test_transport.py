"""Requests of engines to small web servers: trust, and answers that are not JSON. Real engines: tests/engine."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme
from elastic_transport._node import _http_urllib3

from es_sbert.config import EngineSettings
from es_sbert.engines.address import parse_addresses
from es_sbert.engines.clients import ENGINE_CLASSES
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.node_watch import _WatchedNode
from es_sbert.errors import TlsFailed

BOTH = pytest.mark.parametrize("engine_type", list(EngineType))
ROOT = orjson.dumps({"version": {"number": "3.0.0", "distribution": "opensearch"}, "cluster_uuid": "u"})


class Server:
    """Answers every request with the same response; `GET /` with the root of OpenSearch, if it gives one."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, {"content-type": "application/json"}, b"{}"
        self.requests = 0
        self.url = ""


@contextmanager
def served(certificate: trustme.LeafCert | None = None) -> Iterator[Server]:
    answer = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            is_root = self.path == "/"
            answer.requests += not is_root
            body = ROOT if is_root else answer.body
            self.send_response(200 if is_root else answer.status)
            for name, value in {**answer.headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815  # as http.server names it

        def log_message(self, *args: Any) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    answer.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}"
    try:
        yield answer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def engine_at(engine_type: EngineType, settings: EngineSettings) -> Engine:
    addresses = parse_addresses(settings)
    return ENGINE_CLASSES[engine_type].at(EngineInfo(engine_type, (9, 0, 0), addresses[0].url), addresses)


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
    with served((own if is_own else public).issue_cert("127.0.0.1")) as server:
        settings = EngineSettings(url=server.url, ca_certs=str(tmp_path / "own.pem"), api_key="secret")
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
                assert server.requests == 0
