"""Whether the gateway lives, and whether it can answer searches by meaning."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from es_sbert.gateway.embedding.models import Models

HEALTH_PAGES = ("/healthz", "/readyz")
UpstreamCheck = Callable[[], Awaitable[str | None]]


def health_routes(models: Models, upstream_problem: UpstreamCheck, full: Callable[[], str | None]) -> list[Route]:
    """`GET /healthz` and `GET /readyz`, which anyone may ask and which count against no limit.

    Args:
        upstream_problem: What keeps the engine from answering; None where it does. It bounds its own time.
        full: Which limit of the gateway is reached; None where there is none.
    """

    async def healthz(request: Request) -> Response:
        """The process lives; a supervisor need not restart it."""
        return JSONResponse({"status": "alive"})

    async def readyz(request: Request) -> Response:
        """Requests may be sent here; what is missing is said."""
        problems = {"engine": await upstream_problem(), "model": models.not_ready, "capacity": full()}
        ready = not any(problems.values())
        checks = {part: problem or "ok" for part, problem in problems.items()}
        return JSONResponse({"status": "ready" if ready else "not ready", **checks}, 200 if ready else 503)

    pages = zip(HEALTH_PAGES, (healthz, readyz), strict=True)
    return [Route(path, page, methods=["GET"]) for path, page in pages]
