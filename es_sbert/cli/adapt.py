"""`es-sbert adapt`: tune a model on the documents of an index."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.output import align_columns, print_message
from es_sbert.messages import pluralize
from es_sbert.settings import AdaptOptions, AdaptSettings, TrainingOptions

if TYPE_CHECKING:
    from es_sbert.training.adapt import AdaptResult

EXIT_NOT_BETTER = 1


@cloup.command()
@click.argument("index")
@option_group(
    "Options",
    click.option(
        "-o",
        "--output",
        type=shared.FILE_TYPE,
        required=True,
        metavar="FOLDER",
        help="Folder for the documents, the pairs and the model; new or empty, except with --resume.",
    ),
    shared.setting_option(AdaptSettings, "name NAME", required=False),
    shared.setting_options(AdaptOptions, "resume", "keep"),
    shared.json_option(),
)
@option_group(
    "Pairs",
    shared.setting_options(AdaptSettings, "pairs", "title_field FIELD", "body_fields FIELD"),
    click.option(
        "--queries",
        type=shared.FILE_TYPE,
        metavar="FILE",
        help="Labeled queries to compare the models with, instead of held-out titles or sentences: JSON Lines of "
        '{"query": "…", "ids": ["…"]}, or a judgement list of es-sbert evaluate.',
    ),
    click.option("--train-queries", type=shared.FILE_TYPE, metavar="FILE", help="Labeled queries to train on as well."),
    shared.setting_options(
        AdaptSettings, "filter JSON", "documents", "most_trained --most-pairs", "held_out", "seed", "vector_field"
    ),
)
@option_group(
    "Training",
    shared.setting_options(
        AdaptSettings, "model NAME", "epochs", "batch", "learning_rate", "train_tokens", "negatives"
    ),
    shared.setting_option(TrainingOptions, "device $ES_SBERT_DEVICE"),
    shared.threads_option,
    shared.retry_seconds_option,
)
@shared.connection_options
def adapt(index: str, output: Path, as_json: bool, **options: Any) -> int:
    """Tune a model on the documents of INDEX, without labels.

    Pairs of a query and a text are made from the documents: a title and the text below it, or the first sentence of a
    text and the rest. The engine and the model find hard negatives. Some queries are held out; at the end, the tuned
    model and the one that it started from rank the documents for them, and the difference is shown with its 95 %
    confidence interval. Nothing is written to the index.

    If the tuned model is better, it is registered under its name, and the command to migrate the index to it is
    shown. If it is not better, it is deleted (see --keep).

    Exit codes: 0 better, 1 not better, 2 error.

    \b
    Examples:
      es-sbert adapt docs -o docs-tuned
      es-sbert adapt docs -o docs-tuned --title-field subject --body-field message
      es-sbert adapt docs -o docs-tuned --queries judged.jsonl
      es-sbert adapt docs -o docs-tuned --queries judged.jsonl --train-queries generated.jsonl
      es-sbert adapt docs -o docs-tuned --resume
      es-sbert adapt docs -o docs-tuned && es-sbert index migrate docs --model docs-tuned
    """
    from es_sbert import training

    training.require_training()
    names = {"queries", *AdaptSettings.model_fields, *AdaptOptions.__annotations__}
    result = training.adapt_model(
        index,
        output,
        shared.engine_settings(options),
        train_queries=options["train_queries"] or (),
        register=True,
        report=print_message,
        **shared.select_options(options, names),
    )
    if as_json:
        click.echo(json.dumps(_result_json(result), indent=2))
    else:
        click.echo("\n".join(result_lines(result)))
    return 0 if result.comparison.verdict == "better" else EXIT_NOT_BETTER


def _result_json(result: AdaptResult) -> dict[str, Any]:
    metrics = {
        name: {
            "stock": found.second,
            "tuned": found.first,
            "low": found.low,
            "high": found.high,
            "p_value": found.p_value,
        }
        for name, found in (("ndcg@10", result.comparison.ndcg), ("recall@10", result.comparison.recall))
    }
    return {
        "verdict": str(result.comparison.verdict),
        "queries": result.comparison.queries,
        "documents": result.comparison.documents,
        "metrics": metrics,
        "trained_pairs": result.trained,
        "base": result.plan.model_name,
        "pairs": "sentence" if result.plan.fields.title is None else "title",
        "title_field": result.plan.fields.title,
        "body_fields": list(result.plan.fields.body),
        "model": None if result.model is None else str(result.model),
        "fingerprint": result.fingerprint,
    }


def result_lines(result: AdaptResult) -> list[str]:
    """Format the result: the comparison as a table, its meaning, and the next step."""
    from es_sbert.evaluation.significance import few_queries_warning, shown_difference

    comparison, settings = result.comparison, result.settings
    rows = [("", result.plan.model_name, settings.name, "difference", "95 % interval")]
    for name, metric in (("nDCG@10", comparison.ndcg), ("recall@10", comparison.recall)):
        interval = f"{metric.low:+.2f} to {metric.high:+.2f}"
        difference = f"{shown_difference(metric.first, metric.second):+.2f}"
        rows.append((name, f"{metric.second:.2f}", f"{metric.first:.2f}", difference, interval))
    lines = [
        f"{pluralize(comparison.queries, 'held-out query', 'held-out queries')}, "
        f"{pluralize(comparison.documents, 'document')}, exact ranking, × 100:",
        *align_columns(rows),
        *filter(None, [few_queries_warning(comparison.queries)]),
    ]
    if comparison.verdict == "better":
        replace = "" if result.is_alias else " --replace-index"
        command = f"es-sbert index migrate {shlex.quote(settings.index)} --model {settings.name}{replace}"
        return [*lines, f"The tuned model is better. Embed the index with it: {command}"]
    reason = {
        "worse": "The tuned model is worse than the one that it started from.",
        "not distinguishable": "The tuned model cannot be distinguished from the one that it started from.",
    }[str(comparison.verdict)]
    remedy = "More pairs (--documents, --most-pairs), more --epochs or --queries may change that."
    fate = f"It is kept in {result.model}, but not registered." if result.model else "It was deleted."
    return [*lines, f"{reason} {fate} {remedy}"]
