"""`es-sbert index tune-hybrid`: choose options of hybrid search by judgements."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import print_message, print_report


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
        help="Fusion to try; may be repeated.  [default: all that the engine has]",
    ),
    click.option(
        "--lexical-fields",
        metavar="LIST",
        help="Fields of the keyword search, separated by commas.  [default: those of the embedded text]",
    ),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Use N queries, always the same."),
    click.option("--seed", type=int, default=0, help="Seed of the folds and of the resampling."),
    shared.json_option,
    shared.vector_field_option,
)
@shared.connection_options
@shared.encoder_options
def tune_hybrid(name: str, judgements: Path, fusions: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Find the fusion and the weights of hybrid search for the index NAME.

    Every judged query is searched by words, by vector, and by both with each setting, as es-sbert search --hybrid
    does it. The setting is chosen by cross-validation: by the nDCG@10 of nine tenths of the queries, and measured on
    the rest. The result is compared with the default, with semantic search and with keyword search alone, with
    interval and p-value. Another setting than the default is recommended only if it is better by more than chance.

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
