"""Whether the gateway lives, and whether it can answer searches by meaning."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from es_sbert.gateway.embedding.models import Models

UpstreamCheck = Callable[[], Awaitable[str | None]]


def health_routes(models: Models, upstream_problem: UpstreamCheck) -> list[Route]:
    """`GET /healthz` and `GET /readyz`.

    Args:
        upstream_problem: What keeps the engine from answering; None where it does. It bounds its own time.
    """

    async def healthz(request: Request) -> Response:
        """The process lives; a supervisor need not restart it."""
        return JSONResponse({"status": "alive"})

    async def readyz(request: Request) -> Response:
        """Requests may be sent here; what is missing is said."""
        problems = {"engine": await upstream_problem(), "model": models.not_ready}
        ready = not any(problems.values())
        checks = {part: problem or "ok" for part, problem in problems.items()}
        return JSONResponse({"status": "ready" if ready else "not ready", **checks}, 200 if ready else 503)

    return [Route("/healthz", healthz, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
