"""`es-sbert index judgements`: make a judgement list from clicks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message
from es_sbert.errors import SourceError
from es_sbert.messages import pluralize

# The same as the gateway's DEFAULT_SEARCH_LOG_INDEX, which is not imported here so that the help stays fast.
DEFAULT_SEARCH_LOG = "es-sbert-searches"


@cloup.command()
@click.argument("name")
@option_group(
    "Options",
    click.option(
        "-o", "--output", type=shared.OUTPUT_FILE_TYPE, required=True, metavar="FILE", help="CSV file to write."
    ),
    click.option(
        "--pairs",
        type=shared.OUTPUT_FILE_TYPE,
        metavar="FILE",
        help="Also write training pairs as JSON Lines: the query as anchor, the document's text as positive.",
    ),
    click.option(
        "--search-log",
        default=DEFAULT_SEARCH_LOG,
        metavar="NAME",
        help="The gateway's log of searches, without the month.",
    ),
    click.option(
        "--searched",
        multiple=True,
        metavar="NAME",
        help="Name by which applications search the index, such as an alias; may be repeated.  [default: NAME]",
    ),
    click.option(
        "--since",
        metavar="DATE",
        help="Leave out searches before this date, e.g. 2026-01-31 or now-90d.  [default: none]",
    ),
    click.option(
        "--min-searches", type=click.IntRange(min=1), default=5, help="Leave out queries with fewer searches."
    ),
    click.option(
        "--min-clicks", type=click.IntRange(min=1), default=2, help="Leave out documents that were opened less often."
    ),
    shared.vector_field_option,
)
@shared.connection_options
def judgements(name: str, output: Path, pairs: Path | None, **options: Any) -> None:
    """Make a judgement list for the index NAME from the clicks that a gateway logged.

    The gateway must run with --search-log, --log-queries and --log-clicks. The grade of a document for a query depends
    on its clicks divided by its expected clicks: the clicks that an average document at the same positions gets in as
    many searches. Grade 1: less often than expected; 2: at least as often; 3: at least twice as often. Documents
    without clicks are not judged.

    \b
    Examples:
      es-sbert index judgements docs -o judgements.csv
      es-sbert index judgements docs-2 --searched docs --since now-90d -o judgements.csv --pairs pairs.jsonl
    """
    from es_sbert.cli.output import check_output_file, write_output_file
    from es_sbert.evaluation.click_judgements import click_judgements, judgement_csv, read_click_log, training_pairs

    remedy = "Choose another file."
    for path in (output, *([] if pairs is None else [pairs])):
        check_output_file(path, remedy)
    log, searched = options["search_log"], options["searched"] or (name,)
    with shared.open_engine(options) as engine:
        found = read_click_log(engine, f"{log}-*", f"{log}_clicks-*", searched, options["since"])
        made = click_judgements(found, **shared.select_options(options, ("min_searches", "min_clicks")))
        lines = [] if pairs is None else list(training_pairs(engine, name, options["vector_field"], made))
    unknown = sum(each.search_id not in found.searches for each in found.clicks)
    print_message(
        f"{pluralize(len(found.searches), 'search', 'searches')}, "
        f"{pluralize(len(found.clicks) - unknown, 'click')} on their hits; left out: "
        f"{pluralize(unknown, 'click')} of other searches, "
        f"{pluralize(found.without_text, 'search', 'searches')} without exactly one text"
    )
    if not made:
        raise SourceError(
            f"no query with at least {options['min_searches']} searches has a document that was clicked in at least "
            f"{options['min_clicks']} of them",
            "Collect more clicks, or lower --min-clicks and --min-searches.",
        )
    write_output_file(output, judgement_csv(made), remedy)
    queries = len({each.query for each in made})
    print_message(f"wrote {pluralize(len(made), 'judgement')} of {pluralize(queries, 'query', 'queries')} to {output}")
    if pairs is not None:
        write_output_file(pairs, lines, remedy)
        print_message(f"wrote {pluralize(len(lines), 'training pair')} to {pairs}")
