"""What an application sends to its engine, written down on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import orjson

from tests.local_server import LocalServer


@dataclass
class Recorder(LocalServer):
    """Hands searches on to an engine and keeps them. Use as a context manager.

    Attributes:
        upstream: Address of the engine.
        requests: Path, content type and body of each request, in order: `body` is the object of a search, or the
            list of the lines of a multi-search.
    """

    upstream: str
    requests: list[dict[str, Any]] = field(default_factory=list)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                content_type = self.headers["Content-Type"]
                lines = [orjson.loads(line) for line in body.splitlines()]
                recorder.requests.append(
                    {
                        "path": self.path,
                        "content_type": content_type,
                        "body": lines if self.path.endswith("_msearch") else lines[0],
                    }
                )
                upstream = HTTPConnection(urlsplit(recorder.upstream).netloc, timeout=60)
                try:
                    upstream.request("POST", self.path, body, {"Content-Type": content_type})
                    answer = upstream.getresponse()
                    content = answer.read()
                finally:
                    upstream.close()
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: tests read `requests`."""

        return Handler
