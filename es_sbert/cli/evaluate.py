"""`es-sbert evaluate`: measure a model by the protocols of the Sentence-BERT paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.logs import log_format_option
from es_sbert.cli.options import connection_options, device_options, engine_settings, vector_field_option
from es_sbert.errors import UsageError
from es_sbert.messages import log_message as report
from es_sbert.messages import pluralize

if TYPE_CHECKING:
    from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder
    from es_sbert.evaluation.evaluation_report import EvaluationReport
    from es_sbert.evaluation.model_card import TrainingRecord
    from es_sbert.evaluation.task_data import EvaluationTask, TaskData


TASKS = ("sts", "triplet", "argument", "transfer", "duplicates", "retrieval")


@cloup.command()
@click.argument("model")
@option_group(
    "Options",
    click.option(
        "--task",
        "tasks",
        type=click.Choice(TASKS),
        multiple=True,
        required=True,
        help="What to measure; may be repeated.",
    ),
    click.option(
        "--data",
        type=click.Path(path_type=Path),
        metavar="FOLDER",
        help="Folder of all tasks (sts/, triplets/, …), or of the one task.",
    ),
    click.option(
        "--file",
        "files",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE",
        help="Measure this file instead of a folder; may be repeated.",
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
        help="A quick look: N examples of each file (N queries), always the same.",
    ),
)
@option_group(
    "Model",
    click.option(
        "--backend",
        type=click.Choice(["auto", "onnx", "torch"]),
        default="auto",
        show_default=True,
        help="auto: onnx, and torch for what onnx does not serve.",
    ),
    device_options,
)
@option_group(
    "Output",
    click.option("--json", "as_json", is_flag=True, help="One JSON object a task in place of tables."),
    click.option(
        "--card",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Also write a Markdown model card with the results, and with recipe and data of a model that "
        "es-sbert trained.",
    ),
    log_format_option,
)
@option_group(
    "Index, for the task retrieval",
    click.option(
        "--index",
        help="Search this index instead of memory. One that does not exist is loaded with the documents, and kept.",
    ),
    vector_field_option,
)
@connection_options
def evaluate(
    model: str,
    tasks: tuple[str, ...],
    data: Path | None,
    files: tuple[Path, ...],
    columns: tuple[str, ...],
    limit: int | None,
    backend: Any,
    device: str,
    precision: str,
    threads: int | None,
    as_json: bool,
    card: Path | None,
    index: str | None,
    vector_field: str,
    **connection: Any,
) -> None:
    """Measure MODEL by the protocols of the Sentence-BERT paper.

    MODEL is whatever ingest takes (a folder, a bundle, a hub id, an installed name), the folder of a cross-
    or poly-encoder, or a baseline, for example glove:FILE, tfidf, average:MODEL or cls:MODEL.

    \b
    Tasks:
      sts         Spearman's and Pearson's correlation with people's scores
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
      es-sbert evaluate glove:glove.6B.300d.txt --task transfer --data data --json
      es-sbert evaluate all-MiniLM-L6-v2 --task retrieval --data data/retrieval/cisi --index cisi
    """
    from es_sbert.errors import require_extra

    require_extra("train", "ir_measures", "scipy", "sklearn", "yaml")
    from es_sbert.evaluation.evaluated_models import close_model, open_model
    from es_sbert.evaluation.evaluation_report import text_table
    from es_sbert.evaluation.model_card import model_card, write_card
    from es_sbert.evaluation.task_data import EvaluationTask

    if index is not None and tasks != (EvaluationTask.RETRIEVAL,):
        raise UsageError("--index is for the task retrieval alone", "Give --task retrieval and no other task.")
    chosen = [EvaluationTask(task) for task in dict.fromkeys(tasks)]
    names = _parse_columns(columns, chosen)
    wanted = [(task, _read_data(task, data, files, limit, names)) for task in chosen]
    training = None if card is None else _read_training(model)

    settings = {"backend": backend, "device": device, "precision": precision, "limit": limit}
    opened = open_model(model, backend=backend, device=device, precision=precision, threads=threads, report=report)
    try:
        reports = []
        for task, sets in wanted:
            if index is None:
                from es_sbert.evaluation.task_runner import run_task

                found = run_task(opened, task, sets, settings=settings, progress=report)
            else:
                found = _evaluate_with_index(
                    opened, sets, index, vector_field, settings | {"index": index}, connection, report
                )
            reports.append(found)
            click.echo(found.as_json().decode() if as_json else text_table(found))
    finally:
        close_model(opened)
    if card is not None:
        write_card(card, model_card(Path(model).resolve().name if Path(model).is_dir() else model, reports, training))
        report(f"Wrote {card}")


def _parse_columns(given: tuple[str, ...], tasks: list[EvaluationTask]) -> dict[str, str]:
    """Role → column."""
    from es_sbert.evaluation.task_files import ROLES

    roles = dict.fromkeys(role for task in tasks for role in ROLES[task])
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


def _read_data(
    task: EvaluationTask, folder: Path | None, files: tuple[Path, ...], limit: int | None, columns: dict[str, str]
) -> list[TaskData]:
    from es_sbert.evaluation.task_data import RetrievalCollection
    from es_sbert.evaluation.task_files import ROLES, read_files, read_folder

    if (folder is None) == (not files):
        raise UsageError(
            "give either a folder of data or files", f"Name one of them: --task {task} --data FOLDER, or --file FILE."
        )
    own = {role: column for role, column in columns.items() if role in ROLES[task]}
    if folder is None:
        return read_files(task, files, limit=limit, columns=own)
    found = read_folder(task, folder, limit=limit, columns=own)
    for each in found:
        if isinstance(each, RetrievalCollection) and each.empty:
            some = ", ".join(each.empty[:5]) + (", …" if len(each.empty) > 5 else "")
            documents = pluralize(len(each.empty), "document")
            report(f"Warning: {documents} of {each.name} without title and text count as not found: {some}")
    return found


def _read_training(model: str) -> TrainingRecord | None:
    """How the model was trained, where its folder says so."""
    from es_sbert.evaluation.model_card import read_training_record

    return read_training_record(Path(model)) if Path(model).is_dir() else None


def _evaluate_with_index(
    model: SentenceEmbedder | PairScorer,
    sets: list[TaskData],
    index: str,
    vector_field: str,
    settings: dict[str, Any],
    connection: dict[str, Any],
    report: Callable[[str], None],
) -> EvaluationReport:
    from es_sbert.evaluation.index_retrieval import evaluate_index
    from es_sbert.evaluation.task_data import RetrievalCollection

    if len(sets) != 1 or not isinstance(sets[0], RetrievalCollection):
        names = ", ".join(each.name for each in sets)
        raise UsageError(
            f"one index holds one collection, and there are {len(sets)}: {names}",
            "Name the folder of one: --data FOLDER/retrieval/NAME.",
        )
    return evaluate_index(
        model,
        sets[0],
        index,
        engine_settings(**connection),
        vector_field=vector_field,
        settings=settings,
        progress=report,
    )
