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
from es_sbert.gateway.server.uvicorn_server import create_server, limited_protocol
from es_sbert.gateway.settings import GatewaySettings, Limits, ListenSettings, ModelSettings, SemanticSettings

# Generous: a server that has not started by then never will.
_SECONDS = 120
_GROUPS = {"limits": Limits, "listen": ListenSettings, "models": ModelSettings, "semantic": SemanticSettings}


@contextmanager
def served(app: Starlette) -> Iterator[str]:
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
    with running(uvicorn.Server(config)) as url:
        yield url


@contextmanager
def gateway(
    engine: str | EngineSettings, model: Path | str | None = None, *, head_seconds: float | None = None, **options: Any
) -> Iterator[str]:
    """A gateway as `es-sbert serve` runs it, until the block ends; its address.

    Args:
        model: The only one it serves, in the precision that tests compare; without, the model that es-sbert comes with.
        head_seconds: How long the head of a request may take, where that is not `idle_seconds`.
        options: Fields of `GatewaySettings` and of the settings in it.
    """
    if model is not None:
        options = {"models": (str(model),), "device": "cpu", "precision": "fp32", "threads": 1} | options
    groups = {
        name: kind(**{field: options.pop(field) for field in kind.model_fields if field in options})
        for name, kind in _GROUPS.items()
    }
    upstream = EngineSettings(url=engine) if isinstance(engine, str) else engine
    settings = GatewaySettings(upstream=upstream, **groups, **options)
    server = create_server(settings)
    if head_seconds is not None:
        server.config.http_protocol_class = limited_protocol(head_seconds, ConnectionLimiter(settings.limits))
    with running(server) as url:
        yield url


@contextmanager
def running(server: uvicorn.Server) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="uvicorn")
    thread.start()
    try:
        end = time.monotonic() + _SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > end:
                raise RuntimeError("the application did not start")
            thread.join(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(_SECONDS)
        listener.close()
        assert not thread.is_alive(), "the application does not end"
