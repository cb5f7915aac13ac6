"""`es-sbert index drift`: check whether new documents differ from earlier ones."""

from __future__ import annotations

from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message, print_report
from es_sbert.errors import UsageError


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option("--since", metavar="DATE", help="Documents from this date on are new, e.g. 2026-01-31 or now-7d."),
    click.option(
        "--time-field", metavar="FIELD", help="Date field for --since.  [default: when a document was embedded]"
    ),
    click.option("--new", "new_filter", metavar="JSON", help="Query for the new documents, instead of --since."),
    click.option(
        "--baseline",
        metavar="JSON",
        help="Query for the documents to compare with, such as those of the training sample.  [default: all that are "
        "not new]",
    ),
    click.option(
        "--sample",
        type=click.IntRange(min=20, max=2000),
        default=500,
        help="New documents to sample; twice as many are sampled from the baseline.",
    ),
    click.option("--seed", type=int, default=0, help="Seed of the samples and of the test."),
    shared.json_option,
    shared.vector_field_option,
)
@shared.connection_options
def drift(name: str, as_json: bool, **options: Any) -> None:
    """Check whether new documents of the index NAME differ from earlier ones.

    Stored vectors of both are sampled and compared, without a model: by a permutation test of their energy distance,
    and by the cosines of the new documents to their nearest neighbors in the baseline. If the model is on this machine,
    tokens that its vocabulary lacks are counted too. A difference is reported if p is 0.01 or less. It does not mean
    that searches have become worse; it shows where to look.

    \b
    Examples:
      es-sbert index drift docs --since now-7d
      es-sbert index drift docs --since 2026-01-01 --time-field published
      es-sbert index drift docs --new '{"term": {"source": "forum"}}' --baseline '{"term": {"source": "wiki"}}'
    """
    from es_sbert.diagnostics.drift import drift_lines
    from es_sbert.diagnostics.index_drift import embedded_at_field, measure_drift, since_query
    from es_sbert.search.vector_query import parse_filter

    since, time_field, new_filter = options["since"], options["time_field"], options["new_filter"]
    if (since is None) == (new_filter is None):
        raise UsageError(
            "exactly one of --since and --new is required", "Use one of them to say which documents are new."
        )
    if time_field is not None and since is None:
        raise UsageError("--time-field requires --since", "Add --since DATE.")
    vector_field = options["vector_field"]
    if new_filter is None:
        new = since_query(time_field or embedded_at_field(vector_field), since)
    else:
        new = parse_filter(new_filter)
    baseline = None if options["baseline"] is None else parse_filter(options["baseline"])
    with shared.open_engine(options) as engine:
        sample_options = shared.select_options(options, ("sample", "seed"))
        report = measure_drift(engine, name, vector_field, new, baseline, report=print_message, **sample_options)
    print_report(report.as_json(), drift_lines(report), as_json=as_json)
