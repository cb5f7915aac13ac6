"""The gateway under uvicorn."""

from __future__ import annotations

import uvicorn

from es_sbert.gateway.app import create_app
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.wire.protocol import protocol

# Callers get this long to receive their answers when the gateway is told to end.
_GRACE_SECONDS = 30


def server(settings: GatewaySettings) -> uvicorn.Server:
    """A server that is ready to `run()`.

    It adds nothing to the engine's answers: no Server header, no date. What it logs holds no addresses and no queries.

    Raises:
        UsageError: settings that cannot be used.
    """
    listen = settings.listen
    config = uvicorn.Config(
        create_app(settings),
        host=listen.host,
        port=listen.port,
        http=protocol(settings.limits.idle_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(settings.limits.idle_seconds),
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
    )
    return uvicorn.Server(config)
