"""Run the gateway under uvicorn: create the server, bind the socket, and tune the interpreter."""

from __future__ import annotations

import gc
import logging
import socket
import sys
from collections.abc import Callable

import uvicorn

from es_sbert.errors import UsageError
from es_sbert.gateway.admission import ConnectionLimiter
from es_sbert.gateway.app import HEALTH_PATHS, Gateway
from es_sbert.gateway.http_protocol import check_uvicorn, limited_protocol
from es_sbert.gateway.settings import GatewaySettings, ListenSettings
from es_sbert.gateway.shutdown import DrainingServer, ShutdownState

# Time for requests in progress at shutdown.
SHUTDOWN_SECONDS = 30
_SWITCH_INTERVAL_SECONDS = 0.0005
_GC_THRESHOLDS = (1000, 10, 1000)  # as gc.set_threshold takes them


def create_server(settings: GatewaySettings, on_loaded: Callable[[], None] | None = None) -> DrainingServer:
    """Create a server that is ready to `run()`.

    It adds no Server or Date header to the engine's responses, and logs neither addresses nor queries.

    Args:
        on_loaded: Called once the default model is loaded or has failed to load.

    Raises:
        UsageError: invalid settings, for example a certificate or key that cannot be read; or a version of uvicorn
            that is not supported.
    """
    check_uvicorn()
    listen, connections, shutdown = settings.listen, ConnectionLimiter(settings.limits), ShutdownState()
    pages = [listen.path_prefix + page for page in HEALTH_PATHS]
    config = uvicorn.Config(
        Gateway(settings, connections, shutdown, on_loaded),
        host=listen.host,
        port=listen.port,
        http=limited_protocol(settings.limits.idle_seconds, connections, pages, listen.allowed_hosts, shutdown),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(settings.limits.idle_seconds),
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_not_cut_off)
    try:
        config.load()
    except OSError as error:
        raise UsageError(
            f"the TLS certificate {listen.certificate} or its key cannot be used: {error}",
            "Set `certificate` and `key` to PEM files that belong together and that this user may read.",
        ) from error
    return DrainingServer(config, shutdown, listen.drain_seconds)


def _is_not_cut_off(record: logging.LogRecord) -> bool:
    """Whether to log a line of uvicorn: for a truncated response, `forward` logs a line with the path instead."""
    return not record.getMessage().startswith("ASGI callable returned without completing response")


def tune_interpreter() -> None:
    """Tune thread switching and garbage collection for low latency, in a process that only serves.

    By default, a thread that parses a large request may hold the interpreter lock for five milliseconds whenever the
    event loop needs it, which is several times per request. And the many objects of a large request trigger full
    collections, which stop every thread for tens of milliseconds and free nothing: JSON has no cycles. Collections of
    young objects stay small, so that each is short.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    gc.set_threshold(*_GC_THRESHOLDS)


def freeze_objects() -> None:
    """Exclude all current objects from garbage collection, in a process that does nothing but serve.

    Modules and models live as long as the process, and a collection over all of them stops every request for tens of
    milliseconds.
    """
    gc.collect()
    gc.freeze()


def bind_socket(listen: ListenSettings) -> socket.socket:
    """Bind the listening socket.

    Raises:
        UsageError: the address is in use, or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # the rest repeats the address
        raise UsageError(
            f"the gateway cannot listen on {listen.host}, port {listen.port}: {reason}",
            "Set `host` to an address of this machine, and `port` to a free port.",
        ) from error
