"""`es-sbert serve`: run the gateway."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import click
import cloup
from cloup import option_group
from pydantic import SecretStr

from es_sbert.cli import options as shared
from es_sbert.cli.logs import log_format_option
from es_sbert.config import DEFAULT_MODEL, read_secret_file
from es_sbert.engines.address import join_urls, parse_addresses
from es_sbert.errors import UsageError, require_extra
from es_sbert.gateway.settings import (
    MIB,
    GatewaySettings,
    Limits,
    ListenSettings,
    ModelSettings,
    SearchLogSettings,
    SemanticSettings,
)
from es_sbert.messages import log_event


class _Mebibytes(shared.IntegerRange):
    """A size in MiB, which becomes bytes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) * MIB


_model_options = option_group(
    "Models",
    shared.model_option,
    shared.device_options,
    shared.setting_option(
        ModelSettings,
        "models --also-model MODEL",
        help="Also serve this model: for indices with its vectors, and at /v1/embeddings. May be given several times.",
    ),
)
_key_and_log_options = option_group(
    "Keys and logs",
    click.option(
        "--embeddings-key-file",
        type=shared.FILE_TYPE,
        help="File with the key that callers of /v1/embeddings must send.",
    ),
    click.option(
        "--metrics-key-file",
        type=shared.FILE_TYPE,
        help="File with the key that callers of /metrics must send.",
    ),
    shared.setting_option(GatewaySettings, "search_log FILE", type=shared.OUTPUT_FILE_TYPE),
    shared.setting_option(SearchLogSettings, "log_queries"),
    log_format_option,
)
serve_options = shared.combine_options(
    option_group(
        "Connection to the cluster",
        shared.engine_url_option("--upstream"),
        shared.credential_options,
        help=shared.connection_help,
    ),
    option_group(
        "Listen",
        shared.setting_options(
            ListenSettings, "host", "port", "certificate --tls-certificate", "key --tls-key", "allowed_hosts HOST",
            "drain_seconds SECONDS",
        ),
    ),
    option_group(
        "Semantic queries and writes",
        shared.setting_options(
            SemanticSettings, "virtual_field", "k -k", "min_cosine", "num_candidates", "hybrid", "semantic_weight",
            "hide_vectors",
        ),
        shared.setting_option(SemanticSettings, "writes", help="Do not add vectors to documents that are written."),
    ),
    _model_options,
    _key_and_log_options,
    option_group(
        "Limits",
        shared.setting_option(
            Limits, "body_bytes --max-body MIB", type=_Mebibytes(1), default=Limits().body_bytes // MIB
        ),
        shared.setting_options(Limits, "client_connections --max-connections-per-client"),
    ),
)  # fmt: skip


def gateway_settings(options: dict[str, Any]) -> GatewaySettings:
    """Convert the options of one call to settings; most have the names of the settings' fields.

    Raises:
        UsageError: options conflict, or a secret cannot be read.
    """
    model = DEFAULT_MODEL if options["model"] is None else options["model"]
    options["models"] = (model, *options["models"])
    listen = ListenSettings(**shared.select_options(options, ListenSettings.model_fields))
    key, metrics_key = (
        None if file is None else SecretStr(read_secret_file(file, "key"))
        for file in (options["embeddings_key_file"], options["metrics_key_file"])
    )
    search_log = None
    if options["search_log"] is not None:
        gateway = f"{socket.gethostname()}:{listen.port}"
        search_log = SearchLogSettings(options["search_log"], options["log_queries"], gateway)
    elif options["log_queries"]:
        raise UsageError("--log-queries requires --search-log", "Add --search-log FILE.")
    return GatewaySettings(
        upstream=shared.engine_settings(options),
        listen=listen,
        limits=Limits(**shared.select_options(options, Limits.model_fields)),
        semantic=SemanticSettings(**shared.select_options(options, SemanticSettings.model_fields)),
        models=ModelSettings(**shared.select_options(options, ModelSettings.model_fields)),
        embeddings_key=key,
        metrics_key=metrics_key,
        search_log=search_log,
    )


def serving_modes(settings: GatewaySettings) -> dict[str, str]:
    """Return the lines to print at the start: name → mode of the gateway, or address of one of its pages."""
    listen, semantic, log = settings.listen, settings.semantic, settings.search_log
    field, models = semantic.virtual_field, ", ".join(settings.models.public_names)
    key = " (with a key)"
    return {
        "semantic queries": f"of the field {field}",
        "hybrid search": "match queries of embedded texts" if semantic.hybrid else "off (--hybrid)",
        "writes": "documents get embeddings" if semantic.writes else "passed through (--no-writes)",
        "search log": "off (--search-log)" if log is None else str(log.path),
        "TLS": "off (--tls-certificate)" if listen.certificate is None else "on",
        "search page": "/ui/",
        "embeddings API": f"/v1/embeddings of {models}{key if settings.embeddings_key else ''}",
        "metrics, health": f"/metrics{key if settings.metrics_key else ''}, /healthz, /readyz",
    }


@cloup.command()
@serve_options
def serve(**options: Any) -> int:
    """Run a proxy that adds semantic search to Elasticsearch or OpenSearch.

    Applications point at the gateway instead of the cluster; nothing else changes. Requests pass through
    unchanged, with the caller's own credentials. Semantic queries are rewritten into native kNN queries, and
    documents that are written get their embeddings. The gateway itself uses the credentials given here, for
    example to read mappings; callers never get them.

    \b
    Examples:
      es-sbert serve --upstream http://localhost:9200
      es-sbert serve --upstream http://node1:9200,http://node2:9200
      es-sbert serve --upstream https://search.example:9200 --ca-certs ca.pem --hybrid
      curl 'localhost:9280/docs/_search?q=semantic:"how+do+plants+make+energy"'
    """
    require_extra("serve", "aiohttp", "luqum", "prometheus_client", "starlette", "uvicorn")
    from es_sbert.engines.detection import check_nodes
    from es_sbert.gateway.admission import raise_open_file_limit
    from es_sbert.gateway.server.uvicorn_server import (
        bind_socket,
        create_server,
        freeze_objects,
        notify_service_manager,
        tune_interpreter,
    )

    raise_open_file_limit()
    tune_interpreter()
    settings = gateway_settings(options)
    # Accept an engine that does not answer yet: it may start later.
    wait = settings.limits.connect_seconds
    check_nodes([replace(address, timeout=wait) for address in parse_addresses(settings.upstream)])

    def on_loaded() -> None:
        freeze_objects()
        notify_service_manager("READY=1", "STATUS=answering requests")

    running, listen = create_server(settings, on_loaded), settings.listen
    with bind_socket(listen) as listening:
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        address = f"{'http' if listen.certificate is None else 'https'}://{host}:{listening.getsockname()[1]}"
        message = f"{address} passes requests on to {join_urls(parse_addresses(settings.upstream))}"
        modes = serving_modes(settings)
        lines = [f"{message}. Press Ctrl-C to end.", *(f"  {name:<17} {value}" for name, value in modes.items())]
        log_event("serving", message, text="\n".join(lines), address=address, modes=modes)
        running.run(sockets=[listening])
    return 0 if running.started else 2
