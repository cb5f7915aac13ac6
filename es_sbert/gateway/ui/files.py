"""The page's own files, with headers that let it load nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

TYPES = {
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


def file_routes() -> list[Route]:
    """`/ui/` and the files beside it. What else stands under that path is the engine's."""
    files = page_files()
    routes = [Route("/ui", _to_page, methods=["GET"]), Route("/ui/", _file("index.html", files), methods=["GET"])]
    return routes + [Route(f"/ui/{name}", _file(name, files), methods=["GET"]) for name in files]


async def _to_page(request: Request) -> Response:
    # Relative, so that it holds behind whatever path a reverse proxy has put in front.
    query = request.scope["query_string"].decode("ascii")
    return RedirectResponse(f"ui/?{query}" if query else "ui/", headers=SECURITY_HEADERS)


def _file(name: str, files: dict[str, bytes]) -> Callable[[Request], Awaitable[Response]]:
    content = files[name]
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    # Asked again each time, and answered without the content: an update of the gateway never mixes with old files.
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "etag": tag}
    kind = TYPES["." + name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers={**headers, "content-type": kind})

    return answer
