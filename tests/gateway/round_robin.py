"""A load balancer as simple as they come: health checks by `/readyz`, each request to the next server that is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# Between two health checks of a server.
CHECK_SECONDS = 0.5
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host"}


class RoundRobin:
    """Requests go to the servers in turn. None is sent twice: what a server does not answer is a 502.

    Args:
        servers: Their addresses.

    Attributes:
        ready: Servers whose last health check was good.
        sent: Requests that each server has answered.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = servers
        self._turn = 0
        self.ready: set[str] = set()
        self.sent = dict.fromkeys(servers, 0)

    def app(self) -> Starlette:
        """The balancer as an application."""
        methods = ["GET", "HEAD", "POST", "PUT", "DELETE"]
        return Starlette(routes=[Route("/{path:path}", self._forward, methods=methods)], lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as self._client:
            checks = [asyncio.create_task(self._check(server)) for server in self._servers]
            yield
            for check in checks:
                check.cancel()

    async def _check(self, server: str) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            while True:
                status = 0
                with suppress(httpx.TransportError):
                    status = (await client.get(f"{server}/readyz")).status_code
                (self.ready.add if status == 200 else self.ready.discard)(server)
                await asyncio.sleep(CHECK_SECONDS)

    def _next(self) -> str | None:
        for _ in self._servers:
            self._turn = (self._turn + 1) % len(self._servers)
            if self._servers[self._turn] in self.ready:
                return self._servers[self._turn]
        return None

    async def _forward(self, request: Request) -> Response:
        server = self._next()
        if server is None:
            return Response("no server is ready", 503)
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]
        target = server + request.url.path + (f"?{request.url.query}" if request.url.query else "")
        try:
            answer = await self._client.request(request.method, target, headers=headers, content=await request.body())
        except httpx.TransportError as error:
            return Response(f"{server}: {type(error).__name__}: {error}", 502)
        self.sent[server] += 1
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP_BY_HOP}
        return Response(answer.content, answer.status_code, kept)
