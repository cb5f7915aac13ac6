"""The TLS certificate of the gateway, and that of the engine, are renewed while the gateway runs."""

from __future__ import annotations

import hashlib
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trustme

from es_sbert.gateway import server_certificate
from es_sbert.gateway.server_certificate import ServerCertificate
from tests.gateway.echo import Echo
from tests.gateway.process import gateway_process

_TIMEOUT = 60


def der(leaf: trustme.LeafCert) -> bytes:
    return ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())


def write_pair(leaf: trustme.LeafCert, folder: Path) -> None:
    (folder / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    (folder / "tls.key").write_bytes(leaf.private_key_pem.bytes())


def publish(leaf: trustme.LeafCert, mount: Path, version: str) -> None:
    """Replace both files at once as Kubernetes does: by a link to another folder."""
    (mount / version).mkdir()
    write_pair(leaf, mount / version)
    (mount / "new").symlink_to(version)
    (mount / "new").replace(mount / "..data")


def presented(url: str) -> bytes:
    """Certificate that a new connection gets."""
    address = urlsplit(url)
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((address.hostname, address.port)))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_renewed_certificate_is_served_to_new_connections(tiny: Path, tmp_path: Path) -> None:
    authority, mount = trustme.CA(), tmp_path / "mount"
    first, second, third = (authority.issue_cert("127.0.0.1") for _ in range(3))
    mount.mkdir()
    publish(first, mount, "..1")
    for name in ("tls.crt", "tls.key"):
        (mount / name).symlink_to(f"..data/{name}")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    files = ["--tls-certificate", str(mount / "tls.crt"), "--tls-key", str(mount / "tls.key")]
    log = tmp_path / "gateway.log"
    keep = httpx.Limits(keepalive_expiry=_TIMEOUT)
    with (
        Echo() as engine,
        gateway_process(engine.url, tmp_path, "--model", str(tiny), "--precision", "fp32", *files) as gateway,
        httpx.Client(base_url=gateway.url, verify=trust, trust_env=False, timeout=_TIMEOUT, limits=keep) as kept,
    ):
        assert presented(gateway.url) == der(first)
        connection = kept.get("/docs/_search").extensions["network_stream"].get_extra_info("socket")

        publish(second, mount, "..2")
        wait_for(lambda: presented(gateway.url) == der(second))
        # A connection from before goes on, and is used again.
        answer = kept.get("/docs/_search")
        assert answer.status_code == 200
        assert answer.extensions["network_stream"].get_extra_info("socket") is connection
        assert log.read_text().count("was renewed: new connections get it") == 1

        # The certificate of another key: the previous pair stays in use, and there is one warning.
        (mount / "..2" / "tls.crt").write_bytes(third.cert_chain_pems[0].bytes())
        wait_for(lambda: "cannot be used" in log.read_text())
        time.sleep(2 * server_certificate.CHECK_SECONDS)
        assert presented(gateway.url) == der(second)
        assert httpx.get(f"{gateway.url}/docs/_search", verify=trust, trust_env=False).status_code == 200
        [warning] = [line for line in log.read_text().splitlines() if "cannot be used" in line]
        assert "The gateway keeps the previous one" in warning
        assert "Replace both files" in warning

        (mount / "..2" / "tls.key").write_bytes(third.private_key_pem.bytes())
        wait_for(lambda: presented(gateway.url) == der(third))
    assert "Traceback" not in log.read_text()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records if record.levelno >= logging.WARNING]  # type: ignore[attr-defined]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check at each call."""
    monkeypatch.setattr(server_certificate, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(server_certificate, "_SETTLE_SECONDS", 0.0)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("damage", ["half", "missing", "empty", "other key"])
def test_unusable_files_keep_the_certificate_and_are_tried_again(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    before, after = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    write_pair(before, tmp_path)
    certificate = ServerCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    context, whole = certificate.context, after.cert_chain_pems[0].bytes()
    match damage:
        case "half":
            (tmp_path / "tls.crt").write_bytes(whole[: len(whole) // 2])
        case "missing":
            (tmp_path / "tls.key").unlink()
        case "empty":
            (tmp_path / "tls.crt").write_bytes(b"")
        case _:
            (tmp_path / "tls.key").write_bytes(after.private_key_pem.bytes())
    for _ in range(5):
        certificate.check()
    assert certificate.context is context
    assert warnings(caplog) == ["certificate_not_renewed"]
    write_pair(after, tmp_path)
    for _ in range(5):
        certificate.check()
    assert certificate.context is not context
    assert warnings(caplog) == ["certificate_not_renewed"]


@pytest.mark.usefixtures("often")
def test_a_change_in_progress_is_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    before, after = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    write_pair(before, tmp_path)
    certificate = ServerCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    context = certificate.context
    certificate.check()
    (tmp_path / "tls.crt").write_bytes(after.cert_chain_pems[0].bytes())
    certificate.check()
    (tmp_path / "tls.key").write_bytes(after.private_key_pem.bytes())
    certificate.check()
    certificate.check()
    assert certificate.context is not context
    assert warnings(caplog) == []


class _Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(0.5)  # so that requests at the same time need several connections
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
    """An engine with TLS; its address, and the context to which a renewed certificate is given."""
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


@pytest.mark.slow
@pytest.mark.parametrize("pinned", [False, True])
def test_certificate_of_the_engine_is_renewed(pinned: bool, tiny: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    first, second = authority.issue_cert("127.0.0.1"), authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trust = ["--fingerprint", hashlib.sha256(der(first)).hexdigest()] if pinned else ["--ca-certs", "ca.pem"]
    options = ["--model", str(tiny), "--precision", "fp32", *trust]
    with tls_engine(first) as (url, context), gateway_process(url, tmp_path, *options) as gateway:
        with httpx.Client(base_url=gateway.url, trust_env=False, timeout=_TIMEOUT) as http:
            assert http.get("/_cluster/health").status_code == 200
            second.configure_cert(context)
            assert http.get("/_cluster/health").status_code == 200  # by the connection that is open
            # Several requests at once need new connections.
            answers: list[int] = []

            def ask() -> None:
                answers.append(
                    httpx.get(f"{gateway.url}/_cluster/health", trust_env=False, timeout=_TIMEOUT).status_code
                )

            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert set(answers) <= ({200, 502} if pinned else {200})
    log = (tmp_path / "gateway.log").read_text()
    if pinned:
        assert 502 in answers
        assert "is not the one with the fingerprint given" in log
    assert "Traceback" not in log
