"""`/ui`: the page, and the API that it alone uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from es_sbert.engines.protocol import Json
from es_sbert.errors import EsSbertError
from es_sbert.gateway.admission import Admission, Slot
from es_sbert.gateway.failures import BadRequest, error_body, status_of
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.openai.body import is_plain_json, read_body
from es_sbert.gateway.tasks import run_by_size
from es_sbert.gateway.ui.api import PageApi
from es_sbert.gateway.ui.asking import Asking, Refused
from es_sbert.gateway.ui.files import SECURITY_HEADERS, file_routes
from es_sbert.gateway.ui.requests import BodyRequest, LikeRequest, MapRequest, read
from es_sbert.gateway.wire.upstream import Upstream

Answer = Callable[[Asking, Request, Slot], Awaitable[Json]]
# A thousand hits' places, or a search with many filters.
_MOST_BYTES = 4 << 20
_JSON = {**SECURITY_HEADERS, "cache-control": "no-store", "content-type": "application/json"}
# To a caller that sends too slowly.
_CLOSING = {**_JSON, "connection": "close"}


def ui_routes(api: PageApi, upstream: Upstream, admission: Admission, metrics: GatewayMetrics) -> list[Route]:
    """The page at `/ui/`, its files beside it, and its API below `/ui/api/`."""

    async def indices(asking: Asking, request: Request, slot: Slot) -> Json:
        slot.acquire()
        return await api.indices(asking)

    async def facets(asking: Asking, request: Request, slot: Slot) -> Json:
        slot.acquire()
        index = request.query_params.get("index", "")
        if not index:
            raise BadRequest("no index is named", "Name one: ?index=docs.")
        return await api.facets(asking, index)

    async def body(asking: Asking, request: Request, slot: Slot) -> Json:
        sent = await _sent(request, slot)
        asked = await run_by_size(len(sent), read, BodyRequest, sent)
        return await api.body(asking, request.headers.raw, asked, len(sent))

    async def like(asking: Asking, request: Request, slot: Slot) -> Json:
        return await api.like(asking, request.headers.raw, read(LikeRequest, await _sent(request, slot)))

    async def hits_map(asking: Asking, request: Request, slot: Slot) -> Json:
        sent = await _sent(request, slot)
        asked = await run_by_size(len(sent), read, MapRequest, sent)
        return await api.map(asking, request.headers.raw, asked)

    def answered(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            with metrics.request("ui") as outcome:
                try:
                    with admission.slot() as slot:
                        content = orjson.dumps(await answer(Asking(upstream, request.headers.raw), request, slot))
                    outcome.status = 200
                except Refused as refused:
                    # Without its `WWW-Authenticate`: the page has a form of its own in place of the browser's.
                    content, outcome.status = orjson.dumps(refused.reply.body), refused.reply.status
                except EsSbertError as error:
                    content, outcome.status = error_body(error), status_of(error)
                except ClientDisconnect:
                    content = b""  # nobody reads it
                return Response(content, outcome.status, _JSON if outcome.status != 408 else _CLOSING)

        return endpoint

    return [
        *file_routes(),
        Route("/ui/api/indices", answered(indices), methods=["GET"]),
        Route("/ui/api/facets", answered(facets), methods=["GET"]),
        Route("/ui/api/body", answered(body), methods=["POST"]),
        Route("/ui/api/like", answered(like), methods=["POST"]),
        Route("/ui/api/map", answered(hits_map), methods=["POST"]),
    ]


async def _sent(request: Request, slot: Slot) -> bytes:
    """The body of a request.

    Raises:
        BadRequest: it is no plain JSON, so not from the page.
        RequestTooLarge, RequestTimeout, Overloaded: see `read_body`.
    """
    if not is_plain_json(request):
        raise BadRequest("the body is not plain JSON", "Send it uncompressed, as Content-Type: application/json.")
    return await read_body(request, _MOST_BYTES, slot)
