"""`GET /v1/openapi.json`: the gateway's own paths, described."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def description_routes() -> list[Route]:
    """The route of the description, which is a file of this package."""
    document = (files("es_sbert.gateway.openai") / "openapi.json").read_bytes()

    async def describe(request: Request) -> Response:
        return Response(document, media_type="application/json")

    return [Route("/v1/openapi.json", describe, methods=["GET"])]
