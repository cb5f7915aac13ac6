"""`_async_search` before an engine that was built without it, as the test servers are: every search ends at once.

What a caller sends there is a body of `_search`, so the engine behind still judges each one (Elasticsearch's reference,
"Submit async search"; the answer wraps that of a search).
"""

from __future__ import annotations

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_OWN = ("wait_for_completion_timeout", "keep_on_completion", "keep_alive")
_PASSED = ("content-type", "x-elastic-product")


def async_search_before(engine: str) -> Starlette:
    async def answer(request: Request) -> Response:
        path, asynchronous = request.url.path, request.url.path.endswith("/_async_search")
        params = [pair for pair in request.query_params.multi_items() if not asynchronous or pair[0] not in _OWN]
        if asynchronous:
            path = path.removesuffix("/_async_search") + "/_search"
        headers = {name: request.headers[name] for name in ("content-type",) if name in request.headers}
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            found = await client.request(
                request.method, engine + path, params=params, content=await request.body(), headers=headers
            )
        passed = {name: found.headers[name] for name in _PASSED if name in found.headers}
        if asynchronous and found.status_code == 200:
            wrapped = b'{"is_partial":false,"is_running":false,"response":' + found.content + b"}"
            return Response(wrapped, headers=passed)
        return Response(found.content, found.status_code, passed)

    methods = ["GET", "HEAD", "POST", "PUT", "DELETE"]
    return Starlette(routes=[Route("/{path:path}", answer, methods=methods)])
