"""A client of several addresses sends nothing to a node of another cluster."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from elastic_transport import NodeConfig

from es_sbert.config import EngineSettings
from es_sbert.engines import node_watch
from es_sbert.engines.connect import connect
from es_sbert.engines.node_watch import _WatchedNode
from es_sbert.errors import EngineUnreachable


class Node:
    """A server that answers as a node of a cluster.

    Args:
        cluster: UUID of the cluster.
        port: 0 for a free one.
    """

    def __init__(self, cluster: str, *, port: int = 0) -> None:
        version = {"number": "3.0.0", "distribution": "opensearch"}
        root = json.dumps({"cluster_uuid": cluster, "version": version}).encode()
        self.asked: list[str] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = root if self.path == "/" else b'{"acknowledged": true}'
                if self.path != "/":
                    asked.append(self.path)
                self.rfile.read(int(self.headers.get("content-length") or 0))
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.send_header("connection", "close")  # each request opens a connection
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_GET  # noqa: N815  # as http.server names it

            def log_message(self, *args: Any) -> None:
                """Keep the test's output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def node(cluster: str, *, port: int = 0) -> Iterator[Node]:
    started = Node(cluster, port=port)
    try:
        yield started
    finally:
        started.stop()


def test_node_that_comes_back_with_another_cluster_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with node("one") as stays:
        goes = Node("one")
        with closing(connect(EngineSettings(url=f"{stays.url},{goes.url}", timeout=30))) as engine:
            for _ in range(6):
                engine.put_mapping("docs", {})
            assert len(goes.asked) == len(stays.asked) == 3
            goes.stop()
            with node("two", port=goes.port) as other:
                for _ in range(6):
                    engine.put_mapping("docs", {})
                assert other.asked == []
                assert len(stays.asked) == 9
            said = [each for each in caplog.records if each.name == "es_sbert" and "another cluster" in each.message]
            assert len(said) == 1


def test_nodes_of_another_cluster_alone_are_an_error() -> None:
    one, two = Node("one"), Node("one")
    with closing(connect(EngineSettings(url=f"{one.url},{two.url}", timeout=30))) as engine:
        engine.put_mapping("docs", {})
        one.stop()
        two.stop()
        with node("two", port=one.port) as first, node("two", port=two.port) as second:
            with pytest.raises(EngineUnreachable, match="belong to different clusters"):
                engine.put_mapping("docs", {})
            assert first.asked == second.asked == []


def test_threads_share_one_check_of_a_frozen_node(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(node_watch, "HEALTH_SECONDS", 0.5)
    with closing(frozen), closing(_WatchedNode(NodeConfig("http", "127.0.0.1", frozen.getsockname()[1]))) as watched:
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: watched.answers(), range(16)))
        assert answers == [False] * 16
        asked = 0
        frozen.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                frozen.accept()[0].close()
                asked += 1
        # A thread that starts late begins a second check.
        assert asked <= 2
