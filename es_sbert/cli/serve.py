"""`es-sbert serve`: run the gateway."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.logs import log_format_option
from es_sbert.config import DEFAULT_MODEL, read_secret_file
from es_sbert.engines.address import join_urls, parse_addresses
from es_sbert.errors import UsageError, require_extra
from es_sbert.messages import log_event

if TYPE_CHECKING:
    from es_sbert.gateway.settings import GatewaySettings


_listen_options = option_group(
    "Listen",
    click.option(
        "--host",
        default="127.0.0.1",
        help="Address to listen on. An address other than the default opens the gateway to other machines.",
    ),
    click.option("--port", type=click.IntRange(0, 65_535), default=9280, help="TCP port."),
    click.option(
        "--tls-certificate", "certificate", type=shared.FILE_TYPE, help="PEM file of the certificate, for HTTPS."
    ),
    click.option("--tls-key", "key", type=shared.FILE_TYPE, help="PEM file of the certificate's key."),
    click.option(
        "--own-prefix",
        "path_prefix",
        default="",
        show_default=False,
        metavar="PATH",
        help="Path prefix of the gateway's own pages (/ui, /healthz, /metrics, /v1/embeddings), for clusters with an "
        "index of such a name.",
    ),
    click.option(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        metavar="ORIGIN",
        help="Allow browser requests from pages of this origin. May be given several times.",
    ),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        metavar="HOST",
        help="Accept only requests to this host name (421 for others), to prevent DNS rebinding. May be given several "
        "times.  [default: any]",
    ),
    click.option(
        "--drain-seconds",
        type=shared.FiniteFloatRange(0, 3600),
        default=0.0,
        metavar="SECONDS",
        help="On SIGTERM, fail /readyz and keep answering for this long, so that a load balancer notices before the "
        "gateway stops listening. Requests in progress then have 30 more seconds.",
    ),
)
_semantic_options = option_group(
    "Semantic queries and writes",
    click.option(
        "--virtual-field",
        default="semantic",
        help='Name of the field that semantic queries search: semantic: "how do plants make energy".',
    ),
    click.option(
        "-k", "k", type=click.IntRange(1, 10_000), default=100, help="Number of documents per semantic query."
    ),
    click.option(
        "--min-cosine",
        type=shared.FiniteFloatRange(-1, 1),
        help="Drop hits whose cosine is below this value.  [default: that of `es-sbert index calibrate --save`]",
    ),
    click.option(
        "--num-candidates",
        type=click.IntRange(1, 10_000),
        help="Candidates per shard.  [default: twice k, at least 100]",
    ),
    click.option(
        "--hybrid",
        is_flag=True,
        help="Turn match and multi_match queries on an embedded text into hybrid queries.",
    ),
    click.option(
        "--semantic-weight",
        type=shared.FiniteFloatRange(0, min_open=True),
        help="Weight of the semantic ranking in hybrid queries; the keyword ranking has weight 1.  [default: 3]",
    ),
    click.option("--no-writes", is_flag=True, help="Do not add vectors to documents that are written."),
    click.option(
        "--on-embedding-failure",
        type=click.Choice(["fail", "pass"]),
        default="fail",
        help="If a document cannot be embedded: fail refuses it, so that the client retries; pass writes it without a "
        "vector.",
    ),
    click.option(
        "--hide-vectors",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        help="Leave vectors and their metadata out of hits, unless the search asks for them. auto: only if a document "
        "that is written back without them gets them again.",
    ),
)


class _MebibyteRange(click.IntRange):
    """A positive number of mebibytes, converted to bytes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return int(super().convert(value, param, ctx)) << 20


_POSITIVE = click.IntRange(1)
_MEBIBYTES = _MebibyteRange(1)
_SECONDS = shared.FiniteFloatRange(0, min_open=True)


def _limit_option(
    flag: str,
    field: str,
    help: str,
    default: float | None = None,
    type: click.ParamType[Any] = _POSITIVE,
    metavar: str | None = None,
) -> Callable[[shared.F], shared.F]:
    """Return an option for a field of `Limits`."""
    return click.option(flag, field, type=type, default=default, metavar=metavar, help=help)


_limit_options = option_group(
    "Limits",
    _limit_option("--max-body", "body_bytes", "Maximum size of a request body.", 100, _MEBIBYTES, "MIB"),
    _limit_option(
        "--max-search",
        "search_bytes",
        "Maximum size of a search request that is read for semantic queries.",
        10,
        _MEBIBYTES,
        "MIB",
    ),
    _limit_option(
        "--max-bulk-actions", "bulk_actions", "Maximum actions of one bulk request; more are refused (413).", 250_000
    ),
    _limit_option("--max-semantic-queries", "semantic_queries", "Maximum semantic queries of one request.", 256),
    _limit_option(
        "--max-semantic-texts", "semantic_texts", "Maximum distinct texts to embed for one search request.", 256
    ),
    _limit_option(
        "--max-semantic-bytes", "semantic_text_bytes", "Maximum bytes of these texts of one search request.", 262_144
    ),
    _limit_option(
        "--max-requests",
        "concurrency",
        "Maximum concurrent requests; more are refused (429). A request counts once its body is complete.",
        512,
    ),
    _limit_option(
        "--max-connections",
        "connections",
        "Maximum open connections; more are refused (429).  [default: what the open file limit allows, at most 10000]",
    ),
    _limit_option(
        "--max-connections-per-client",
        "client_connections",
        "Maximum open connections from one address; more are refused (429). Raise it if callers connect through a "
        "reverse proxy, which gives all of them one address.",
        1024,
    ),
    _limit_option(
        "--max-buffered",
        "buffered_bytes",
        "Memory for the bodies of all requests; more are refused (429).  [default: 1024, or twice --max-body]",
        None,
        _MEBIBYTES,
        "MIB",
    ),
    _limit_option(
        "--body-timeout",
        "body_seconds",
        "Maximum time to wait for the body of a request (408).",
        600.0,
        _SECONDS,
        "SECONDS",
    ),
    _limit_option(
        "--min-body-rate",
        "body_rate",
        "Minimum bytes per second of a request body, after its first 20 seconds (408).",
        1024,
        metavar="BYTES",
    ),
    _limit_option(
        "--answer-timeout", "answer_seconds", "Maximum time for the engine to respond.", 3600.0, _SECONDS, "SECONDS"
    ),
    _limit_option(
        "--health-timeout",
        "health_seconds",
        "Maximum time for a node to answer a health request. Two are sent if a request is unanswered for 5 seconds; a "
        "node that answers neither counts as stopped.",
        3.0,
        _SECONDS,
        "SECONDS",
    ),
)
_model_options = option_group(
    "Models",
    shared.model_option,
    shared.device_options,
    click.option(
        "--also-model",
        "more_models",
        multiple=True,
        metavar="MODEL",
        help="Also serve this model: for indices with its vectors, and at /v1/embeddings. May be given several times.",
    ),
    click.option(
        "--model-alias",
        "alias_pairs",
        multiple=True,
        metavar="NAME=MODEL",
        help="Another name of a served model at /v1/embeddings, such as text-embedding-3-small. May be given "
        "several times.",
    ),
    click.option(
        "--models-in-memory",
        "in_memory",
        type=click.IntRange(1),
        default=2,
        help="Maximum models kept in memory; the least recently used one is unloaded.",
    ),
    click.option(
        "--download-models",
        "download",
        is_flag=True,
        help="Download models from the hub even if only an index names them. Anyone who may write an index then "
        "chooses what is downloaded.",
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
    click.option(
        "--search-log",
        type=shared.OUTPUT_FILE_TYPE,
        metavar="FILE",
        help="Append a line of JSON for each search to this file, or write it to stdout (-).",
    ),
    click.option(
        "--search-log-key-file",
        type=shared.FILE_TYPE,
        help="With --search-log: file with the key for hashing query texts, 16 to 64 bytes. Use the same key for all "
        "gateways, so that equal queries are counted together.  [default: a new key at every start]",
    ),
    click.option(
        "--log-queries", is_flag=True, help="With --search-log: also log the query texts, not only their keyed hashes."
    ),
    log_format_option,
)
serve_options = shared.combine_options(
    option_group(
        "Connection to the cluster",
        shared.engine_url_option("--upstream"),
        shared.credential_options,
        help=shared.connection_help,
    ),
    _listen_options,
    _semantic_options,
    _model_options,
    _key_and_log_options,
    _limit_options,
)


# Options that need --search-log.
_SEARCH_LOG_FLAGS = {
    "log_queries": "--log-queries",
    "search_log_key_file": "--search-log-key-file",
}


def gateway_settings(options: dict[str, Any]) -> GatewaySettings:
    """Convert the options of one call to settings; most have the names of the settings' fields.

    Raises:
        UsageError: options conflict, or a secret cannot be read.
    """
    from pydantic import SecretStr

    from es_sbert.gateway import settings

    model = DEFAULT_MODEL if options["model"] is None else options["model"]
    options |= {
        "writes": not options["no_writes"],
        "models": (model, *options["more_models"]),
        "aliases": _parse_model_aliases(options["alias_pairs"]),
    }
    listen = settings.ListenSettings(**shared.select_options(options, settings.ListenSettings.model_fields))
    key, metrics_key = (
        None if file is None else SecretStr(read_secret_file(file, "key"))
        for file in (options["embeddings_key_file"], options["metrics_key_file"])
    )
    search_log = None
    if options["search_log"] is not None:
        key_file = options["search_log_key_file"]
        log_key = None if key_file is None else read_secret_file(key_file, "key").encode()
        policy = settings.QueryTextPolicy.from_options(queries=options["log_queries"], key=log_key)
        gateway = f"{socket.gethostname()}:{listen.port}"
        search_log = settings.SearchLogSettings(options["search_log"], policy, gateway)
    elif flag := next((flag for name, flag in _SEARCH_LOG_FLAGS.items() if options[name]), None):
        raise UsageError(f"{flag} requires --search-log", "Add --search-log FILE.")
    return settings.GatewaySettings(
        upstream=shared.engine_settings(options),
        listen=listen,
        limits=settings.Limits(**shared.select_options(options, settings.Limits.model_fields)),
        semantic=settings.SemanticSettings(**shared.select_options(options, settings.SemanticSettings.model_fields)),
        models=settings.ModelSettings(**shared.select_options(options, settings.ModelSettings.model_fields)),
        embeddings_api=settings.EmbeddingsApiSettings(api_key=key),
        metrics_key=metrics_key,
        search_log=search_log,
    )


def _parse_model_aliases(pairs: tuple[str, ...]) -> dict[str, str]:
    """Convert pairs of the form NAME=MODEL to a dictionary: name → model.

    Raises:
        UsageError: a pair is not of that form, or a name is used twice.
    """
    aliases: dict[str, str] = {}
    for pair in pairs:
        name, _, model = pair.partition("=")
        if not name or not model:
            raise UsageError(
                f"--model-alias must be NAME=MODEL, not {pair!r}", "Example: text-embedding-3-small=my-model."
            )
        if name in aliases:
            raise UsageError(f"--model-alias {name} is given twice", "Leave one of the two out.")
        aliases[name] = model
    return aliases


def serving_modes(settings: GatewaySettings) -> dict[str, str]:
    """Return the lines to print at the start: name → mode of the gateway, or address of one of its pages."""
    listen, semantic, log, prefix = settings.listen, settings.semantic, settings.search_log, settings.listen.path_prefix
    field, models = semantic.virtual_field, ", ".join(settings.models.public_names)
    key = " (with a key)"
    return {
        "semantic queries": f"of the field {field}",
        "hybrid search": "match queries of embedded texts" if semantic.hybrid else "off (--hybrid)",
        "writes": "documents get embeddings" if semantic.writes else "passed through (--no-writes)",
        "search log": "off (--search-log)" if log is None else str(log.path),
        "TLS": "off (--tls-certificate)" if listen.certificate is None else "on",
        "search page": f"{prefix}/ui/",
        "embeddings API": f"{prefix}/v1/embeddings of {models}{key if settings.embeddings_api.api_key else ''}",
        "metrics, health": f"{prefix}/metrics{key if settings.metrics_key else ''}, {prefix}/healthz, {prefix}/readyz",
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
    from es_sbert.gateway.server import bind_socket, create_server, freeze_objects, tune_interpreter
    from es_sbert.gateway.service_manager import notify_service_manager

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
