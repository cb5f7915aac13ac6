"""Run the gateway under uvicorn."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable

import uvicorn

from es_sbert.errors import UsageError
from es_sbert.gateway.admission import ConnectionLimiter
from es_sbert.gateway.app import HEALTH_PATHS, create_app
from es_sbert.gateway.proxy.http_protocol import limited_protocol
from es_sbert.gateway.settings import GatewaySettings, ListenSettings

# Callers get this long to receive their answers when the gateway is told to end.
_SHUTDOWN_SECONDS = 30
_SWITCH_INTERVAL_SECONDS = 0.0005
_GC_THRESHOLDS = (1000, 10, 1000)  # as gc.set_threshold takes them


def create_server(settings: GatewaySettings, on_loaded: Callable[[], None] | None = None) -> uvicorn.Server:
    """A server that is ready to `run()`.

    It adds nothing to the engine's answers: no Server header, no date. What it logs holds no addresses and no queries.

    Args:
        on_loaded: Called once the default model is in memory.

    Raises:
        UsageError: settings that cannot be used, among them a certificate or key.
    """
    listen, connections = settings.listen, ConnectionLimiter(settings.limits)
    pages = [listen.path_prefix + page for page in HEALTH_PATHS]
    config = uvicorn.Config(
        create_app(settings, connections, on_loaded),
        host=listen.host,
        port=listen.port,
        http=limited_protocol(settings.limits.idle_seconds, connections, pages),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(settings.limits.idle_seconds),
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
    )
    try:
        config.load()
    except OSError as error:
        raise UsageError(
            f"the TLS certificate {listen.certificate} or its key cannot be used: {error}",
            "Give PEM files that belong together, which this user may read: --tls-certificate and --tls-key.",
        ) from error
    return uvicorn.Server(config)


def tune_interpreter() -> None:
    """Tune thread switching and garbage collection for low latency, in a process that does nothing but serve.

    By default, a thread that parses a large request may hold the interpreter lock for five milliseconds whenever the
    event loop needs it, which is several times per request. And the many objects of a large request trigger full
    collections, which stop every thread for tens of milliseconds and free nothing: JSON has no cycles. Collections of
    young objects stay small, so that each is short.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    gc.set_threshold(*_GC_THRESHOLDS)


def freeze_objects() -> None:
    """Leave what is in memory now out of later garbage collections, for a process that does nothing but serve.

    Modules and models live as long as the process, and a collection that looks at all of them stops every request for
    tens of milliseconds.
    """
    gc.collect()
    gc.freeze()


def bind_socket(listen: ListenSettings) -> socket.socket:
    """The socket that callers find the server at.

    Raises:
        UsageError: the address is not one of this machine, or is taken.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # the rest says the address again
        raise UsageError(
            f"nothing can listen on {listen.host}, port {listen.port}: {why}",
            "Give an address of this machine and a port that is free: --host and --port.",
        ) from error
