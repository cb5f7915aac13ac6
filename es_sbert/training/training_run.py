"""Run a recipe: read and check all inputs, train each stage, export the model, write the model card."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

import yaml
from transformers.utils import logging as transformers_logging

from es_sbert.arguments import check_arguments, spell_out
from es_sbert.bundle.bundle import hash_file, is_encoder_bundle, open_encoder_bundle
from es_sbert.bundle.local_registry import try_register_model
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.errors import ModelNotFound, UsageError
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime.variant_candidates import default_exports
from es_sbert.settings import TrainOptions, no_report
from es_sbert.training.example_augmentation import augment_examples
from es_sbert.training.losses import objective_schema
from es_sbert.training.recipe import ModelSpec, Recipe, load_recipe
from es_sbert.training.run_folder import TRAINING_RECORD, RunFolder, hash_model, write_json
from es_sbert.training.training_errors import translate_disk_errors
from es_sbert.training.training_examples import StageData, read_stage
from es_sbert.training.training_stage import (
    RunSettings,
    StageResult,
    choose_training_device,
    choose_training_precision,
    has_native_bf16,
    train_stage,
)
from es_sbert.version import __version__

# Number of processes, as torchrun and accelerate set it, and launchers of MPI.
_PROCESSES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def refuse_several_processes() -> None:
    """Check that torchrun or a similar launcher has not started several processes: each would write the same folder.

    Raises:
        UsageError: several processes were started.
    """
    for name in _PROCESSES:
        count = os.environ.get(name, "1")
        if count.isdigit() and int(count) > 1:
            raise UsageError(
                f"es-sbert trains in one process, but torchrun or another launcher has started {count} ({name})",
                "Start it without the launcher. To use several GPUs, train with sentence-transformers: es-sbert reads "
                "the model folder that it saves.",
            )


@dataclass(frozen=True)
class TrainingResult:
    """A finished run.

    Usage:
        ```python
        result = train_model("my-recipe.yaml", "tuned")
        print(result.folder, result.precision)
        ```

    Attributes:
        folder: The trained model: an ONNX bundle, unless the recipe exports nothing.
        stages: Results of the stages that this call trained.
        fingerprint: Fingerprint of the exported model; None if nothing was exported.
        precision: Number formats of the training; None if an earlier call trained the model.
    """

    folder: Path
    stages: tuple[StageResult, ...]
    fingerprint: str | None
    precision: str | None = None


def read_stages(recipe: Recipe, data_folder: Path) -> list[StageData]:
    """Read and check every file that a run needs.

    Raises:
        SourceError: a file or a row is invalid; the message names file and line.
        RecipeInvalid: roles or names do not fit the objective.
    """
    return [
        read_stage(stage, data_folder, [objective_schema(stage.objective_of(data)) for data in stage.data])
        for stage in recipe.stages
    ]


def find_models(recipe: Recipe, *, all_needed: bool = True) -> dict[str, Path]:
    """Find the base model, the teachers and the models that mine negatives; hub ids are downloaded.

    Args:
        recipe: The recipe.
        all_needed: Whether a missing model is an error. A resumed run may no longer need some of them.

    Returns:
        Name in the recipe → folder, without missing models.

    Raises:
        ModelNotFound: a model is missing and `all_needed` is true.
    """
    names: set[str | None] = {recipe.model.base}
    for stage in recipe.stages:
        for data in stage.data:
            names.add(getattr(stage.objective_of(data), "teacher", None))
            names |= {data.hard_negatives.model} if data.hard_negatives else set()
    folders = {}
    for name in sorted(name for name in names if name is not None):
        try:
            folders[name] = resolve_model(name)
        except ModelNotFound:
            if all_needed:
                raise
    return folders


def _open_recipe(recipe: str | Path | Recipe, options: TrainOptions) -> tuple[Recipe, Path]:
    """Return a recipe with its changes, and the base of its relative paths."""
    folder, seed = options.get("data_folder"), options.get("seed")
    if isinstance(recipe, str | Path):
        path = Path(recipe)
        folder = folder or (path.parent if path.is_file() else None)
        recipe = load_recipe(str(recipe), options.get("overrides"))
    return recipe if seed is None else recipe.model_copy(update={"seed": seed}), Path(folder or "")


def check_recipe(recipe: str | Path | Recipe, **options: Unpack[TrainOptions]) -> dict[str, StageData]:
    """Check device and precision, find the models, read and check the data of every stage; write nothing.

    Args:
        recipe, options: As for `train_model`.

    Returns:
        Name of each stage → its data.

    Raises:
        EsSbertError: an input is missing or invalid.
    """
    recipe, data_folder = _open_recipe(recipe, options)
    device = choose_training_device(options.get("device", "auto"))
    choose_training_precision(recipe.precision, device, has_bf16=has_native_bf16())
    find_models(recipe)
    return dict(zip((stage.name for stage in recipe.stages), read_stages(recipe, data_folder), strict=True))


@check_arguments
@spell_out(TrainOptions)
def train_model(
    recipe: str | Path | Recipe,
    output: str | Path,
    *,
    register: bool = False,
    report: Callable[[str], None] = no_report,
    **options: Unpack[TrainOptions],
) -> TrainingResult:
    """Train a recipe and export the model to a checked ONNX bundle, as `es-sbert train` does. Needs the extra `train`.

    All inputs are read and checked before anything is written.

    Usage:
        ```python
        result = train_model("my-recipe.yaml", "tuned", overrides={"stages.0.epochs": "2"}, report=print)
        print(result.folder, result.fingerprint)
        ```

    Args:
        recipe: Path of a YAML file, name of a recipe that comes with es-sbert, or a recipe.
        output: Folder of the trained model; new or empty, except with `resume`.
        register: Register the model under the recipe's name, so that searches find it (`es-sbert model list`).
        report: Called with progress messages.
        options: See `TrainOptions`.

    Raises:
        RecipeInvalid: the recipe is missing or invalid.
        SourceError: the data is missing or invalid; the message names file and line.
        ModelError: the base model or a teacher cannot be opened.
        DeviceError: the device is not available.
        UsageError: `output` is not empty, several processes were started, or the extra `train` is missing.
        CheckpointInvalid: with `resume`: the run in `output` used a different recipe, data or models.
        TrainingError, OutputError: the run failed. Complete checkpoints are kept; `resume` continues from the last one.
    """
    refuse_several_processes()
    recipe, data_folder = _open_recipe(recipe, options)
    device = options.get("device", "auto")
    choose_training_device(device)  # fails early: reading data may take long
    stages = read_stages(recipe, data_folder)
    hashes = {path: hash_file(data_folder / path) for path in sorted({one.path for one in recipe.sources})}
    resume = options.get("resume", False)
    trained = run_with_data(recipe, stages, hashes, Path(output), device=device, resume=resume, report=report)
    if register and trained.fingerprint is not None:
        try_register_model(trained.folder, trained.fingerprint, name=recipe.name)
    return trained


def run_with_data(
    recipe: Recipe,
    stages: Sequence[StageData],
    data_hashes: dict[str, str],
    output: Path,
    *,
    device: str,
    resume: bool,
    report: Callable[[str], None],
) -> TrainingResult:
    """Train all stages and export the model. All inputs are checked before anything is written.

    Args:
        recipe: The recipe.
        stages: The data of each stage, read and checked.
        data_hashes: Path → SHA-256 of its content, so that a resumed run has the same data.
        output: Folder of the trained model; new or empty, except with `resume`.
        device: `auto`, `cpu` or `cuda`.
        resume: Resume an interrupted run from its last complete checkpoint.
        report: Called with progress messages.

    Raises:
        EsSbertError: the run failed. Complete checkpoints are kept; `resume` continues from the last one.
    """
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    torch_device = choose_training_device(device)
    models = find_models(recipe, all_needed=not resume)
    folder = RunFolder(output)
    # A resumed run keeps its number format, also on another GPU.
    recorded = folder.precision() if resume and recipe.precision == "auto" else None
    precision = choose_training_precision(recorded or recipe.precision, torch_device, has_bf16=has_native_bf16())
    run = RunSettings(recipe, folder, torch_device, precision, resume, report)
    model_hashes = {name: hash_model(path) for name, path in models.items()}
    with folder.lock(recipe, data_hashes, model_hashes, precision.products, resume=resume):
        if resume and folder.finished():
            run.report(f"the run in {output} has finished: there is nothing to resume")
            fingerprint = open_encoder_bundle(output).manifest.fingerprint if is_encoder_bundle(output) else None
            return TrainingResult(output, (), fingerprint)
        results = _train_stages(run, stages)
        fingerprint = _export(run, _training_record(run, data_hashes))
        folder.publish([stage.name for stage in recipe.stages])
    return TrainingResult(output, results, fingerprint, str(precision))


def _train_stages(run: RunSettings, stages: Sequence[StageData]) -> tuple[StageResult, ...]:
    """Train every stage that is not finished, each from the model of the stage before."""
    start, results = run.recipe.model, []
    for stage, data in zip(run.recipe.stages, stages, strict=True):
        folder = run.folder.stage(stage.name)
        if not (folder / "model").is_dir():
            sizes = ", ".join(f"{each.name} ({len(each):,})" for each in data.examples)
            run.report(f"Training {stage.name} on {run.device} in {run.precision}: {sizes}")
            augmented = augment_examples(stage, data, folder, run.device, run.report)
            results.append(train_stage(run, stage, augmented, start))
        start = ModelSpec(base=str(folder / "model"))
    return tuple(results)


def _training_record(run: RunSettings, data_hashes: dict[str, str]) -> dict[str, Any]:
    """Build the content of `training.json`: the recipe, hashes of the data, stage results, versions."""
    packages = {name: version(name) for name in ("torch", "transformers", "accelerate")}
    results = [run.folder.result(stage.name) for stage in run.recipe.stages]
    return {
        "recipe": run.recipe.model_dump(mode="json", exclude_defaults=True),
        "precision": str(run.precision),
        "data": data_hashes,
        "stages": [json.loads(result.read_text(encoding="utf-8")) for result in results],
        "versions": {"python": platform.python_version(), "es-sbert": __version__, **packages},
    }


def _export(run: RunSettings, record: dict[str, Any]) -> str | None:
    """Write the exported model, its training record and its card to the staging folder; return the fingerprint."""
    staging = run.folder.staging_folder
    shutil.rmtree(staging, ignore_errors=True)
    with translate_disk_errors(run.folder.output):
        fingerprint = _export_model(run)
        write_json(staging / TRAINING_RECORD, record)
        (staging / "README.md").write_text(model_card(run.recipe.name, record), encoding="utf-8")
    return fingerprint


def _export_model(run: RunSettings) -> str | None:
    """Export to ONNX, checked by the parity gate; return the fingerprint, or None if nothing was exported."""
    recipe, staging = run.recipe, run.folder.staging_folder
    export, trained = recipe.export, run.folder.stage(recipe.stages[-1].name) / "model"
    model = read_sentence_model(trained, recipe.name)
    variants = default_exports(model.architecture) if export.precisions is None else export.precisions
    if not variants:
        shutil.copytree(trained, staging)
        return None
    return export_bundle(model, staging, variants, reference="auto", on_progress=run.report).fingerprint


_ABOUT = {
    "library_name": "sentence-transformers",
    "pipeline_tag": "sentence-similarity",
    "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction"],
}


def model_card(name: str, record: Mapping[str, Any]) -> str:
    """Format a model card: the recipe and what came of it, without the logs of the stages.

    Args:
        name: The model's name.
        record: The training record: recipe, data, stages, versions.
    """
    stages = [{key: value for key, value in stage.items() if key != "course"} for stage in record["stages"]]
    sections = [f"---\n{_yaml(_ABOUT)}---", f"# {name}", record["recipe"].get("description", "")]
    sections.append(f"## Training\nTrained by `es-sbert train`:\n\n```yaml\n{_yaml({**record, 'stages': stages})}```")
    return "\n\n".join(filter(None, sections)) + "\n"


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text
