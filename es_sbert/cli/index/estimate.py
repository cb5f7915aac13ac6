"""`es-sbert index estimate`: memory and disk of each index type."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.options import connection_options, engine_settings, vector_field_option


@cloup.command()
@click.argument("name", required=False)
@option_group(
    "Options",
    click.option("--documents", type=click.IntRange(min=1), help="Number of vectors.  [default: those of NAME]"),
    click.option("--dimensions", type=click.IntRange(min=1), help="Length of a vector.  [default: that of NAME]"),
    click.option(
        "--m", type=click.IntRange(min=2), default=16, show_default=True, help="Neighbours of a graph's node."
    ),
    click.option("--copies", type=click.IntRange(min=1), default=1, show_default=True, help="Primary and replicas."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object."),
    vector_field_option,
)
@connection_options
def estimate(name: str | None, documents: int | None, dimensions: int | None, m: int, copies: int, as_json: bool,
             vector_field: str, **connection: Any) -> None:  # fmt: skip
    """Memory and disk that vectors take with each index type of the engine.

    For so many --documents of so many --dimensions; or for those of the index NAME, and then beside what its
    vectors really take on disk. Memory is what should fit into the file system's cache, outside the engine's
    heap, for searches to be fast. Merging takes up to twice the disk for a while.

    \b
    Examples:
      es-sbert index estimate --documents 1000000 --dimensions 384
      es-sbert index estimate docs --copies 2
    """
    import orjson

    from es_sbert.engines.connect import connect
    from es_sbert.tuning.size_report import size_lines, size_report

    with closing(connect(engine_settings(**connection))) as engine:
        report = size_report(engine, name, vector_field, documents=documents, dimensions=dimensions, m=m, copies=copies)
    click.echo(orjson.dumps(report.as_json()) if as_json else "\n".join(size_lines(report)))
