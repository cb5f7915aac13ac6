"""`es-sbert train`: fine-tune a sentence encoder with a recipe."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup
from cloup import option_group

from es_sbert.cli.options import FILE_TYPE, json_option, setting_option, training_options
from es_sbert.cli.output import align_columns, print_message
from es_sbert.errors import UsageError, require_extra
from es_sbert.messages import pluralize
from es_sbert.settings import TrainOptions

if TYPE_CHECKING:
    from es_sbert.training.training_run import TrainingResult


def _list_recipes(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value:
        return
    require_extra("train", "yaml")
    from es_sbert.training.recipe import shipped_recipes

    for line in align_columns(list(shipped_recipes().items())):
        click.echo(line)
    context.exit()


@cloup.command()
@click.argument("recipe")
@option_group(
    "Options",
    click.option(
        "-o",
        "--output",
        type=FILE_TYPE,
        metavar="FOLDER",
        help="Folder of the trained model; new or empty, except with --resume.",
    ),
    setting_option(TrainOptions, "data_folder --data $ES_SBERT_DATA FOLDER"),
    setting_option(
        TrainOptions,
        "overrides --set KEY=VALUE",
        multiple=True,
        help="Change one setting, such as stages.0.batch=32. Repeatable.",
    ),
    setting_option(TrainOptions, "seed"),
    training_options,
    click.option("--check", is_flag=True, help="Only check the recipe and the data, and find the models."),
    json_option("Print the result as JSON on stdout."),
    click.option(
        "--list",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_list_recipes,
        help="Show the recipes that come with es-sbert.",
    ),
)
def train(recipe: str, output: Path | None, check: bool, as_json: bool, **options: Any) -> None:
    """Fine-tune a sentence encoder with RECIPE and export it to a checked ONNX bundle.

    RECIPE is a YAML file or the name of a recipe that comes with es-sbert (--list). All data is read
    and checked before training starts. The best checkpoint on the dev set
    becomes the model; FOLDER is then a bundle that `es-sbert ingest --model FOLDER` takes, with a log in
    FOLDER/training. The model is registered under the recipe's name (es-sbert model list), so that searches find it
    without --model.

    \b
    Examples:
      es-sbert train --list
      es-sbert train stsb-regression --data DATA -o tuned
      es-sbert train my-recipe.yaml -o tuned --set stages.0.epochs=2 --seed 7
      es-sbert train my-recipe.yaml -o tuned --resume
    """
    from es_sbert import training

    training.require_training()
    from es_sbert.training.recipe import parse_overrides

    options["overrides"] = parse_overrides(options["overrides"])
    if check:
        from es_sbert.training.training_run import check_recipe

        for name, data in check_recipe(recipe, **options).items():
            click.echo(f"{name}: {pluralize(sum(map(len, data.examples)), 'example')}, {len(data.dev or ()):,} for dev")
        return
    if output is None:
        raise UsageError("an output folder is required", "Set a folder for the trained model: -o FOLDER")
    began = time.monotonic()
    trained = training.train_model(recipe, output, register=True, report=print_message, **options)
    if as_json:
        click.echo(json.dumps(_train_result_json(trained), indent=2))
    else:
        click.echo(train_summary(trained, time.monotonic() - began))


def _train_result_json(trained: TrainingResult) -> dict[str, Any]:
    stages = [{key: value for key, value in asdict(stage).items() if key != "course"} for stage in trained.stages]
    return {
        "folder": str(trained.folder),
        "fingerprint": trained.fingerprint,
        "precision": trained.precision,
        "stages": stages,
    }


def train_summary(trained: TrainingResult, seconds: float) -> str:
    """Format a summary of a run: one line for each stage, and the folder."""
    lines = []
    for stage in trained.stages:
        best = ""
        if stage.dev_name is not None and stage.best_dev is not None:
            best = f", {_score_gain(stage.dev_name, stage.start_dev, stage.best_dev)} at step {stage.best_step}"
        lines.append(
            f"{stage.name}: {pluralize(stage.steps, 'step')}, {stage.examples_per_second:,.0f} examples/s{best}"
        )
    fingerprint = f" (fingerprint {trained.fingerprint})" if trained.fingerprint else ""
    lines.append(f"→ {trained.folder}{fingerprint}, {seconds:,.0f} s")
    return "\n".join(lines)


def _score_gain(name: str, start: float | None, trained: float) -> str:
    """Format a score and its gain: `dev accuracy × 100: 81.20 → 86.10 (+4.90)`."""
    from es_sbert.evaluation.significance import shown_difference

    if start is None:
        return f"{name}: {trained:.2f}"
    gain = shown_difference(trained, start)
    verdict = f"{gain:+.2f}" if gain > 0 else "no better than the model it started from"
    return f"{name}: {start:.2f} → {trained:.2f} ({verdict})"
