"""Routes of `/ui`: the page's static files and the API behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from es_sbert.engines.protocol import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.admission import AdmissionControl, RequestSlot
from es_sbert.gateway.concurrency import offload_if_large
from es_sbert.gateway.errors import BadRequest, error_body, http_status
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.proxy.incoming_request import is_uncompressed_json, read_body
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.gateway.ui.page_api import (
    CallerClient,
    EngineErrorReply,
    HitMapRequest,
    PageApi,
    RewriteBodyRequest,
    SimilarDocumentsRequest,
    parse_page_request,
)

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Documents are written by others: nothing in them shall ever run, load or frame anything. `trusted-types` makes the
# browser refuse every way of writing HTML from text.
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
    """Name → content of the files that the page consists of."""
    folder = resources.files(__package__) / "static"
    return {entry.name: entry.read_bytes() for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)}


def static_file_routes() -> list[Route]:
    """`/ui/` and the files beside it. What else stands under that path is the engine's."""
    files = page_files()
    routes = [
        Route("/ui", _redirect_to_page, methods=["GET"]),
        Route("/ui/", _static_file("index.html", files), methods=["GET"]),
    ]
    return routes + [Route(f"/ui/{name}", _static_file(name, files), methods=["GET"]) for name in files]


async def _redirect_to_page(request: Request) -> Response:
    # Relative, so that it holds behind whatever path a reverse proxy has put in front.
    query = request.scope["query_string"].decode("ascii")
    return RedirectResponse(f"ui/?{query}" if query else "ui/", headers=SECURITY_HEADERS)


def _static_file(name: str, files: dict[str, bytes]) -> Callable[[Request], Awaitable[Response]]:
    content = files[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    # Asked again each time, and answered without the content: an update of the gateway never mixes with old files.
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "etag": tag}
    kind = CONTENT_TYPES["." + name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers={**headers, "content-type": kind})

    return answer


PageEndpoint = Callable[[CallerClient, Request, RequestSlot], Awaitable[Json]]
# A thousand hits' places, or a search with many filters.
_MAX_BODY_BYTES = 4 << 20
_JSON_HEADERS = {**SECURITY_HEADERS, "cache-control": "no-store", "content-type": "application/json"}
# To a caller that sends too slowly.
_CLOSING_HEADERS = {**_JSON_HEADERS, "connection": "close"}


def ui_routes(api: PageApi, upstream: Upstream, admission: AdmissionControl, metrics: GatewayMetrics) -> list[Route]:
    """The page at `/ui/`, its files beside it, and its API below `/ui/api/`."""

    async def indices(asking: CallerClient, request: Request, slot: RequestSlot) -> Json:
        slot.acquire()
        return await api.indices(asking)

    async def facets(asking: CallerClient, request: Request, slot: RequestSlot) -> Json:
        slot.acquire()
        index = request.query_params.get("index", "")
        if not index:
            raise BadRequest("no index is named", "Name one: ?index=docs.")
        return await api.facets(asking, index)

    async def body(asking: CallerClient, request: Request, slot: RequestSlot) -> Json:
        sent = await _read_json(request, slot)
        asked = await offload_if_large(len(sent), parse_page_request, RewriteBodyRequest, sent)
        return await api.body(asking, request.headers.raw, asked, len(sent))

    async def like(asking: CallerClient, request: Request, slot: RequestSlot) -> Json:
        return await api.like(
            asking, request.headers.raw, parse_page_request(SimilarDocumentsRequest, await _read_json(request, slot))
        )

    async def hits_map(asking: CallerClient, request: Request, slot: RequestSlot) -> Json:
        sent = await _read_json(request, slot)
        asked = await offload_if_large(len(sent), parse_page_request, HitMapRequest, sent)
        return await api.map(asking, request.headers.raw, asked)

    def answered(answer: PageEndpoint) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            with metrics.request("ui") as outcome:
                try:
                    with admission.slot() as slot:
                        content = orjson.dumps(await answer(CallerClient(upstream, request.headers.raw), request, slot))
                    outcome.status = 200
                except EngineErrorReply as refused:
                    # Without its `WWW-Authenticate`: the page has a form of its own in place of the browser's.
                    content, outcome.status = orjson.dumps(refused.reply.body), refused.reply.status
                except EsSbertError as error:
                    content, outcome.status = error_body(error), http_status(error)
                except ClientDisconnect:
                    content = b""  # nobody reads it
                return Response(content, outcome.status, _JSON_HEADERS if outcome.status != 408 else _CLOSING_HEADERS)

        return endpoint

    return [
        *static_file_routes(),
        Route("/ui/api/indices", answered(indices), methods=["GET"]),
        Route("/ui/api/facets", answered(facets), methods=["GET"]),
        Route("/ui/api/body", answered(body), methods=["POST"]),
        Route("/ui/api/like", answered(like), methods=["POST"]),
        Route("/ui/api/map", answered(hits_map), methods=["POST"]),
    ]


async def _read_json(request: Request, slot: RequestSlot) -> bytes:
    """The body of a request.

    Raises:
        BadRequest: it is no plain JSON, so not from the page.
        RequestTooLarge, RequestTimeout, Overloaded: see `read_body`.
    """
    if not is_uncompressed_json(request):
        raise BadRequest("the body is not plain JSON", "Send it uncompressed, as Content-Type: application/json.")
    return await read_body(request, _MAX_BODY_BYTES, slot)
