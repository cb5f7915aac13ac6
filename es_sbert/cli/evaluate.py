"""`es-sbert evaluate`: measure a model by the protocols of the Sentence-BERT paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli import options as shared
from es_sbert.cli.logs import log_format_option
from es_sbert.errors import UsageError, require_extra
from es_sbert.messages import log_message as report

if TYPE_CHECKING:
    from es_sbert.evaluation.task_data import EvaluationTask


TASKS = ("sts", "triplet", "argument", "transfer", "duplicates", "retrieval")


@cloup.command()
@click.argument("model", callback=shared.cut_model)
@option_group(
    "Options",
    shared.dimensions_option,
    click.option(
        "--task",
        "tasks",
        type=click.Choice(TASKS),
        multiple=True,
        required=True,
        help="Evaluation task; may be repeated.",
    ),
    click.option(
        "--data",
        type=shared.FILE_TYPE,
        metavar="FOLDER",
        help="Folder of all tasks (sts/, triplets/, …), or of the one task.",
    ),
    click.option(
        "--file",
        "files",
        type=shared.FILE_TYPE,
        multiple=True,
        metavar="FILE",
        help="Evaluate on this file instead of a folder; may be repeated.",
    ),
    click.option(
        "--columns",
        multiple=True,
        metavar="ROLE=COLUMN",
        help="Read COLUMN of the files as sentence1, score, … (the task's own name); may be repeated.",
    ),
    click.option(
        "--limit",
        type=click.IntRange(min=1),
        metavar="N",
        help="Use N examples of each file (N queries), always the same.",
    ),
)
@option_group(
    "Model",
    click.option(
        "--backend",
        type=click.Choice(["auto", "onnx", "torch"]),
        default="auto",
        help="auto: onnx, or torch for models without ONNX support.",
    ),
    shared.device_options,
)
@option_group(
    "Output",
    click.option("--json", "as_json", is_flag=True, help="One JSON object for each task instead of tables."),
    click.option(
        "--card",
        type=shared.OUTPUT_FILE_TYPE,
        metavar="FILE",
        help="Also write a Markdown model card with the results, and with recipe and data of a model that "
        "es-sbert trained.",
    ),
    log_format_option,
)
@option_group(
    "Index, for the task retrieval",
    click.option("--index", help="Search this index instead of memory. A missing index is created, loaded and kept."),
    shared.vector_field_option,
)
@shared.connection_options
def evaluate(
    model: str, tasks: tuple[str, ...], files: tuple[Path, ...], as_json: bool, card: Path | None, **options: Any
) -> None:
    """Evaluate MODEL by the protocols of the Sentence-BERT paper.

    MODEL is a sentence encoder (a folder, a bundle, a hub id or an installed name), or the folder of a
    cross-encoder or poly-encoder.

    \b
    Tasks:
      sts         Spearman's and Pearson's correlation with human scores
      triplet     is the positive closer than the negative?
      argument    similarity of arguments: untrained, in 10 folds, across topics
      transfer    SentEval: logistic regression on the vectors
      duplicates  average precision, best F1
      retrieval   nDCG@10, MRR@10, MAP, recall@100

    \b
    Examples:
      es-sbert evaluate all-MiniLM-L6-v2 --task sts --data data
      es-sbert evaluate ./my-model --task sts --file pairs.tsv --precision fp32
      es-sbert evaluate ./my-model --task sts --file pairs.csv --columns score=similarity
      es-sbert evaluate ./my-model --task sts --task triplet --data data --card README.md
      es-sbert evaluate ./my-model --task transfer --data data --json
      es-sbert evaluate all-MiniLM-L6-v2 --task retrieval --data data/retrieval/cisi --index cisi
    """
    require_extra("train", "ir_measures", "scipy", "sklearn", "yaml")
    from es_sbert import evaluation
    from es_sbert.evaluation.evaluated_models import close_model, open_model
    from es_sbert.evaluation.evaluation_report import model_card, read_training_record, text_table, write_card
    from es_sbert.evaluation.task_data import EvaluationTask
    from es_sbert.evaluation.task_files import read_task_data

    data, index, limit = options["data"], options["index"], options["limit"]
    if index is not None and tasks != (EvaluationTask.RETRIEVAL,):
        raise UsageError("--index is for the task retrieval alone", "Give --task retrieval and no other task.")
    unique_tasks = [EvaluationTask(task) for task in dict.fromkeys(tasks)]
    roles = _parse_columns(options["columns"], unique_tasks)
    datasets = {
        task: read_task_data(task, data, files, limit=limit, columns=roles, report=report) for task in unique_tasks
    }
    is_folder = Path(model).is_dir()
    training = read_training_record(Path(model)) if card is not None and is_folder else None
    engine = shared.engine_settings(options) if index is not None else None

    running = shared.select_options(options, ("backend", "device", "precision", "runtime"))
    measured = running | shared.select_options(options, ("limit", "index", "vector_field"))
    opened = open_model(model, threads=options["threads"], report=report, **running)
    reports = []
    try:
        for task in unique_tasks:
            result = evaluation.evaluate(opened, task, datasets[task], engine=engine, report=report, **measured)
            reports.append(result)
            click.echo(result.as_json().decode() if as_json else text_table(result))
    finally:
        close_model(opened)
    if card is not None:
        write_card(card, model_card(Path(model).resolve().name if is_folder else model, reports, training))
        report(f"Wrote {card}")


def _parse_columns(given: tuple[str, ...], tasks: list[EvaluationTask]) -> dict[str, str]:
    """Role → column."""
    from es_sbert.evaluation.task_data import TASKS

    roles = dict.fromkeys(role for task in tasks for role in TASKS[task].roles)
    columns: dict[str, str] = {}
    for one in given:
        role, equals, column = one.partition("=")
        if not equals or not column:
            raise UsageError(f"--columns {one} is not of the form ROLE=COLUMN", "Write --columns score=similarity.")
        if role not in roles:
            raise UsageError(
                f"the data of {' and '.join(tasks)} has no column {role} that could be named",
                f"Name one of {', '.join(roles)}." if roles else "Rename the columns as BEIR has them.",
            )
        if columns.setdefault(role, column) != column:
            raise UsageError(
                f"--columns names {columns[role]} and {column} for {role}", "Name one column for each role."
            )
    return columns
