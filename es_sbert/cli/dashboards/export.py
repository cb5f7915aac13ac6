"""`es-sbert dashboards export`: saved objects as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.dashboards.options import contents_options, made
from es_sbert.cli.options import connection_options, engine_settings


@cloup.command()
@option_group(
    "Options",
    contents_options,
    click.option(
        "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write.  [default: stdout]"
    ),
)
@connection_options
def export(index: str, search_log: str, report_index: str, output: Path | None, **connection: Any) -> None:
    """Write the saved objects of an index as NDJSON.

    They go with what is beside the engine: Kibana 8.19 and 9 for Elasticsearch, OpenSearch Dashboards 3 for
    OpenSearch. Import them there under Stack Management (Dashboards Management), Saved objects, Import; or let
    `es-sbert dashboards install` do it.

    \b
    Examples:
      es-sbert dashboards export --index docs > docs.ndjson
      es-sbert dashboards export --index docs --output docs.ndjson
    """
    from es_sbert.dashboards.saved_objects import ndjson
    from es_sbert.errors import OutputError
    from es_sbert.output import STDOUT, written

    bundle = made(engine_settings(**connection), index, search_log, report_index)
    lines = ndjson(bundle.objects, bundle.product)
    try:
        with written(output or STDOUT) as file:
            file.write(lines)
    except OSError as error:
        raise OutputError(
            f"{output} cannot be written: {error.strerror}", "Give --output a folder that exists."
        ) from error
    if output not in (None, STDOUT):
        click.echo(f"{len(bundle.objects)} objects for {bundle.product.label} in {output}", err=True)
