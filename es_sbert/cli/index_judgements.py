"""`es-sbert index judgements` and `tune-hybrid`: make judgements from clicks, and tune hybrid search by judgements."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message, print_report
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


@cloup.command("tune-hybrid")
@click.argument("name")
@option_group(
    "Options",
    click.option(
        "--judgements",
        type=shared.FILE_TYPE,
        required=True,
        metavar="FILE",
        help="Judgement list: query, document and grade, as CSV, TSV, JSONL, Parquet, or the body of _rank_eval as "
        ".json.",
    ),
    click.option(
        "--fusion",
        "fusions",
        type=click.Choice(["rrf", "weighted", "normalized"]),
        multiple=True,
        help="Fusion to try; may be repeated.  [default: all that the engine supports]",
    ),
    click.option(
        "--lexical-fields",
        metavar="LIST",
        help="Fields of the keyword search, separated by commas.  [default: those of the embedded text]",
    ),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Use N queries, the same in every run."),
    click.option("--seed", type=int, default=0, help="Seed of the folds and of the resampling."),
    shared.json_option,
    shared.vector_field_option,
)
@shared.connection_options
@shared.encoder_options
def tune_hybrid(name: str, judgements: Path, fusions: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Find the fusion and the weights of hybrid search for the index NAME.

    Every judged query is run as a keyword search, as a semantic search, and with each setting as a hybrid search, as
    in es-sbert search --hybrid. Cross-validation chooses the setting by its nDCG@10 on nine tenths of the queries, and
    measures it on the rest. The result is compared with the default, with semantic search and with keyword search, each
    with interval and p-value. A setting other than the default is recommended only if it is significantly better.

    \b
    Examples:
      es-sbert index tune-hybrid docs --judgements judgements.csv
      es-sbert index tune-hybrid docs --judgements judgements.csv --fusion rrf --lexical-fields title,body
    """
    from es_sbert.evaluation.fusion_scores import measure_fusions
    from es_sbert.evaluation.fusion_tuning import fusion_lines, fusion_report, fusion_settings, require_queries
    from es_sbert.evaluation.index_retrieval import report_unknown_documents
    from es_sbert.evaluation.judgement_files import read_judgements
    from es_sbert.search.hybrid_search import Fusion, supported_fusions
    from es_sbert.search.search_scope import read_search_scope
    from es_sbert.search.semantic_index import SemanticIndex

    fields = options["lexical_fields"]
    data = read_judgements(judgements, limit=options["limit"])
    require_queries(len(data.queries))
    with ExitStack() as opened:
        engine = opened.enter_context(shared.open_engine(options))
        vector_field, encoder = options["vector_field"], shared.encoder_arguments(options)
        semantic = opened.enter_context(
            SemanticIndex(name, engine, vector_field=vector_field, report=print_message, **encoder)
        )
        engine_type = engine.info.engine_type
        chosen = [Fusion(each) for each in fusions] or supported_fusions(engine_type)
        report_unknown_documents(engine, name, data, print_message)
        scores = measure_fusions(
            engine,
            read_search_scope(engine, [name], [vector_field]),
            semantic.encoder,
            data,
            fusion_settings(engine_type, chosen),
            lexical_fields=None if fields is None else [each.strip() for each in fields.split(",")],
            report=print_message,
        )
    report = fusion_report(name, scores, seed=options["seed"])
    print_report(report.as_json(), fusion_lines(report), as_json=as_json)
