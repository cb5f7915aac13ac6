"""`es-sbert dashboards`: export or install data views and dashboards for Kibana and OpenSearch Dashboards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message, write_output_file
from es_sbert.messages import pluralize

if TYPE_CHECKING:
    from es_sbert.dashboards.build_dashboards import SavedObjectSet


@cloup.group()
def dashboards() -> None:
    """Export or install data views and dashboards for Kibana and OpenSearch Dashboards."""


_index_options = shared.combine_options(
    click.option("--index", required=True, help="Index or alias that es-sbert has loaded."),
    click.option("--search-log", default="es-sbert-searches", help="The gateway's log of searches, without the month."),
    click.option("--report-index", default="es-sbert-loads", help="Index with the reports of loads."),
    click.option(
        "--time-field",
        metavar="FIELD",
        help="Date field for the time picker of the index's data view.  [default: none, so that no document is hidden]",
    ),
)


def _build_objects(options: dict[str, Any]) -> SavedObjectSet:
    """Build the objects for an index, and log what had to be left out.

    Raises:
        EsSbertError: see `es_sbert.dashboards.build_dashboards`.
    """
    from es_sbert.dashboards.build_dashboards import build_saved_objects
    from es_sbert.index.text_template import format_vector_field_option
    from es_sbert.messages import log_message

    index, logs = options["index"], {"searches": options["search_log"], "reports": options["report_index"]}
    with shared.open_engine(options) as engine:
        bundle = build_saved_objects(engine, index, **logs, time_field=options["time_field"])
    for note in bundle.notes:
        log_message(f"{note[0].upper()}{note[1:]}")
    if bundle.uncalibrated:
        commands = (
            f"`es-sbert index calibrate {index}{format_vector_field_option(name)} --save`"
            for name in bundle.uncalibrated
        )
        log_message(
            "Without a minimum cosine, semantic queries count documents however distant they are, and cannot be "
            f"negated: measure one with {' and '.join(commands)}, or start the gateway with --min-cosine."
        )
    return bundle


@dashboards.command()
@option_group(
    "Options",
    _index_options,
    click.option("-o", "--output", type=shared.OUTPUT_FILE_TYPE, help="File to write.  [default: stdout]"),
)
@shared.connection_options
def export(output: Path | None, **options: Any) -> None:
    """Write the saved objects of an index as NDJSON.

    Import them into Kibana 8.19 or 9 (Elasticsearch) or OpenSearch Dashboards 3 (OpenSearch), under Stack
    Management (Dashboards Management), Saved objects, Import; or run `es-sbert dashboards install`.

    \b
    Examples:
      es-sbert dashboards export --index docs > docs.ndjson
      es-sbert dashboards export --index docs --output docs.ndjson
    """
    from es_sbert.dashboards.saved_objects import to_ndjson
    from es_sbert.filesystem import STDOUT_PATH

    bundle = _build_objects(options)
    lines = to_ndjson(bundle.objects, bundle.product)
    write_output_file(output or STDOUT_PATH, [lines], "Set --output to a file in a folder that exists.")
    if output not in (None, STDOUT_PATH):
        print_message(f"{pluralize(len(bundle.objects), 'object')} for {bundle.product.label} in {output}")


_kibana_settings = shared.combine_options(
    shared.environment_option(
        "--kibana-url",
        "Address of Kibana or OpenSearch Dashboards, with its base path.",
        default="http://localhost:5601",
        show_envvar=True,
        callback=shared.reject_password_in_url,
    ),
    shared.environment_option(
        "--kibana-username",
        "User name for Kibana; set its password in ES_SBERT_KIBANA_PASSWORD or a file.  [default: the engine's "
        "credentials]",
        show_envvar=True,
    ),
    shared.environment_option(
        "--kibana-password-file", "File that holds the password for Kibana.", type=shared.FILE_TYPE
    ),
    shared.environment_option(
        "--kibana-api-key-file", "File that holds an API key (or ES_SBERT_KIBANA_API_KEY).", type=shared.FILE_TYPE
    ),
    shared.environment_option(
        "--kibana-ca-certs",
        "PEM file of the CA that signed Kibana's certificate.",
        show_envvar=True,
        type=shared.FILE_TYPE,
    ),
    click.option("--space", help="Kibana space.  [default: the default space]"),
    click.option("--tenant", help="Tenant of OpenSearch Dashboards with security: global, __user__ or a name."),
)


@dashboards.command()
@option_group("Options", _index_options, _kibana_settings)
@shared.connection_options
def install(space: str | None, tenant: str | None, **options: Any) -> None:
    """Install a data view, a saved search and dashboards for an index.

    The data view hides vectors, and becomes the default one if there is no default. One dashboard shows the load:
    documents by model and by time of embedding, tokens, truncated texts, failures. The other one shows searches:
    rate, latency, queries without a hit. Both dashboards show more if there are reports of loads
    (`es-sbert ingest --report-index`) and a log of the gateway (`es-sbert serve --search-log`). Installing again
    replaces everything, including the fields that OpenSearch Dashboards keeps in a data view.

    \b
    Examples:
      es-sbert dashboards install --index docs
      es-sbert dashboards install --index docs --kibana-url https://kibana.example:5601 --space search
      es-sbert dashboards install --index docs --kibana-url http://localhost:5601 --tenant global
    """
    from es_sbert.errors import require_extra

    require_extra("serve", "httpx")
    from es_sbert.dashboards.import_dashboards import DashboardServer, KibanaSettings, kibana_address

    kibana_settings = {
        name.removeprefix("kibana_"): value for name, value in options.items() if name.startswith("kibana_")
    }
    kibana = KibanaSettings.with_engine_credentials(shared.engine_settings(options), **kibana_settings)
    address = kibana_address(kibana)
    bundle = _build_objects(options)
    place = DashboardServer(address, bundle.product, space, tenant)
    done = place.import_objects(bundle.objects, default_view=bundle.view)
    print_message(f"{done.objects} objects are in {bundle.product.label} at {place.url}")
    for note in done.notes:
        print_message(f"{note[0].upper()}{note[1:]}")
    for title, url in done.dashboards.items():
        click.echo(f"{title}: {url}")
