"""`es-sbert dashboards`: data views and dashboards for Kibana and OpenSearch Dashboards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message, write_output_file
from es_sbert.errors import UsageError
from es_sbert.filesystem import STDOUT_PATH
from es_sbert.gateway.settings import DEFAULT_SEARCH_LOG_INDEX
from es_sbert.messages import log_message


@cloup.command()
@click.argument("index")
@option_group(
    "Options",
    click.option("-o", "--output", type=shared.OUTPUT_FILE_TYPE, help="File to write.  [default: stdout]"),
    click.option(
        "--kibana",
        metavar="URL",
        callback=shared.reject_password_in_url,
        help="Import the objects into Kibana or OpenSearch Dashboards at this address instead, with its base path, "
        "and /s/SPACE for a space of Kibana.",
    ),
    click.option("--tenant", help="Tenant of OpenSearch Dashboards with security: global, __user__ or a name."),
    click.option(
        "--replace-view",
        is_flag=True,
        help="With --kibana: replace the settings of a data view of the same title that exists, instead of using it "
        "with its own.",
    ),
    click.option(
        "--search-log", default=DEFAULT_SEARCH_LOG_INDEX, help="The gateway's log of searches, without the month."
    ),
)
@shared.connection_options
def dashboards(
    index: str, output: Path | None, kibana: str | None, tenant: str | None, replace_view: bool, **options: Any
) -> None:
    """Write a data view, a saved search and dashboards for an index as NDJSON, or import them.

    INDEX is an index or alias that es-sbert has loaded. Without --kibana, import the file into Kibana 8.19 or 9
    (Elasticsearch) or OpenSearch Dashboards 3 (OpenSearch), under Stack Management (Dashboards Management), Saved
    objects, Import.

    The data view hides vectors. One dashboard shows the load: documents by model and by time of embedding, tokens,
    truncated texts. The other one shows searches, if there is a log of the gateway (`es-sbert serve --search-log`):
    rate, latency, queries without a hit. Importing again replaces everything. With --kibana, a data view of the same
    title that somebody made before is used (see --replace-view), and data views of OpenSearch Dashboards hold their
    fields, so that users who may only read see the panels.

    \b
    Examples:
      es-sbert dashboards docs > docs.ndjson
      es-sbert dashboards docs --kibana http://localhost:5601
      es-sbert dashboards docs --kibana https://kibana.example:5601/s/search
    """
    from es_sbert.diagnostics.saved_objects import DashboardProduct, build_saved_objects, to_ndjson
    from es_sbert.errors import require_extra

    if tenant is not None and kibana is None:
        raise UsageError("--tenant requires --kibana", "Set --kibana to an address, or leave --tenant out.")
    if replace_view and kibana is None:
        raise UsageError("--replace-view requires --kibana", "Set --kibana to an address, or leave --replace-view out.")
    if kibana is not None and output is not None:
        raise UsageError("--output and --kibana cannot be combined", "Leave one of them out.")
    if kibana is not None:
        require_extra("serve", "httpx")
    with shared.open_engine(options) as engine:
        product = DashboardProduct.from_engine_type(engine.info.engine_type)
        objects, notes = build_saved_objects(engine, index, searches=options["search_log"])
    for note in notes:
        log_message(note)
    if kibana is None:
        lines = [to_ndjson(objects, product)]
        write_output_file(output or STDOUT_PATH, lines, "Set --output to a file in a folder that exists.")
        return
    from es_sbert.diagnostics.import_dashboards import import_objects, kibana_address

    address = kibana_address(kibana, shared.engine_settings(options))
    for note in import_objects(address, product, objects, tenant=tenant, replace_view=replace_view):
        print_message(note)
    print_message(f"{len(objects)} objects are in {product.label} at {address.url}/app/dashboards")
