"""Run a recipe: read and check all inputs, train each stage, export the model, write the model card."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import accelerate
import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from es_sbert.bundle.bundle import is_encoder_bundle, is_reranker_bundle, open_encoder_bundle, open_reranker_bundle
from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.errors import ModelNotFound, RecipeInvalid, SourceError
from es_sbert.evaluation.evaluation_report import TRAINING_RECORD, TrainingRecord, model_card
from es_sbert.exporters.export import export_bundle, export_reranker
from es_sbert.exporters.parity import read_gold_pairs
from es_sbert.training.augmentation import add_teacher_labels, mine_neighbour_pairs
from es_sbert.training.data.examples import DevData, Examples, read_dev, read_examples
from es_sbert.training.objectives.losses import objective_schema
from es_sbert.training.objectives.settings import MarginDistillationSpec
from es_sbert.training.open_task import open_task
from es_sbert.training.recipe import ModelKind, ModelSpec, Recipe, StageSpec
from es_sbert.training.run_folder import RunFolder, hash_model, hash_source, write_json
from es_sbert.training.trainer import dev_name, dev_score, triplet_distance
from es_sbert.training.training_device import (
    TrainingPrecision,
    choose_training_device,
    choose_training_precision,
    has_native_bf16,
)
from es_sbert.training.training_errors import translate_disk_errors
from es_sbert.training.training_stage import StageData, StageResult, describe_data, finished_stage_model, train_stage


def read_stages(recipe: Recipe, data_folder: Path) -> list[StageData]:
    """Read and check every file that a run will need, the gold pairs of its export too.

    Raises:
        SourceError: a file or a row is bad; with file and line.
        RecipeInvalid: roles or names that do not fit the objective.
    """
    if sts := gold_file(recipe, data_folder):
        read_gold_pairs(sts)  # the export reads them again: after hours of training it is late to find them missing
    return [_read_stage(stage, data_folder) for stage in recipe.stages]


def read_test(recipe: Recipe, data_folder: Path) -> DevData | None:
    """Read and check the recipe's test set, if it has one.

    Raises:
        SourceError, RecipeInvalid: as for dev sets.
    """
    return read_dev(recipe.test, data_folder) if recipe.test else None


def find_models(recipe: Recipe, *, all_needed: bool = True) -> dict[str, Path]:
    """The models that a run starts from, or learns from; hub ids are downloaded.

    Args:
        recipe: The run's recipe.
        all_needed: Whether each must be there. A run that goes on may need none of them any more.

    Returns:
        Name in the recipe → folder; those that are not there are left out.

    Raises:
        ModelNotFound: one is not to be found, and all are needed.
    """
    stated = [(stage.objective_of(data), data.neighbours) for stage in recipe.stages for data in stage.data]
    teachers = {getattr(objective, "teacher", None) for objective, _ in stated}
    finders = {neighbours.model for _, neighbours in stated if neighbours is not None}
    folders = {}
    for name in sorted({recipe.model.base} | finders | {name for name in teachers if name is not None}):
        try:
            folders[name] = resolve_model(name)
        except ModelNotFound:
            if all_needed:
                raise
    return folders


def gold_file(recipe: Recipe, data_folder: Path) -> Path | None:
    """The gold pairs that the parity gate of the export measures by, where the recipe names any."""
    return data_folder / recipe.export.sts if recipe.export.sts else None


def _read_stage(stage: StageSpec, data_folder: Path) -> StageData:
    """Read and check all data of a stage.

    Raises:
        SourceError: a file or a row is bad; with file and line.
        RecipeInvalid: roles or names that do not fit the objective.
    """
    objectives = tuple(map(stage.objective_of, stage.data))
    examples = [
        read_examples(data, objective_schema(objective), data_folder)
        for data, objective in zip(stage.data, objectives, strict=True)
    ]
    names = [each.name for each in examples]
    if len(set(names)) != len(names):
        raise RecipeInvalid(
            f"stage {stage.name}: data sets need different names, not {', '.join(names)}", "Give each a name."
        )
    for objective in dict.fromkeys(objectives):
        if not isinstance(objective, MarginDistillationSpec):  # one margin for all is an aim like any other
            _check_labels([each for each, its in zip(examples, objectives, strict=True) if its == objective])
    return StageData(tuple(examples), objectives, read_dev(stage.dev, data_folder) if stage.dev else None)


def _check_labels(examples: Sequence[Examples]) -> None:
    """Refuse labels that are all the same: the best answer to them is one that does not look at the texts.

    Args:
        examples: Data sets of one objective.

    Raises:
        SourceError: there is nothing to tell apart.
    """
    labels = [each.labels for each in examples if each.labels is not None]
    found = np.unique(np.concatenate(labels)) if labels else None
    if found is not None and len(found) == 1:
        raise SourceError(
            f"all labels of {', '.join(str(each.path) for each in examples)} are the same: there is nothing to learn",
            "Add examples with other labels (a larger limit); for pairs that all belong together take the objective "
            "in-batch.",
        )


ReportProgress = Callable[[str], None]


@dataclass(frozen=True)
class FinalScores:
    """What a run has gained on its test set.

    Attributes:
        name: What the score is.
        start: Of the model that the run started from; None for cross- and poly-encoders, whose heads are new then.
        trained: Of the result.
    """

    name: str
    start: float | None
    trained: float


@dataclass(frozen=True)
class TrainingResult:
    """A finished run.

    Attributes:
        folder: The trained model: an ONNX bundle, unless the recipe exports nothing.
        stages: How each stage that was trained by this call went.
        test: Scores on the recipe's test set; None without one, or where an earlier call has trained the model.
        fingerprint: Of the exported model; None where nothing was exported.
        precision: In which number formats it was trained; None where an earlier call has trained the model.
    """

    folder: Path
    stages: tuple[StageResult, ...]
    fingerprint: str | None
    test: FinalScores | None = None
    precision: str | None = None


def train(
    recipe: Recipe,
    output: Path,
    *,
    data_folder: Path,
    device: str = "auto",
    resume: bool = False,
    keep_checkpoints: bool = False,
    report: ReportProgress = lambda message: None,
) -> TrainingResult:
    """Train a recipe and export the result.

    Nothing is written before every file of every stage has been read and checked, and every model was found.

    Args:
        recipe: What to run.
        output: Folder of the trained model; new or empty, except with `resume`.
        data_folder: What relative paths of the recipe count from.
        device: `auto`, `cpu` or `cuda`; torchrun starts one process a card.
        resume: Go on with a run that ended early, from its last whole checkpoint.
        keep_checkpoints: Leave checkpoints and the stages' models in `output/training`.
        report: Told what is being done, a line at a time.

    Raises:
        EsSbertError: see the tree; after a failure, what was written whole stays, and `resume` goes on from it.
    """
    place = choose_training_device(device)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    state = accelerate.PartialState(cpu=place == "cpu")
    data, test_data = read_stages(recipe, data_folder), read_test(recipe, data_folder)
    folders = find_models(recipe, all_needed=not resume)
    workspace = RunFolder(output)
    # A run that goes on computes as it began, on another card too.
    wanted = (workspace.precision() if resume and recipe.precision == "auto" else None) or recipe.precision
    precision = choose_training_precision(wanted, place, has_bf16=has_native_bf16())
    hashes = _hash_data(recipe, data_folder) if state.is_main_process else {}
    say: ReportProgress = report if state.is_main_process else lambda message: None
    with ExitStack() as held:
        if state.is_main_process:
            models = {name: hash_model(folder) for name, folder in folders.items()}
            held.enter_context(workspace.held(recipe, hashes, models, precision.products, resume=resume))
        state.wait_for_everyone()
        if resume and workspace.finished():
            say(f"{output} is finished: there is nothing to go on with")
            return TrainingResult(output, (), _exported_fingerprint(output))
        results = _train_stages(recipe, data, workspace, place, precision, resume=resume, report=say)
        fingerprint = test = None
        if state.is_main_process:
            if test_data is not None:
                test = _measure_test_set(recipe, data, test_data, workspace, state.device)
            summary = _training_record(recipe, workspace, precision, hashes, test)
            fingerprint = _finish_run(
                recipe, workspace, data_folder, summary, keep_checkpoints=keep_checkpoints, report=say
            )
        state.wait_for_everyone()
    return TrainingResult(output, results, fingerprint, test, str(precision))


def _train_stages(
    recipe: Recipe,
    data: Sequence[StageData],
    workspace: RunFolder,
    device: Literal["cpu", "cuda"],
    precision: TrainingPrecision,
    *,
    resume: bool,
    report: ReportProgress,
) -> tuple[StageResult, ...]:
    """Train every stage that is not through yet, each from the model of the one before."""
    start, results = recipe.model, []
    for stage, read in zip(recipe.stages, data, strict=True):
        folder = workspace.stage(stage.name)
        if finished_stage_model(folder) is None:
            report(f"Training {stage.name} on {device} in {precision}: {describe_data(read.examples)}")
            with accelerate.PartialState().main_process_first():
                read = _augment_examples(stage, read, folder, device, report)
            result = train_stage(recipe, stage, start, read, workspace, device, precision, resume=resume, report=report)
            results.append(result)
        start = next_model_spec(recipe.model, folder / "model")
    return tuple(results)


def _measure_test_set(
    recipe: Recipe, data: Sequence[StageData], test: DevData, workspace: RunFolder, device: torch.device
) -> FinalScores:
    """Measure the model that the run started from and the trained one."""

    def score(start: ModelSpec, stage: StageSpec, read: StageData) -> float:
        task = open_task(start, stage, read.examples, read.objectives).to(device)
        return dev_score(task.measured(), test, triplet_distance(read.objectives))

    assert recipe.test is not None
    name = dev_name(recipe.test, "test")
    first, last = (recipe.stages[0], data[0]), (recipe.stages[-1], data[-1])
    trained = next_model_spec(recipe.model, workspace.stage(last[0].name) / "model")
    start = score(recipe.model, *first) if recipe.model.kind is ModelKind.BI_ENCODER else None
    return FinalScores(name, start, score(trained, *last))


def _exported_fingerprint(folder: Path) -> str | None:
    """Of an exported model; None where nothing was exported."""
    if is_encoder_bundle(folder):
        return open_encoder_bundle(folder).manifest.fingerprint
    return open_reranker_bundle(folder).manifest.fingerprint if is_reranker_bundle(folder) else None


def next_model_spec(spec: ModelSpec, folder: Path) -> ModelSpec:
    """What the stage after one starts from: its model as it is, with LoRA anew where the recipe asks for it."""
    return ModelSpec(base=str(folder), kind=spec.kind, codes=spec.codes, lora=spec.lora)


def _hash_data(recipe: Recipe, data_folder: Path) -> dict[str, str]:
    paths = {data.path for stage in recipe.stages for data in stage.data}
    paths |= {measured.path for measured in (recipe.test, *(stage.dev for stage in recipe.stages)) if measured}
    return {path: hash_source(data_folder / path) for path in sorted(paths)}


def _augment_examples(
    stage: StageSpec, data: StageData, folder: Path, device: str, report: ReportProgress
) -> StageData:
    """Examples as models make them: neighbours found, teachers' labels added. Kept in `folder` for a resumed run."""
    examples = []
    for number, (spec, read, objective) in enumerate(zip(stage.data, data.examples, data.objectives, strict=True)):
        near = mine_neighbour_pairs(read, spec.neighbours, folder / f"neighbours-{number}.npy", device, report)
        examples.append(add_teacher_labels(near, objective, folder / f"teacher-{number}.npy", device, report))
    return StageData(tuple(examples), data.objectives, data.dev)


def _finish_run(
    recipe: Recipe,
    workspace: RunFolder,
    data_folder: Path,
    summary: dict[str, Any],
    *,
    keep_checkpoints: bool,
    report: ReportProgress,
) -> str | None:
    """Export the last stage's model, note how it was trained, and move both to the output folder."""
    trained = workspace.stage(recipe.stages[-1].name) / "model"
    built = workspace.built
    shutil.rmtree(built, ignore_errors=True)
    with translate_disk_errors(workspace.output):
        fingerprint = _export_model(recipe, trained, built, data_folder, report)
        write_json(built / TRAINING_RECORD, summary)
        card = model_card(recipe.name, (), TrainingRecord.model_validate(summary))
        (built / "README.md").write_text(card, encoding="utf-8")
    workspace.finish(keep_checkpoints=keep_checkpoints, stages=[stage.name for stage in recipe.stages])
    return fingerprint


def _export_model(recipe: Recipe, trained: Path, built: Path, data_folder: Path, report: ReportProgress) -> str | None:
    """Write what the recipe exports to `built`, behind the parity gate; the fingerprint of what was exported."""
    precisions, kind = recipe.export.precisions, recipe.model.kind
    if not precisions or kind is ModelKind.POLY_ENCODER:
        shutil.copytree(trained, built)
        return None
    if kind is ModelKind.CROSS_ENCODER:
        return export_reranker(
            read_cross_encoder(trained, recipe.name), built, precisions, on_progress=report
        ).fingerprint
    model, gold = read_sentence_model(trained, recipe.name), gold_file(recipe, data_folder)
    return export_bundle(model, built, precisions, sts_file=gold, reference="auto", on_progress=report).fingerprint


def _training_record(
    recipe: Recipe,
    workspace: RunFolder,
    precision: TrainingPrecision,
    hashes: dict[str, str],
    test: FinalScores | None,
) -> dict[str, Any]:
    """What the model card says about the training: recipe, data with hashes, course and versions."""
    results = []
    for stage in recipe.stages:
        results.append(json.loads(workspace.result(stage.name).read_text(encoding="utf-8")))
    packages = ("es-sbert", "torch", "transformers", "accelerate")
    return {
        "recipe": recipe.model_dump(mode="json", exclude_defaults=True),
        "precision": str(precision),
        "data": hashes,
        "stages": results,
        "test": None if test is None else asdict(test),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }
