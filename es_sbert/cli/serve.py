"""`es-sbert serve`: the gateway."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import click

from es_sbert.cli.options import address_option, encoder_options, engine_settings, sign_in_options, stacked
from es_sbert.errors import UsageError
from es_sbert.extras import require

_listen_options = stacked(
    click.option("--host", default="127.0.0.1", show_default=True,
                 help="Address to listen on. Any other opens the gateway to other machines."),
    click.option("--port", type=click.IntRange(0, 65_535), default=9280, show_default=True, help="TCP port."),
    click.option("--tls-certificate", type=click.Path(path_type=Path), help="PEM file, to serve https."),
    click.option("--tls-key", type=click.Path(path_type=Path), help="PEM file of the certificate's key."),
    click.option("--own-prefix", default="", metavar="PATH",
                 help="Path before the gateway's own pages (/ui, /healthz, /metrics, /v1/embeddings), where an index "
                      "has such a name."),
    click.option("--cors-origin", multiple=True, metavar="ORIGIN",
                 help="Pages of this origin may call from a browser. May be given several times."),
)  # fmt: skip
_meaning_options = stacked(
    click.option("--virtual-field", default="semantic", show_default=True,
                 help='Field name that means the vectors of an index: semantic: "how do plants make energy".'),
    click.option("-k", "k", type=click.IntRange(1, 10_000), default=100, show_default=True,
                 help="Documents that a search by the virtual field keeps."),
    click.option("--min-cosine", type=click.FloatRange(-1, 1), help="Documents less near than this are no hits."),
    click.option("--num-candidates", type=click.IntRange(1, 10_000),
                 help="Vectors that each shard looks at.  [default: twice k, at least 100]"),
    click.option("--hybrid", is_flag=True,
                 help="Search plain match and multi_match on embedded texts by meaning too, for every request."),
    click.option("--semantic-weight", type=click.FloatRange(0, min_open=True),
                 help="What a cosine score of 1 adds to BM25 in such searches.  [default: 400, OpenSearch 200]"),
    click.option("--no-writes", is_flag=True, help="Do not add vectors to documents that are written."),
    click.option("--on-embedding-failure", type=click.Choice(["fail", "pass"]), default="fail", show_default=True,
                 help="A document whose vector cannot be made is refused, for the client to send it again, or passes "
                      "without."),
)  # fmt: skip
_limit_options = stacked(
    click.option("--max-body", type=click.IntRange(1), default=100, show_default=True, metavar="MIB",
                 help="Largest body of a request."),
    click.option("--max-requests", type=click.IntRange(1), default=512, show_default=True,
                 help="Requests under way at once; more are told to come back (429)."),
    click.option("--answer-timeout", type=click.FloatRange(0, min_open=True), default=3600.0, show_default=True,
                 metavar="SECONDS", help="How long the engine may take to answer."),
)  # fmt: skip
_model_options = stacked(
    click.option("--also-model", "more_models", multiple=True, metavar="MODEL",
                 help="Serve this model too: for indices that were filled by it, and at /v1/embeddings. May be given "
                      "several times."),
    click.option("--model-alias", "aliases", multiple=True, metavar="NAME=MODEL",
                 help="Another name of a served model at /v1/embeddings, such as text-embedding-3-small. May be given "
                      "several times."),
    click.option("--models-in-memory", type=click.IntRange(1), default=2, show_default=True,
                 help="Models kept loaded; the least recently used is dropped."),
    click.option("--download-models", is_flag=True,
                 help="Fetch models from the hub that only an index names. Whoever may write an index then chooses "
                      "what is downloaded."),
)  # fmt: skip
_own_options = stacked(
    click.option("--embeddings-key-file", type=click.Path(path_type=Path),
                 help="File with a key of the gateway's own that callers of /v1/embeddings must send."),
    click.option("--search-log", metavar="NAME",
                 help="Write a record of each search into indices NAME-YYYY.MM, by the gateway's own credentials."),
    click.option("--log-queries", is_flag=True, help="With --search-log: the texts too, not only their keyed hashes."),
)  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@address_option("--upstream")
@_listen_options
@_meaning_options
@_limit_options
@_own_options
@encoder_options
@_model_options
@sign_in_options
def serve(host: str, port: int, tls_certificate: Path | None, tls_key: Path | None, own_prefix: str,
          cors_origin: tuple[str, ...], virtual_field: str, k: int, min_cosine: float | None,
          num_candidates: int | None, hybrid: bool, semantic_weight: float | None, no_writes: bool,
          on_embedding_failure: str, max_body: int, max_requests: int, answer_timeout: float,
          embeddings_key_file: Path | None, search_log: str | None, log_queries: bool, model: str | None, device: str,
          precision: str, threads: int | None, more_models: tuple[str, ...], aliases: tuple[str, ...],
          models_in_memory: int, download_models: bool, **connection: Any) -> int:  # fmt: skip
    """Stand in front of an engine and understand searches by meaning.

    Applications ask the gateway in place of the engine and need no other change. Requests pass untouched, with
    the caller's own credentials; those that ask by meaning are put into the engine's own words, and documents that
    are written get their vectors. Credentials given here are the gateway's own, to read mappings; callers never
    get them.

    \b
    Examples:
      es-sbert serve --upstream http://localhost:9200
      es-sbert serve --upstream https://search.example:9200 --ca-certs ca.pem --hybrid
      curl 'localhost:9280/docs/_search?q=semantic:"how+do+plants+make+energy"'
    """
    require("serve", "aiohttp", "luqum", "prometheus_client", "starlette", "uvicorn")
    from pydantic import SecretStr

    from es_sbert.config import DEFAULT_MODEL
    from es_sbert.credentials import read_secret_file
    from es_sbert.gateway.embeddings_api import EmbeddingsApiSettings
    from es_sbert.gateway.search_log import SearchLogSettings
    from es_sbert.gateway.search_record import Wording
    from es_sbert.gateway.serve import server
    from es_sbert.gateway.served import ModelSettings
    from es_sbert.gateway.settings import MIB, GatewaySettings, Limits, Listen, Meaning, OnEmbeddingFailure

    settings = GatewaySettings(
        upstream=engine_settings(**connection),
        listen=Listen(host=host, port=port, own_prefix=own_prefix, cors_origins=cors_origin,
                      certificate=tls_certificate, key=tls_key),
        limits=Limits(body_bytes=max_body * MIB, concurrency=max_requests, answer_seconds=answer_timeout),
        meaning=Meaning(virtual_field=virtual_field, k=k, min_cosine=min_cosine, num_candidates=num_candidates,
                        hybrid=hybrid, semantic_weight=semantic_weight, writes=not no_writes,
                        on_embedding_failure=OnEmbeddingFailure(on_embedding_failure)),
        embeddings_api=EmbeddingsApiSettings(
            api_key=None if embeddings_key_file is None else SecretStr(read_secret_file(embeddings_key_file, "key"))
        ),
        search_log=None if search_log is None else SearchLogSettings(
            Wording.of(queries=log_queries), gateway=f"{socket.gethostname()}:{port}", index=search_log
        ),
        models=ModelSettings(models=(model or DEFAULT_MODEL, *more_models), aliases=_aliases(aliases), device=device,
                             precision=precision, threads=threads, in_memory=models_in_memory,
                             download=download_models),
    )  # fmt: skip
    running = server(settings)
    address = f"{'https' if tls_certificate else 'http'}://{host}:{port}"
    click.echo(f"{address} stands in front of {settings.upstream.url}. Press Ctrl-C to end.", err=True)
    running.run()
    return 0 if running.started else 2


def _aliases(pairs: tuple[str, ...]) -> dict[str, str]:
    """NAME=MODEL → name → model.

    Raises:
        UsageError: not of that form, or a name given twice.
    """
    aliases: dict[str, str] = {}
    for pair in pairs:
        name, _, model = pair.partition("=")
        if not name or not model:
            raise UsageError(f"--model-alias {pair!r} is not NAME=MODEL", "Write text-embedding-3-small=my-model.")
        if name in aliases:
            raise UsageError(f"--model-alias {name} is given twice", "Leave one of the two out.")
        aliases[name] = model
    return aliases
