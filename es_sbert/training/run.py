"""A whole run: read and check everything, train stage by stage, export, write the card."""

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
import torch
from transformers.utils import logging as transformers_logging

from es_sbert.bundle.checkpoint import read_model
from es_sbert.bundle.cross_encoder import read_cross_encoder
from es_sbert.bundle.reranker import is_reranker, open_reranker
from es_sbert.bundle.store import is_bundle, open_bundle
from es_sbert.errors import DeviceError
from es_sbert.evaluation.card import TRAINING_RECORD, TrainingRecord, model_card
from es_sbert.exporters.export import export_bundle
from es_sbert.exporters.reranker import export_reranker
from es_sbert.training.data.dev import DevData
from es_sbert.training.dev import dev_name, dev_score, triplet_distance
from es_sbert.training.failures import disk_errors_explained
from es_sbert.training.inputs import find_models, gold_file, read_stages, read_test
from es_sbert.training.neighbours import with_neighbours
from es_sbert.training.open_task import open_task
from es_sbert.training.precision import TrainingPrecision, card_has_bf16, choose_precision
from es_sbert.training.recipe import Kind, ModelSpec, Recipe, Stage
from es_sbert.training.stage import StageData, StageResult, data_names, stage_model, train_stage
from es_sbert.training.teachers import taught
from es_sbert.training.workspace import Workspace, hash_model, hash_source, note

Report = Callable[[str], None]


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
class Trained:
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
    report: Report = lambda message: None,
) -> Trained:
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
    workspace = Workspace(output)
    # A run that goes on computes as it began, on another card too.
    wanted = (workspace.precision() if resume and recipe.precision == "auto" else None) or recipe.precision
    precision = choose_precision(wanted, place, has_bf16=card_has_bf16())
    hashes = _hashes(recipe, data_folder) if state.is_main_process else {}
    say: Report = report if state.is_main_process else lambda message: None
    with ExitStack() as held:
        if state.is_main_process:
            models = {name: hash_model(folder) for name, folder in folders.items()}
            held.enter_context(workspace.held(recipe, hashes, models, precision.products, resume=resume))
        state.wait_for_everyone()
        if resume and workspace.finished():
            say(f"{output} is finished: there is nothing to go on with")
            return Trained(output, (), _fingerprint(output))
        results = _train_stages(recipe, data, workspace, place, precision, resume=resume, report=say)
        fingerprint = test = None
        if state.is_main_process:
            if test_data is not None:
                test = _test_scores(recipe, data, test_data, workspace, state.device)
            summary = _summary(recipe, workspace, precision, hashes, test)
            fingerprint = _finish(
                recipe, workspace, data_folder, summary, keep_checkpoints=keep_checkpoints, report=say
            )
        state.wait_for_everyone()
    return Trained(output, results, fingerprint, test, str(precision))


def _train_stages(
    recipe: Recipe,
    data: Sequence[StageData],
    workspace: Workspace,
    device: Literal["cpu", "cuda"],
    precision: TrainingPrecision,
    *,
    resume: bool,
    report: Report,
) -> tuple[StageResult, ...]:
    """Train every stage that is not through yet, each from the model of the one before."""
    start, results = recipe.model, []
    for stage, read in zip(recipe.stages, data, strict=True):
        folder = workspace.stage(stage.name)
        if stage_model(folder) is None:
            report(f"Training {stage.name} on {device} in {precision}: {data_names(read.examples)}")
            with accelerate.PartialState().main_process_first():
                read = _prepared(stage, read, folder, device, report)
            result = train_stage(recipe, stage, start, read, workspace, device, precision, resume=resume, report=report)
            results.append(result)
        start = next_start(recipe.model, folder / "model")
    return tuple(results)


def _test_scores(
    recipe: Recipe, data: Sequence[StageData], test: DevData, workspace: Workspace, device: torch.device
) -> FinalScores:
    """Measure the model that the run started from and the trained one."""

    def score(start: ModelSpec, stage: Stage, read: StageData) -> float:
        task = open_task(start, stage, read.examples, read.objectives).to(device)
        return dev_score(task.measured(), test, triplet_distance(read.objectives))

    assert recipe.test is not None
    name = dev_name(recipe.test, "test")
    first, last = (recipe.stages[0], data[0]), (recipe.stages[-1], data[-1])
    trained = next_start(recipe.model, workspace.stage(last[0].name) / "model")
    start = score(recipe.model, *first) if recipe.model.kind is Kind.BI_ENCODER else None
    return FinalScores(name, start, score(trained, *last))


def _fingerprint(folder: Path) -> str | None:
    """Of an exported model; None where nothing was exported."""
    if is_bundle(folder):
        return open_bundle(folder).manifest.fingerprint
    return open_reranker(folder).manifest.fingerprint if is_reranker(folder) else None


def next_start(spec: ModelSpec, folder: Path) -> ModelSpec:
    """What the stage after one starts from: its model as it is, with LoRA anew where the recipe asks for it."""
    return ModelSpec(base=str(folder), kind=spec.kind, codes=spec.codes, lora=spec.lora)


def choose_training_device(name: str) -> Literal["cpu", "cuda"]:
    """What to train on.

    Raises:
        DeviceError: CUDA is asked for and torch cannot use it.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(
            f"training runs on cpu or cuda, not on {name!r}",
            "To choose a card, set CUDA_VISIBLE_DEVICES; for several, start with torchrun.",
        )
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "torch cannot use CUDA here", "Install torch for your CUDA version, or leave --device cuda out."
        )
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def _hashes(recipe: Recipe, data_folder: Path) -> dict[str, str]:
    paths = {data.path for stage in recipe.stages for data in stage.data}
    paths |= {measured.path for measured in (recipe.test, *(stage.dev for stage in recipe.stages)) if measured}
    return {path: hash_source(data_folder / path) for path in sorted(paths)}


def _prepared(stage: Stage, data: StageData, folder: Path, device: str, report: Report) -> StageData:
    """Examples as models make them: neighbours found, teachers' labels added. Kept in `folder` for a resumed run."""
    examples = []
    for number, (spec, read, objective) in enumerate(zip(stage.data, data.examples, data.objectives, strict=True)):
        near = with_neighbours(read, spec.neighbours, folder / f"neighbours-{number}.npy", device, report)
        examples.append(taught(near, objective, folder / f"teacher-{number}.npy", device, report))
    return StageData(tuple(examples), data.objectives, data.dev)


def _finish(
    recipe: Recipe,
    workspace: Workspace,
    data_folder: Path,
    summary: dict[str, Any],
    *,
    keep_checkpoints: bool,
    report: Report,
) -> str | None:
    """Export the last stage's model, note how it was trained, and move both to the output folder."""
    trained = workspace.stage(recipe.stages[-1].name) / "model"
    built = workspace.built
    shutil.rmtree(built, ignore_errors=True)
    with disk_errors_explained(workspace.output):
        fingerprint = _export(recipe, trained, built, data_folder, report)
        note(built / TRAINING_RECORD, summary)
        card = model_card(recipe.name, (), TrainingRecord.model_validate(summary))
        (built / "README.md").write_text(card, encoding="utf-8")
    workspace.finish(keep_checkpoints=keep_checkpoints, stages=[stage.name for stage in recipe.stages])
    return fingerprint


def _export(recipe: Recipe, trained: Path, built: Path, data_folder: Path, report: Report) -> str | None:
    """Write what the recipe exports to `built`, behind the parity gate; the fingerprint of what was exported."""
    precisions, kind = recipe.export.precisions, recipe.model.kind
    if not precisions or kind is Kind.POLY_ENCODER:
        shutil.copytree(trained, built)
        return None
    if kind is Kind.CROSS_ENCODER:
        return export_reranker(
            read_cross_encoder(trained, recipe.name), built, precisions, on_progress=report
        ).fingerprint
    model, gold = read_model(trained, recipe.name), gold_file(recipe, data_folder)
    return export_bundle(model, built, precisions, sts_file=gold, reference="auto", on_progress=report).fingerprint


def _summary(
    recipe: Recipe,
    workspace: Workspace,
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
