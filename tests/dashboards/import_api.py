"""A small server that speaks the import API of Kibana or OpenSearch Dashboards, as their route and importer do.

Neither can be had from a package registry. What it checks, in which order and words, follows `routes/import.ts` and the
importer in `src/core/packages/saved-objects` of elastic/kibana and `src/core/server/saved_objects` of
OpenSearch-Dashboards.
"""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from es_sbert.diagnostics.saved_objects import DashboardProduct
from tests.dashboards.checks import OBJECTS

Json = dict[str, Any]
_TYPES = ("index-pattern", "search", "visualization", "dashboard")
_PREFIX = {DashboardProduct.KIBANA: "kbn", DashboardProduct.DASHBOARDS: "osd"}


@dataclass
class ImportApi:
    """The server's state and its rules."""

    product: DashboardProduct
    password: str | None = None
    may_import: bool = True
    largest: int = 1 << 20
    spaces: tuple[str, ...] = ("search",)
    base_path: str = ""
    lists_fields: bool = True
    objects: dict[str, dict[tuple[str, str], Json]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def status(self) -> tuple[int, Json]:
        return 200, {"name": "here", "status": {"overall": {"level": "available"}}}

    def fields(self, pattern: str) -> tuple[int, Json]:
        """`GET /api/index_patterns/_fields_for_wildcard` of OpenSearch Dashboards."""
        names = (pattern, "_id")
        known = {"searchable": True, "aggregatable": True, "readFromDocValues": False}
        return 200, {"fields": [{"name": name, "type": "string", "esTypes": ["keyword"], **known} for name in names]}

    def find(self, room: str, types: list[str]) -> tuple[int, Json]:
        """`GET /api/saved_objects/_find`."""
        found = [line for (kind, _), line in self.objects.get(room, {}).items() if kind in types]
        return 200, {"page": 1, "per_page": 10_000, "total": len(found), "saved_objects": found}

    def import_file(self, room: str, query: dict[str, str], raw: bytes, name: str) -> tuple[int, Json]:
        if PurePath(name).suffix.lower() != ".ndjson":
            return _bad(f"Invalid file extension {PurePath(name).suffix}")
        lines = [json.loads(line) for line in raw.decode().split("\n") if line]
        keys = [(line["type"], line["id"]) for line in lines]
        if len(set(keys)) < len(keys):
            return _bad("Non-unique import objects detected")
        store = self.objects.setdefault(room, {})
        overwrite = query.get("overwrite") == "true"
        errors = [error for line in lines for error in _errors(self.product, line, set(keys), store, overwrite)]
        if errors:
            return 200, {"success": False, "successCount": 0, "errors": errors}
        results = []
        for line in lines:
            key = (line["type"], line["id"])
            store[key] = line
            results.append({"type": key[0], "id": key[1], "meta": {"title": line["attributes"]["title"]}})
        return 200, {"success": True, "successCount": len(lines), "successResults": results}


def _errors(
    product: DashboardProduct, line: Json, sent: set[tuple[str, str]], store: dict[tuple[str, str], Json], ignore: bool
) -> Iterator[Json]:
    named = {"type": line["type"], "id": line["id"], "meta": {"title": line["attributes"]["title"]}}
    if line["type"] not in _TYPES:
        yield named | {"error": {"type": "unsupported_type"}}
        return
    wrong = next(OBJECTS[product].iter_errors(line), None)
    if wrong is not None:
        yield named | {"error": {"type": "unknown", "statusCode": 400, "message": wrong.message}}
        return
    if (line["type"], line["id"]) in store and not ignore:
        yield named | {"error": {"type": "conflict"}}
    missing = [
        {"type": r["type"], "id": r["id"]}
        for r in line["references"]
        if (r["type"], r["id"]) not in sent and (r["type"], r["id"]) not in store
    ]
    if missing:
        yield named | {"error": {"type": "missing_references", "references": missing}}


def _bad(message: str) -> tuple[int, Json]:
    return 400, {"statusCode": 400, "error": "Bad Request", "message": message}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ImportApi

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(*self._route(b""))

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        body = self.rfile.read(length)
        self._answer(*self._route(body))

    def _route(self, body: bytes) -> tuple[int, Json]:
        api = self.api
        api.requests.append(f"{self.command} {self.path}")
        url = urlsplit(self.path)
        path = unquote(url.path)
        missing = 404, {"statusCode": 404, "error": "Not Found", "message": "Not Found"}
        if not path.startswith(f"{api.base_path}/"):
            return missing
        path = path.removeprefix(api.base_path)
        room = self.headers.get("securitytenant", "") if api.product is DashboardProduct.DASHBOARDS else ""
        if api.product is DashboardProduct.KIBANA and path.startswith("/s/"):
            room, _, path = path.removeprefix("/s/").partition("/")
            path = f"/{path}"
            if room not in api.spaces:
                return missing
        if api.password is not None:
            wanted = "Basic " + b64encode(f"user:{api.password}".encode()).decode()
            if self.headers.get("authorization") != wanted:
                return 401, {"statusCode": 401, "error": "Unauthorized", "message": "Unauthorized"}
        if self.command == "GET":
            if path == "/api/saved_objects/_find":
                return api.find(room, parse_qs(url.query)["type"])
            if path == "/api/index_patterns/_fields_for_wildcard" and api.lists_fields:
                return api.fields(parse_qs(url.query)["pattern"][0])
            return api.status() if path == "/api/status" else missing
        xsrf = f"{_PREFIX[api.product]}-xsrf"
        if xsrf not in self.headers:
            the = "a" if api.product is DashboardProduct.KIBANA else "the"
            return _bad(f"Request must contain {the} {xsrf} header.")
        if path != "/api/saved_objects/_import":
            return missing
        if len(body) > api.largest:
            message = f"Payload content length greater than maximum allowed: {api.largest}"
            return 413, {"statusCode": 413, "error": "Request Entity Too Large", "message": message}
        if not api.may_import:
            return 403, {"statusCode": 403, "error": "Forbidden", "message": "Unable to bulk_create dashboard"}
        kind = self.headers.get("content-type", "")
        if not kind.startswith("multipart/form-data;"):
            return 415, {"statusCode": 415, "error": "Unsupported Media Type", "message": kind}
        form = BytesParser(policy=HTTP).parsebytes(f"content-type: {kind}\r\n\r\n".encode() + body)
        parts = {part.get_param("name", header="content-disposition"): part for part in form.iter_parts()}
        if set(parts) != {"file"} or parts["file"].get_filename() is None:
            return _bad("[request body.file]: expected value of type [Stream] but got [undefined]")
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        content = parts["file"].get_payload(decode=True)
        assert isinstance(content, bytes)
        return api.import_file(room, query, content, str(parts["file"].get_filename()))

    def _answer(self, status: int, body: Json) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json; charset=utf-8")
        self.send_header("content-length", str(len(raw)))
        self.send_header(f"{_PREFIX[self.api.product]}-name", "here")
        self.end_headers()
        self.wfile.write(raw)


@contextmanager
def serving(api: ImportApi, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The server's address, until the block ends."""
    handler = type("Handler", (_Handler,), {"api": api})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}{api.base_path}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
