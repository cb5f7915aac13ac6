"""TLS between clients and the gateway, and between the gateway and the engine."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import trustme

from tests.gateway.running import gateway_process

pytestmark = pytest.mark.slow


class _Engine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"version": {"number": "9.5.0"}, "tagline": "You Know, for Search"}'
        self.send_response(200)
        self.send_header("X-Elastic-Product", "Elasticsearch")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def tls_engine(leaf: trustme.LeafCert) -> Iterator[tuple[str, ssl.SSLContext]]:
    """An engine that closes each connection; its address, and the context to which a renewed certificate is given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Engine)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", context
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_gateway_presents_its_certificate_and_checks_that_of_the_engine(tiny: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    own, first, second = (authority.issue_cert("127.0.0.1") for _ in range(3))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    own.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    files = ["--tls-certificate", "tls.crt", "--tls-key", "tls.key"]
    options = ["--model", str(tiny), "--precision", "fp32", *files, "--ca-certs", "ca.pem"]
    clients_trust = ssl.create_default_context()
    authority.configure_trust(clients_trust)
    with (
        tls_engine(first) as (url, context),
        gateway_process(url, tmp_path, *options) as gateway,
        httpx.Client(base_url=gateway.url, verify=clients_trust, trust_env=False, timeout=60) as http,
    ):
        assert gateway.url.startswith("https://")
        assert http.get("/_cluster/health").status_code == 200
        second.configure_cert(context)  # renewed
        assert http.get("/_cluster/health").status_code == 200
    assert "Traceback" not in (tmp_path / "gateway.log").read_text()
