"""Routes of `/ui`: the page's static files and its API."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from html.entities import html5
from importlib import resources
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from es_sbert.engines.rest import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.admission import AdmissionControl, RequestSlot
from es_sbert.gateway.errors import BadRequest, error_body, http_status
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.proxy.incoming_request import Headers, IncomingRequest, is_uncompressed_json
from es_sbert.gateway.settings import Limits
from es_sbert.gateway.ui.page_api import EngineErrorReply, PageApi
from es_sbert.io.html_text import HIDDEN, SEPARATING
from es_sbert.io.text_language import stop_words

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Documents are untrusted: nothing in them may run, load or frame anything. With `trusted-types`, the browser refuses to
# make HTML from text.
CONTENT_SECURITY_POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
    "require-trusted-types-for 'script'", "trusted-types 'none'",
))  # fmt: skip
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def page_files() -> dict[str, bytes]:
    """File name → content of the page's static files, and of scripts with stop words and with names in HTML."""
    folder = resources.files(__package__) / "static"
    files = {entry.name: entry.read_bytes() for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)}
    constants = {
        "stop_word_lists.js": ("STOP_WORDS", list(stop_words().values())),
        "html.js": ("HTML", {"hidden": sorted(HIDDEN), "separating": sorted(SEPARATING), "entities": html5}),
    }
    for file, (name, value) in constants.items():
        files[file] = b"export const " + name.encode() + b" = " + orjson.dumps(value) + b";\n"
    return files


def static_file_routes() -> list[Route]:
    """Create the routes of the page and its files. Other paths below `/ui/` go to the engine."""
    files = page_files()
    pages = {"/ui": _redirect_to_page, "/ui/": _static_file("index.html", files)}
    pages |= {f"/ui/{name}": _static_file(name, files) for name in files}
    return [Route(path, page, methods=["GET"]) for path, page in pages.items()]


async def _redirect_to_page(request: Request) -> Response:
    # The address is relative, so that it works behind a reverse proxy that adds a path.
    query = request.scope["query_string"].decode("ascii")
    return RedirectResponse(f"ui/?{query}" if query else "ui/", headers=SECURITY_HEADERS)


def _static_file(name: str, files: dict[str, bytes]) -> Callable[[Request], Awaitable[Response]]:
    content = files[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    # Browsers revalidate the files each time, so that files of different gateway versions never mix.
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "etag": tag}
    kind = CONTENT_TYPES["." + name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers={**headers, "content-type": kind})

    return answer


Handler = Callable[[Headers, Any], Awaitable[Json]]
# Enough for a thousand hits, or a search with many filters.
_MAX_BODY_BYTES = 4 << 20
_JSON_HEADERS = {**SECURITY_HEADERS, "cache-control": "no-store", "content-type": "application/json"}


def ui_routes(api: PageApi, limits: Limits, admission: AdmissionControl, metrics: GatewayMetrics) -> list[Route]:
    """Create the routes of the page at `/ui/`, its files, and its API below `/ui/api/`."""
    limits = limits.model_copy(update={"body_bytes": _MAX_BODY_BYTES})

    def api_route(method: str, name: str, handler: Handler) -> Route:
        """Create a route whose handler gets the query parameters of a GET, or the body of a POST."""

        async def endpoint(request: Request) -> Response:
            with metrics.request("ui") as outcome:
                try:
                    with admission.slot() as slot:
                        if method == "GET":
                            slot.acquire()
                        sent = request.query_params if method == "GET" else await _read_json(request, limits, slot)
                        content = orjson.dumps(await handler(request.headers.raw, sent))
                    outcome.status = 200
                except EngineErrorReply as error:
                    # Send no `WWW-Authenticate`: the page has a form, which replaces the browser's dialog.
                    content, outcome.status = orjson.dumps(error.reply.body), error.reply.status
                except EsSbertError as error:
                    content, outcome.status = error_body(error), http_status(error)
                except ClientDisconnect:
                    content = b""
                # After a timeout, the rest of the body must not be taken for the next request.
                closing = {"connection": "close"} if outcome.status == 408 else {}
                return Response(content, outcome.status, {**_JSON_HEADERS, **closing})

        return Route(f"/ui/api/{name}", endpoint, methods=[method])

    return [
        *static_file_routes(),
        api_route("GET", "indices", api.list_indices),
        api_route("GET", "facets", api.facets),
        api_route("POST", "body", api.rewrite_body),
        api_route("POST", "like", api.similar_documents),
        api_route("POST", "cosines", api.cosines),
    ]


async def _read_json(request: Request, limits: Limits, slot: RequestSlot) -> bytes:
    """Read the body of a request.

    Raises:
        BadRequest: the body is not uncompressed JSON, so the page did not send it.
        RequestTooLarge, RequestTimeout, Overloaded: see `IncomingRequest.body`.
    """
    if not is_uncompressed_json(request):
        raise BadRequest("the body is not uncompressed JSON", "Send it as Content-Type: application/json.")
    return await IncomingRequest.from_scope(request.scope, request.receive, limits, slot).body()
