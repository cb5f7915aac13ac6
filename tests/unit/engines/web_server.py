"""A small web server in place of an engine: the same answer to every request."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import trustme


def opensearch_root(cluster: str = "u", number: str = "3.0.0") -> bytes:
    """Body of `GET /` of a node of OpenSearch."""
    return orjson.dumps({"cluster_uuid": cluster, "version": {"number": number, "distribution": "opensearch"}})


class Server:
    """The answer, which a test may change, and the paths that were requested, without `/`."""

    def __init__(self, root: bytes | None) -> None:
        self.root = root
        self.status, self.headers, self.body = 200, {"content-type": "application/json"}, b"{}"
        self.requests: list[str] = []
        self.port, self.url = 0, ""


@contextmanager
def served(
    root: bytes | None = opensearch_root(), *, port: int = 0, certificate: trustme.LeafCert | None = None
) -> Iterator[Server]:
    """Serve an answer.

    Args:
        root: Body of `GET /`; None for the same answer as to other requests.
        port: 0 for a free one.
        certificate: Speaks TLS with it.
    """
    answer = Server(root)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path != "/":
                answer.requests.append(self.path)
            is_root = self.path == "/" and answer.root is not None
            body = answer.root if is_root and answer.root is not None else answer.body
            self.send_response(200 if is_root else answer.status)
            # Each request opens a connection.
            for name, value in {**answer.headers, "content-length": str(len(body)), "connection": "close"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_GET  # noqa: N815  # as http.server names them

        def log_message(self, *args: Any) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    answer.port = server.server_port
    answer.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{answer.port}"
    try:
        yield answer
    finally:
        server.shutdown()
        server.server_close()
