"""Fine-tune and distill sentence encoders with PyTorch (extra `train`): from a recipe to a checked ONNX bundle.

`train` and `distill` are the entry points. recipe.py reads a recipe, distillation.py makes one, training_run.py runs
it, training_stage.py trains one stage, trainer.py extends transformers' Trainer, and bi_encoder_task.py and
pair_tasks.py compute the loss of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from es_sbert.errors import require_extra

if TYPE_CHECKING:
    from es_sbert.config import EngineSettings
    from es_sbert.training.distillation import Distillation
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
        overrides: Dotted path of a setting → value in YAML, such as `stages.0.batch` → `32`; ignored for a `Recipe`.
        device: `auto`, `cpu` or `cuda`; torchrun starts one process for each GPU.
        resume: Resume an interrupted run from its last complete checkpoint.
        keep_checkpoints: Keep the checkpoints and the stages' models in `output/training`.
        report: Called with progress messages.
        engine: The engine of the recipe's indices; None uses the settings of the environment.

    Raises:
        RecipeInvalid: the recipe is missing or invalid.
        SourceError: the data is missing or invalid; the message names file and line.
        ModelError: the base model or a teacher cannot be opened.
        DeviceError: the device is not available.
        UsageError: `output` is not empty, or the extra `train` is missing.
        CheckpointInvalid: with `resume`: the run in `output` used a different recipe, data or models.
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


def distill(
    teacher: str,
    output: Path,
    texts: Sequence[str] = (),
    *,
    layers: int | None = None,
    base: str | None = None,
    prompt: Literal["query", "document"] | None = None,
    name: str | None = None,
    sts: Path | None = None,
    epochs: float | None = None,
    batch: int | None = None,
    learning_rate: float | None = None,
    seed: int = 42,
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
    device: str = "auto",
    resume: bool = False,
    keep_checkpoints: bool = False,
    report: Callable[[str], None] = lambda message: None,
) -> Distillation:
    """Distill a sentence encoder into a smaller or static student, and export it to a checked ONNX bundle.

    The student's vectors are in the space of the teacher: they have the same length, and are trained toward the
    teacher's vectors of the texts. A tenth of the texts, at most 1,000, is held out to measure that. Without texts, a
    static student is exported untrained. The student is not registered under a name; `es-sbert distill` does that too.
    Needs the extra `train`.

    Args:
        teacher: Folder, hub id, installed or registered name of a sentence encoder.
        output: Folder of the student; new or empty, except with `resume`.
        texts: Texts without labels, like those that will be embedded; repeated ones count once.
        layers: Number of layers to keep of the teacher or of `base`, evenly spaced. None keeps all layers of `base`;
            without `base`, None makes a static model, whose vector of a text is the mean of its token vectors.
        base: Folder, hub id or name of the model that the student starts from, instead of the teacher. A Dense layer
            maps its vectors into the teacher's space.
        prompt: The teacher's prompt for embedding the texts. By default, a static student is trained with the document
            prompt, and a student with layers with both prompts in turn, if they differ.
        name: Name of the student; by default the name of its folder.
        sts: File with the columns sentence1, sentence2 and score: student and teacher are measured on it.
        epochs, batch, learning_rate: Settings of the training; see `es_sbert.training.distillation.Student`.
        seed: Seed of the order of the texts and of the choice of held-out texts.
        precision: Number format of the transformer's matrix products in training.
        device: `auto`, `cpu` or `cuda`.
        resume: Resume an interrupted run, with the same arguments.
        keep_checkpoints: Keep checkpoints and the teacher's vectors in `output/training`.
        report: Called with progress messages.

    Raises:
        ModelError: the teacher cannot be opened, or does not support such a student.
        UsageError: the model does not have more layers than `layers`, a student with layers has no texts, `output` is
            not empty, torchrun has started several processes, or the extra `train` is missing.
        SourceError: there are too few texts, or the STS file is invalid.
        CheckpointInvalid: with `resume`: the run in `output` used different texts, settings or models.
        DeviceError: the device is not available.
        TrainingError, OutputError: the run failed. Complete checkpoints are kept; `resume` continues from the last one.
    """
    require_extra("train", "torch", "transformers", "accelerate", "yaml", "scipy", "sklearn", "matplotlib")
    from es_sbert.training.distillation import Student, distill_model

    student = Student(layers, base, prompt, epochs, batch, learning_rate, seed, precision)
    return distill_model(
        teacher,
        student,
        texts,
        output,
        name=name,
        sts=sts,
        device=device,
        resume=resume,
        keep_checkpoints=keep_checkpoints,
        report=report,
    )


__all__ = ["distill", "train"]
