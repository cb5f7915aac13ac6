"""`es-sbert adapt`: tune a model on the documents of an index."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.analysis import read_filter
from es_sbert.cli.output import align_columns, print_message
from es_sbert.messages import pluralize

if TYPE_CHECKING:
    from es_sbert.training.adapt import AdaptResult
    from es_sbert.training.adapt_plan import AdaptSettings

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
    click.option("--name", metavar="NAME", help="Name of the tuned model.  [default: INDEX-tuned]"),
    click.option("--resume", is_flag=True, help="Resume the stopped run in FOLDER."),
    click.option("--keep", is_flag=True, help="Keep the model in FOLDER/model even if it is not better."),
    shared.json_option,
)
@option_group(
    "Pairs",
    click.option(
        "--pairs",
        type=click.Choice(["auto", "title", "sentence"]),
        default="auto",
        help="title: the title finds the text. sentence: the first sentence finds the rest of the text. auto: title if "
        "a field looks like one.",
    ),
    click.option(
        "--title-field", metavar="FIELD", help="Field of the title.  [default: chosen from a sample of the documents]"
    ),
    click.option(
        "--body-field",
        "body_fields",
        multiple=True,
        metavar="FIELD",
        help="Field of the text; may be repeated.  [default: the text that the index embeds, without the title]",
    ),
    click.option(
        "--queries",
        type=shared.FILE_TYPE,
        metavar="FILE",
        help="Labeled queries to compare the models with, instead of held-out titles or sentences: JSON Lines of "
        '{"query": "…", "ids": ["…"]}, or a judgement list of es-sbert evaluate.',
    ),
    click.option("--train-queries", type=shared.FILE_TYPE, metavar="FILE", help="Labeled queries to train on as well."),
    click.option(
        "--filter", "filter_text", metavar="JSON", help="Query that every document must match.  [default: all]"
    ),
    click.option(
        "--documents",
        type=click.IntRange(min=1),
        default=20_000,
        help="Read at most this many documents, at random. Pairs are made from them, and they are ranked for the "
        "queries.",
    ),
    click.option(
        "--most-pairs", type=click.IntRange(min=1), default=10_000, help="Maximum number of pairs to train on."
    ),
    click.option(
        "--held-out",
        type=click.IntRange(min=1),
        default=500,
        help="Queries to compare the models with; at most a fifth of the pairs.",
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, help="Seed of the sample, the split and the training."
    ),
    shared.vector_field_option,
)
@option_group(
    "Training",
    click.option("--model", metavar="NAME", help="Model to start from.  [default: that of the index]"),
    click.option(
        "--epochs", type=shared.FiniteFloatRange(min=0, min_open=True), default=1.0, help="Passes over the pairs."
    ),
    click.option(
        "--batch", type=click.IntRange(min=2), default=32, help="Pairs per batch; each is a negative of the others."
    ),
    click.option(
        "--learning-rate",
        type=shared.FiniteFloatRange(min=0, min_open=True),
        default=5e-5,
        help="Peak learning rate.",
    ),
    click.option(
        "--train-tokens",
        type=click.IntRange(min=16),
        default=128,
        help="Maximum tokens of a text in training, from its beginning. More tokens take longer. The comparison and "
        "the tuned model read as many as before.",
    ),
    click.option("--negatives", type=click.IntRange(min=0), default=1, help="Hard negatives per pair."),
    click.option("--device", default="auto", envvar="ES_SBERT_DEVICE", show_envvar=True, help="auto, cpu or cuda."),
    shared.threads_option,
    shared.retry_seconds_option,
)
@shared.connection_options
def adapt(index: str, output: Path, resume: bool, keep: bool, as_json: bool, **options: Any) -> int:
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
    from es_sbert.training import require_training

    require_training()
    from es_sbert.bundle.local_registry import try_register_model
    from es_sbert.cli.analysis import engine_retrier
    from es_sbert.evaluation.judgement_files import read_labeled_queries
    from es_sbert.training.adapt import adapt
    from es_sbert.training.adapt_plan import AdaptInputs, AdaptSettings

    chosen = shared.select_options(options, AdaptSettings.model_fields)
    settings = AdaptSettings(
        index=index,
        filter=read_filter(options),
        most_trained=options["most_pairs"],
        **chosen | {"name": options["name"] or default_name(index)},
    )
    evaluated, trained = options["queries"], options["train_queries"]
    inputs = AdaptInputs(
        None if evaluated is None else read_labeled_queries(evaluated),
        () if trained is None else read_labeled_queries(trained),
    )
    with shared.open_engine(options) as engine:
        device_options = shared.select_options(options, ("device", "threads"))
        result = adapt(
            engine,
            settings,
            output,
            inputs=inputs,
            resume=resume,
            keep=keep,
            report=print_message,
            retrying=engine_retrier(options),
            **device_options,
        )
    is_better = result.comparison.verdict == "better"
    if is_better and result.model is not None:
        try_register_model(result.model, result.fingerprint, name=settings.name)
    if as_json:
        click.echo(json.dumps(_result_json(result), indent=2))
    else:
        click.echo("\n".join(result_lines(result, settings)))
    return 0 if is_better else EXIT_NOT_BETTER


def default_name(index: str) -> str:
    """Return the default name of a model tuned on an index, without characters that model names cannot have."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', index).strip('._-') or 'index'}-tuned"


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


def result_lines(result: AdaptResult, settings: AdaptSettings) -> list[str]:
    """Format the result: the comparison as a table, its meaning, and the next step."""
    from es_sbert.evaluation.significance import few_queries_warning, shown_difference

    comparison = result.comparison
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
