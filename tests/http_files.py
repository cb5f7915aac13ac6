"""A small HTTP server of files for tests, which misbehaves on demand."""

from __future__ import annotations

import hashlib
import re
import threading
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tests.local_server import LocalServer


@dataclass
class HttpFiles(LocalServer):
    """Serves `files` by their paths. Use as a context manager.

    Attributes:
        files: Path with a slash in front → content.
        ranges: Whether parts of a file can be asked for.
        faults: One for each coming GET, first in, first out: a status to refuse it with, a number below zero of bytes
            to cut off its answer, or None. None left answers as it should.
        authorization: Where given, requests with another Authorization header are answered with 401.
        modified: The Last-Modified header of each answer, if given; then each answer has another ETag.
        down: While set, every connection breaks.
        requested: Range header of each GET, None where there was none.
    """

    files: dict[str, bytes]
    ranges: bool = True
    faults: list[int | None] = field(default_factory=list)
    authorization: str | None = None
    modified: str | None = None
    down: threading.Event = field(default_factory=threading.Event)
    requested: list[str | None] = field(default_factory=list)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                if served.down.is_set():
                    self.close_connection = True
                    return
                data = served.files.get(self.path.partition("?")[0])
                wrong = served.authorization is not None and self.headers.get("authorization") != served.authorization
                if data is None or wrong:
                    self._answer(404 if data is None else 401, b"")
                    return
                fault = None
                if self.command == "GET":
                    served.requested.append(self.headers.get("range"))
                    fault = served.faults.pop(0) if served.faults else None
                if fault is not None and fault > 0:
                    self._answer(fault, b"")
                    return
                asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", "")) if served.ranges else None
                version = {"etag": hashlib.sha256(data).hexdigest()}
                if served.modified is not None:
                    version = {"etag": uuid.uuid4().hex, "last-modified": served.modified}
                if asked is None:
                    self._answer(200, data, version, cut=fault)
                    return
                start, stop = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
                content_range = {"content-range": f"bytes {start}-{stop - 1}/{len(data)}"}
                self._answer(206, data[start:stop], content_range | version, cut=fault)

            def _answer(
                self, status: int, data: bytes, headers: dict[str, str] | None = None, cut: int | None = None
            ) -> None:
                self.send_response(status)
                for name, value in {"content-length": str(len(data)), **(headers or {})}.items():
                    self.send_header(name, value)
                if served.ranges:
                    self.send_header("accept-ranges", "bytes")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data[:cut])
                if cut is not None:
                    self.close_connection = True

            do_GET = do_HEAD = _serve  # noqa: N815 (http.server's names)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: tests have their own assertions."""

        return Handler
