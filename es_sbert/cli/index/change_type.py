"""`es-sbert index change-type`: another index type in place."""

from __future__ import annotations

from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.index.types import INDEX_TYPES
from es_sbert.cli.options import connection_options, engine_settings, vector_field_option


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option("--index-type", required=True, help=f"The new type: {INDEX_TYPES}."),
    click.option(
        "--force-merge",
        "merge",
        is_flag=True,
        help="Rewrite what is in the index already: takes the time of building every graph anew, and up to three times "
        "the index's disk space until it is done.",
    ),
    vector_field_option,
)
@connection_options
def change_type(name: str, index_type: str, merge: bool, vector_field: str, **connection: Any) -> None:
    """Change the index type of a vector field of the index NAME in place (Elasticsearch).

    Possible are the steps that Elasticsearch allows: from flat types to graphs, and from finer numbers to
    coarser ones (hnsw, int8_hnsw, int4_hnsw, bbq_hnsw). Everything else needs a new index:
    `es-sbert index migrate`.

    New documents are stored in the new type at once. Those in the index follow when the engine merges their
    segments, which may take long or never come; --force-merge does it now. Searches go on all the time.

    \b
    Examples:
      es-sbert index change-type docs --index-type int8_hnsw
      es-sbert index change-type docs --index-type bbq_hnsw --force-merge
    """
    from es_sbert.engines.connect import connect
    from es_sbert.index.change_type import change_type as change
    from es_sbert.index.change_type import force_merge

    engine = connect(engine_settings(**connection))
    try:
        before = change(engine, name, vector_field, index_type)
        if before == index_type:
            click.echo(f"{name}.{vector_field} has the index type {index_type} already", err=True)
        else:
            click.echo(f"{name}.{vector_field}: {index_type} in place of {before}", err=True)
        if merge:
            click.echo("Merging each shard into one segment …", err=True)
            force_merge(engine, name)
        elif before != index_type:
            click.echo("Documents in the index follow as their segments are merged; now: --force-merge", err=True)
    finally:
        engine.close()
