"""Fine-tune sentence encoders with PyTorch (extra `train`): from a recipe to a checked ONNX bundle.

`train` is the entry point. recipe.py reads a recipe, training_run.py runs it, training_stage.py trains one stage,
trainer.py extends transformers' Trainer, and bi_encoder_task.py and pair_tasks.py compute the loss of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from es_sbert.errors import require_extra

if TYPE_CHECKING:
    from es_sbert.config import EngineSettings
    from es_sbert.training.recipe import Recipe
    from es_sbert.training.training_run import TrainingResult


def train(
    recipe: str | Path | Recipe,
    output: Path,
    *,
    data_folder: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    device: str = "auto",
    resume: bool = False,
    keep_checkpoints: bool = False,
    report: Callable[[str], None] = lambda message: None,
    engine: EngineSettings | None = None,
) -> TrainingResult:
    """Train a recipe and export the model to a checked ONNX bundle. Needs the extra `train`.

    All inputs are read and checked before anything is written. The trained model is not registered under a name;
    `es-sbert train` does that too.

    Args:
        recipe: Path of a YAML file, name of a recipe that comes with es-sbert, or a recipe.
        output: Folder of the trained model; new or empty, except with `resume`.
        data_folder: Base of relative paths in the recipe; the folder of the YAML file by default.
        overrides: Dotted path of a setting → value in YAML, such as `stages.0.batch` → `32`; for a recipe that is read.
        device: `auto`, `cpu` or `cuda`; torchrun starts one process for each GPU.
        resume: Resume an interrupted run from its last complete checkpoint.
        keep_checkpoints: Keep the checkpoints and the stages' models in `output/training`.
        report: Called with progress messages.
        engine: Where the recipe's indices are; None takes the settings of the environment.

    Raises:
        RecipeInvalid: the recipe is missing or invalid.
        SourceError: the data is missing or invalid; with file and line.
        ModelError: the base model or a teacher cannot be opened.
        DeviceError: the device is not available.
        UsageError: `output` is not empty, or the extra `train` is missing.
        CheckpointInvalid: `resume`, and the run in `output` used another recipe, other data or other models.
        TrainingError, OutputError: the run failed. Complete checkpoints are kept; `resume` continues from the last one.
    """
    require_extra("train", "torch", "transformers", "accelerate", "yaml", "scipy", "sklearn", "matplotlib")
    from es_sbert.training.recipe import load_recipe
    from es_sbert.training.training_run import run_recipe

    if isinstance(recipe, str | Path):
        path = Path(recipe)
        data_folder = data_folder or (path.parent if path.is_file() else None)
        recipe = load_recipe(str(recipe), overrides)
    data_folder = data_folder or Path()
    return run_recipe(
        recipe,
        data_folder,
        output,
        device=device,
        resume=resume,
        keep_checkpoints=keep_checkpoints,
        report=report,
        engine=engine,
    )


__all__ = ["train"]
