"""A server that answers every path with the description of an engine."""

from __future__ import annotations

import socketserver
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.errors import RequestFailed
from tests.local_server import LocalServer

BANNERS = {
    "Elasticsearch": {"version": {"number": "9.2.0"}, "tagline": "You Know, for Search", "cluster_uuid": "u"},
    "OpenSearch": {"version": {"number": "3.6.0", "distribution": "opensearch"}, "cluster_uuid": "u"},
}


@dataclass
class Banner(LocalServer):
    """Answers every request with the banner of an engine."""

    name: str

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        name = self.name

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                body = orjson.dumps(BANNERS[name])
                self.send_response(200)
                if name == "Elasticsearch":
                    self.send_header("x-elastic-product", name)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 (http.server's names)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


CALLS: dict[str, Callable[[Engine], object]] = {
    "get_index": lambda engine: engine.get_index("docs"),
    "count": lambda engine: engine.count("docs"),
    "bulk": lambda engine: engine.bulk("docs", b'{"index":{}}\n{}\n'),
    "mget_sources": lambda engine: engine.mget_sources("docs", ["1"]),
    "search": lambda engine: engine.search("docs", {}),
    "search_point_in_time": lambda engine: engine.search_point_in_time("id", {}),
    "multi_search": lambda engine: engine.multi_search("docs", [{}]),
    "open_point_in_time": lambda engine: engine.open_point_in_time("docs", shard=0),
    "get_aliases": lambda engine: engine.get_aliases("docs"),
    "shard_states": lambda engine: engine.shard_states("docs"),
    "index_uuids": lambda engine: engine.index_uuids("docs"),
    "result_window": lambda engine: engine.result_window("docs"),
    "store_size": lambda engine: engine.store_size("docs"),
    "is_task_done": lambda engine: engine.is_task_done("node:1"),
}


@pytest.mark.parametrize("name", list(BANNERS))
@pytest.mark.parametrize("call", list(CALLS))
def test_answer_of_another_form_is_an_error_with_a_remedy(name: str, call: str) -> None:
    with Banner(name) as server:
        engine = connect(EngineSettings(url=server.url))
        try:
            with pytest.raises(RequestFailed) as caught:
                CALLS[call](engine)
        finally:
            engine.close()
    assert server.url in caught.value.message
    assert caught.value.remedy
