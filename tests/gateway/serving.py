"""Applications and the whole gateway on a real port, by uvicorn in a thread of this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

from es_sbert.config import EngineSettings
from es_sbert.gateway.admission import ConnectionLimiter
from es_sbert.gateway.server import create_server as gateway_server
from es_sbert.gateway.server import limited_protocol
from es_sbert.gateway.settings import GatewaySettings, Limits, ModelSettings, SemanticSettings

# Generous: a server that has not started by then never will.
_SECONDS = 120


@contextmanager
def served(app: Starlette | Any, *, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve an application until the block ends; its address.

    Raises:
        RuntimeError: its start failed; the log says why.
    """
    # Engines keep idle connections open. uvicorn closes them after five seconds, and on a slow machine possibly while
    # the gateway sends the next request on one of them.
    config = uvicorn.Config(
        app,
        # Its handlers would keep the stderr of this test, which the next one finds closed.
        log_config=None,
        log_level="warning",
        lifespan="on",
        timeout_keep_alive=_SECONDS,
        timeout_graceful_shutdown=_SECONDS,
    )
    with running(uvicorn.Server(config), host=host) as url:
        yield url


@contextmanager
def gateway(
    upstream: str,
    model: Path | str,
    *,
    head_seconds: float | None = None,
    semantic: SemanticSettings | None = None,
    **limits: Any,
) -> Iterator[str]:
    """The whole gateway as `es-sbert serve` runs it, in front of `upstream`, until the block ends; its address.

    Args:
        model: The only one it serves.
        head_seconds: How long the head of a request may take, where that is not `idle_seconds`.
        semantic: How it rewrites searches.
        limits: Fields of `Limits`.
    """
    settings = GatewaySettings(
        upstream=EngineSettings(url=upstream),
        limits=Limits(**limits),
        semantic=semantic or SemanticSettings(),
        models=ModelSettings(models=(str(model),), precision="fp32", threads=1),
    )
    server = gateway_server(settings)
    if head_seconds is not None:
        server.config.http_protocol_class = limited_protocol(head_seconds, ConnectionLimiter(settings.limits))
    with running(server) as url:
        yield url


@contextmanager
def running(server: uvicorn.Server, *, host: str = "127.0.0.1") -> Iterator[str]:
    """Run a server on a free port until the block ends; its address.

    Raises:
        RuntimeError: its start failed; the log says why.
    """
    listener = socket.create_server((host, 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="uvicorn")
    thread.start()
    try:
        end = time.monotonic() + _SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > end:
                raise RuntimeError("the application did not start")
            thread.join(0.01)
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(_SECONDS)
        listener.close()
        assert not thread.is_alive(), "the application does not end"
