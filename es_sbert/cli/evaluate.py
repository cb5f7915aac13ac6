"""`es-sbert evaluate`: measure a model, or the searches of an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert import evaluation
from es_sbert.cli import options as shared
from es_sbert.cli.logs import log_format_option
from es_sbert.cli.output import print_report
from es_sbert.errors import UsageError, require_extra
from es_sbert.messages import log_message as report
from es_sbert.settings import RunOptions

if TYPE_CHECKING:
    from es_sbert.evaluation.evaluation_report import EvaluationReport


@cloup.command()
@click.argument("model", required=False)
@option_group(
    "Options",
    shared.setting_option(evaluation.evaluate_model, "task", multiple=True, help="Evaluation task; may be repeated."),
    shared.setting_option(evaluation.evaluate_model, "data FOLDER", type=shared.FILE_TYPE),
    click.option(
        "--judgements",
        type=shared.FILE_TYPE,
        metavar="FILE",
        help="Evaluate --index with a judgement list: query, document and grade, as CSV, TSV, JSONL or Parquet.",
    ),
    click.option(
        "--compare",
        metavar="OTHER",
        help="Compare MODEL with another model in the task retrieval: interval and p-value of the difference.",
    ),
    shared.setting_option(evaluation.evaluate_model, "files FILE", type=shared.FILE_TYPE),
    shared.setting_options(evaluation.evaluate_model, "limit N"),
)
@option_group(
    "Model",
    shared.device_options,
)
@option_group(
    "Output",
    shared.json_option("Print one JSON object for each task instead of tables."),
    log_format_option,
)
@option_group(
    "Index, for the task retrieval",
    click.option(
        "--index",
        "indices",
        multiple=True,
        help="Search this index instead of vectors in memory. Give it twice to compare two indices.",
    ),
    shared.vector_field_option,
)
@shared.connection_options
def evaluate(model: str | None, task: tuple[Any, ...], files: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Evaluate MODEL, or the searches of an index.

    MODEL is a sentence encoder (a folder, a bundle, a hub id or an installed name), or an exported
    cross-encoder. With --index, it is the model of the index by default.

    \b
    Tasks:
      sts         Spearman's and Pearson's correlation with human scores
      triplet     how often the positive is closer than the negative
      duplicates  average precision, best F1
      retrieval   nDCG@10, MRR@10, MAP, precision, recall, success@1, unjudged@10

    \b
    Examples:
      es-sbert evaluate all-MiniLM-L6-v2 --task sts --data data
      es-sbert evaluate ./my-model --task sts --file pairs.tsv --precision fp32
      es-sbert evaluate ./my-model --task sts --task triplet --data data
      es-sbert evaluate --task retrieval --data data/retrieval/cisi --index cisi
      es-sbert evaluate ./my-model --compare all-MiniLM-L6-v2 --task retrieval --data NanoBEIR
      es-sbert evaluate --task retrieval --judgements judgements.csv --index docs --index docs-new
    """
    from es_sbert.evaluation.evaluation_report import text_table
    from es_sbert.evaluation.significance import compare_reports, comparison_json, comparison_lines

    _check_options(model, task, files, options)
    if not options["indices"]:
        require_extra("train", "scipy", "sklearn")
    reports, others, names = (
        _evaluate_tasks(str(model), task, files, options)
        if not options["indices"]
        else _evaluate_indices(model, options)
    )
    for result in reports + others:
        click.echo(result.as_json().decode() if as_json else text_table(result))
    for first, second in zip(reports, others, strict=False):
        differences = compare_reports(first, second)
        compared = comparison_json(differences, names)
        print_report({"comparison": compared}, comparison_lines(differences, names), as_json=as_json)


def _check_options(
    model: str | None, tasks: tuple[str, ...], files: tuple[Path, ...], options: Mapping[str, Any]
) -> None:
    """Check the combination of options.

    Raises:
        UsageError: options conflict, or a required one is missing.
    """
    indices, judgements, other = options["indices"], options["judgements"], options["compare"]
    for flag, value in (("--index", indices), ("--judgements", judgements), ("--compare", other)):
        if value and tasks != ("retrieval",):
            raise UsageError(f"{flag} requires the task retrieval", "Use --task retrieval and no other task.")
    if not indices:
        if judgements is not None:
            raise UsageError("--judgements requires --index", "Add --index NAME, the index that holds the documents.")
        if model is None:
            raise UsageError("MODEL or --index is required", "Pass a model, or an index and its judgements.")
        return
    if files or (judgements is None) == (options["data"] is None):
        raise UsageError(
            "--index requires either --judgements FILE or --data FOLDER",
            "Pass judgements of the index's documents: a list, or the folder of a test collection.",
        )
    if other is not None:
        raise UsageError(
            "--compare cannot be combined with --index: an index holds the vectors of one model",
            "Leave --index out, or compare two indices: --index FIRST --index SECOND.",
        )
    if len(indices) > 2:
        raise UsageError(f"at most two indices can be compared, not {len(indices)}", "Use --index at most twice.")


Reports = tuple[list["EvaluationReport"], list["EvaluationReport"], tuple[str, str]]


def _evaluate_tasks(model: str, tasks: tuple[Any, ...], files: tuple[Path, ...], options: Mapping[str, Any]) -> Reports:
    """Evaluate the model and the one it is compared with; return the reports and names of both."""
    from es_sbert.evaluation.evaluated_models import close_model, open_model
    from es_sbert.evaluation.task_data import EvaluationTask, read_task_data

    limit, other = options["limit"], options["compare"]
    datasets = {
        task: read_task_data(EvaluationTask(task), options["data"], files, limit=limit, report=report)
        for task in dict.fromkeys(tasks)
    }
    running = shared.select_options(options, RunOptions.__annotations__)

    def evaluate_model(name: str) -> list[EvaluationReport]:
        opened = open_model(name, report=report, **running)
        try:
            return [
                evaluation.evaluate_model(opened, task, datasets[task], limit=limit, report=report, **running)
                for task in datasets
            ]
        finally:
            close_model(opened)

    return evaluate_model(model), [] if other is None else evaluate_model(other), (model, str(other))


def _evaluate_indices(model: str | None, options: Mapping[str, Any]) -> Reports:
    """Evaluate one or two indices by the same judgements."""
    from es_sbert.evaluation.index_retrieval import EvaluateIndexOptions, evaluate_index, read_collection

    indices, data = options["indices"], read_collection(options["judgements"] or options["data"], options["limit"])
    engine = shared.engine_settings(options)
    chosen = shared.select_options(options, EvaluateIndexOptions.__annotations__)
    reports = [evaluate_index(index, data, engine, model=model, report=report, **chosen) for index in indices]
    return reports[:1], reports[1:], (indices[0], indices[-1])
