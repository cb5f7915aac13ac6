"""`es-sbert serve`: the gateway, until it is told to end."""

from __future__ import annotations

from typing import Any

import cloup

from es_sbert.cli.serve.options import gateway_settings, serve_options
from es_sbert.events import record
from es_sbert.extras import require


@cloup.command()
@serve_options
def serve(**options: Any) -> int:
    """Run a proxy that adds semantic search to Elasticsearch or OpenSearch.

    Applications point at the gateway instead of the cluster; nothing else changes. Requests pass through
    unchanged, with the caller's own credentials. Semantic queries are rewritten into native kNN queries, and
    documents that are written get their embeddings. Credentials given here are the gateway's own, for reading
    mappings; callers never get them.

    \b
    Examples:
      es-sbert serve --upstream http://localhost:9200
      es-sbert serve --upstream https://search.example:9200 --ca-certs ca.pem --hybrid
      curl 'localhost:9280/docs/_search?q=semantic:"how+do+plants+make+energy"'
    """
    require("serve", "aiohttp", "luqum", "prometheus_client", "starlette", "uvicorn")
    from es_sbert.gateway.admission import raise_open_files
    from es_sbert.gateway.serve import freeze_objects, listener, server, tune_interpreter

    raise_open_files()
    tune_interpreter()
    settings = gateway_settings(**options)
    running, listen = server(settings, on_loaded=freeze_objects), settings.listen
    with listener(listen) as listening:
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        address = f"{'http' if listen.certificate is None else 'https'}://{host}:{listening.getsockname()[1]}"
        said = f"{address} passes requests on to {settings.upstream.url}"
        record("serving", said, text=f"{said}. Press Ctrl-C to end.", address=address)
        running.run(sockets=[listening])
    return 0 if running.started else 2
