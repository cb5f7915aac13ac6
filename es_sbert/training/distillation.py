"""Distill a sentence encoder into a smaller or static student, whose vectors are in the same space.

The student is trained toward the vectors of its teacher on texts without labels (Hinton et al. 2015, arXiv 1503.02531;
Reimers and Gurevych 2020, arXiv 2004.09813; LEAF, Vujanic and Rueckstiess 2025, arXiv 2509.12539). It runs as a recipe
with one stage of vector distillation; the texts are in memory. A student that starts from a model other than its
teacher has a Dense layer that maps its vectors into the teacher's space, as in LEAF.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from es_sbert.arguments import as_texts, check_arguments, spell_out
from es_sbert.bundle.local_registry import try_register_model
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.modules import Activation, PromptKind
from es_sbert.bundle.sentence_model import PROMPT_NAMES, SentenceModel, read_sentence_model
from es_sbert.encoder.static_model import check_static_source, static_model_folder
from es_sbert.errors import SourceError, UnsupportedArchitecture, UsageError
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.messages import pluralize, setting
from es_sbert.runtime.variant_candidates import default_exports
from es_sbert.settings import Student, no_report
from es_sbert.training.bi_encoder_task import open_initial_model
from es_sbert.training.recipe import (
    DataSpec,
    DenseSpec,
    DevSpec,
    ModelSpec,
    ObjectiveSpec,
    Recipe,
    StageSpec,
    VectorDistillationSpec,
)
from es_sbert.training.run_folder import RunFolder
from es_sbert.training.training_errors import translate_disk_errors
from es_sbert.training.training_examples import DevData, Examples, StageData
from es_sbert.training.training_run import refuse_several_processes, run_with_data

MIN_TEXTS = 100
"""Minimum number of distinct texts to train on."""

STAGE = "distillation"
_TEXTS = "texts"  # name of the texts in recipe and messages, since they may come from several files
_MAX_DEV_TEXTS = 1000
# For a student with layers: number of texts between two checkpoints (minutes on a CPU), and maximum number of
# checkpoints per epoch.
_CHECKPOINT_TEXTS, _MAX_CHECKPOINTS = 10_000, 20
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Distillation:
    """A finished distillation.

    Usage:
        ```python
        student = distill_model("all-MiniLM-L6-v2", "minilm-3", texts, layers=3)
        print(student.folder, student.cosine)
        ```

    Attributes:
        folder: The student, an ONNX bundle.
        fingerprint: Its fingerprint.
        texts: Texts that it was trained on.
        dev_texts: Texts that chose its checkpoint, and that it was not trained on.
        start_cosine, cosine: Mean cosine × 100 between its vectors and the teacher's on these texts, before and after
            training; None if it was not trained by this call.
    """

    folder: Path
    fingerprint: str
    texts: int = 0
    dev_texts: int = 0
    start_cosine: float | None = None
    cosine: float | None = None


@check_arguments
@spell_out(Student)
def distill_model(
    teacher: str,
    output: str | Path,
    texts: Sequence[str] = (),
    *,
    name: str | None = None,
    device: str = "auto",
    resume: bool = False,
    register: bool = False,
    report: Callable[[str], None] = no_report,
    **settings: Any,
) -> Distillation:
    """Distill a sentence encoder into a smaller or static student, and export it to a checked ONNX bundle.

    The student's vectors are in the space of the teacher: they have the same length, and are trained toward the
    teacher's vectors of the texts. A tenth of the texts, at most 1,000, measures that and chooses the best checkpoint.
    Without `layers` and `base`, the student is static: the vector of a text is the mean of its token vectors. Without
    texts, it is exported untrained. Needs the extra `train`.

    Usage:
        ```python
        student = distill_model("all-MiniLM-L6-v2", "minilm-3", texts, layers=3, report=print)
        print(student.folder, student.cosine)
        ```

    Args:
        teacher: Folder, hub id, installed or registered name of a sentence encoder.
        output: Folder of the student; new or empty, except with `resume`.
        texts: Texts without labels, like those that will be embedded; repeated ones count once.
        name: Name of the student; by default the name of its folder.
        device: `auto`, `cpu` or `cuda`.
        resume: Resume an interrupted run, with the same arguments.
        register: Register the student under its name, so that searches find it (`es-sbert model list`).
        report: Called with progress messages.
        settings: See `Student`.

    Raises:
        ModelError: the teacher cannot be opened, or does not support such a student.
        UsageError: a text is not a str, the model does not have more layers than `layers`, a student with layers has no
            texts, `output` is not empty, several processes were started, or the extra `train` is missing.
        SourceError: there are too few texts.
        CheckpointInvalid: with `resume`: the run in `output` used different texts, settings or models.
        DeviceError: the device is not available.
        TrainingError, OutputError: the run failed. Complete checkpoints are kept; `resume` continues from the last one.
    """
    student, output, texts = Student(**settings), Path(output), as_texts(texts)
    refuse_several_processes()
    name = name or output.resolve().name
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name for a model", f"Use letters and digits: {setting('name', 'NAME')}."
        ).about("name", name)
    folder = resolve_model(teacher)
    model = read_sentence_model(folder, teacher)
    distinct = list(dict.fromkeys(text for text in texts if text and not text.isspace()))
    base_model = None if student.base is None else _read_base(student.base)
    if student.static:
        check_static_source(model)
    else:
        # Opened for its checks: whether its layers can be removed, and how many.
        start = folder if base_model is None else base_model.folder
        open_initial_model(start, ModelSpec(base=student.base or teacher, layers=student.layers))
    if not texts:
        untrained = _export_untrained(teacher, folder, student, output, name, report)
        if register:
            try_register_model(output, untrained.fingerprint, name=name)
        return untrained
    if len(distinct) < MIN_TEXTS:
        raise SourceError(
            f"there are {pluralize(len(distinct), 'different text')}, too few to learn from",
            f"Pass at least {MIN_TEXTS}.",
        )
    trained, dev = split_texts(distinct, student.seed)
    recipe = distillation_recipe(name, model, student, len(trained), base_model)
    data, hashes = _stage_data(recipe, trained, dev), {_TEXTS: _hash_texts([*trained, *dev])}
    result = run_with_data(recipe, [data], hashes, output, device=device, resume=resume, report=report)
    assert result.fingerprint is not None, "the recipe exports the model"
    with translate_disk_errors(output):
        for vectors in RunFolder(output).stage(STAGE).glob("teacher-*.npy"):
            vectors.unlink()
    if register:
        try_register_model(output, result.fingerprint, name=name)
    stage = result.stages[0] if result.stages else None
    return Distillation(
        output,
        result.fingerprint,
        len(trained),
        len(dev),
        None if stage is None else stage.start_dev,
        None if stage is None else stage.best_dev,
    )


def _read_base(name: str) -> SentenceModel:
    """Find and read the model that a student starts from.

    Raises:
        ModelError: the model cannot be found or read.
        UnsupportedArchitecture: the model has no layers.
    """
    base = read_sentence_model(resolve_model(name), name)
    if base.architecture == "static":
        raise UnsupportedArchitecture(
            f"{name} is a StaticEmbedding, so no student can start from it",
            "Start from a model with one transformer, such as all-MiniLM-L6-v2, or make a static student of the "
            "teacher.",
        )
    return base


def distillation_recipe(
    name: str,
    teacher: SentenceModel,
    student: Student,
    texts: int,
    base: SentenceModel | None = None,
) -> Recipe:
    """Create the recipe that trains a student toward its teacher.

    Args:
        name: Name of the student.
        teacher: The teacher, by the name to open it with.
        student: The kind of student, and the settings of its training.
        texts: Number of texts to train on.
        base: The model that the student starts from, by the name to open it with; None for the teacher.
    """
    start = teacher if base is None else _with_prompts(base, teacher)
    data = []
    # A student learns both kinds of texts if it or its teacher has different prompts for them; a static one has none.
    differs = any(model.prompt("query") != model.prompt("document") for model in (teacher, start))
    kinds: tuple[PromptKind, ...] = ("document", "query") if differs and not student.static else ("document",)
    for kind in kinds:
        prompt = start.prompt_name(kind)
        data.append(
            DataSpec(
                path=_TEXTS,
                name=_TEXTS if kind == "document" else f"{_TEXTS} as queries",
                columns={"source": "text"},
                prompts={} if prompt is None or student.static else {"source": prompt},
                objective=VectorDistillationSpec(kind="vector-distillation", teacher=teacher.name, teacher_prompt=kind),
            )
        )
    stage = StageSpec(
        name=STAGE,
        data=tuple(data),
        epochs=student.epochs or (8 if student.static else 3),
        batch=student.batch or (min(max(texts // 100, 32), 1024) if student.static else 64),
        # The remaining layers must learn to replace the removed ones.
        learning_rate=student.learning_rate or (1e-2 if student.static else 1e-4 if student.layers is None else 5e-4),
        warmup=0.05,
        dev=DevSpec(task="vectors", path=_TEXTS, columns={"text": "text"}),
        # A static model is trained in minutes.
        checkpoints_per_epoch=1 if student.static else min(max(texts // _CHECKPOINT_TEXTS, 1), _MAX_CHECKPOINTS),
    )
    return Recipe(
        name=name,
        description=f"Distilled from {teacher.name}",
        model=_model_spec(teacher, student, base, start.prompts),
        stages=(stage,),
        precision=student.precision,
        seed=student.seed,
    )


def _model_spec(
    teacher: SentenceModel, student: Student, base: SentenceModel | None, prompts: dict[str, str]
) -> ModelSpec:
    # No dropout: it would add noise to the training, and there are too many texts to overfit.
    if base is None:
        return ModelSpec(base=teacher.name, layers=student.layers, static=student.static, dropout=0)
    return ModelSpec(
        base=base.name,
        layers=student.layers,
        # Needed even if both have the same number of dimensions: each model has a different vector space.
        dense=DenseSpec(out_features=teacher.dimensions, activation=Activation.IDENTITY),
        normalize=teacher.normalize,
        prompts={name: prompt for name, prompt in prompts.items() if base.prompts.get(name) != prompt},
        dropout=0,
    )


def _with_prompts(base: SentenceModel, teacher: SentenceModel) -> SentenceModel:
    """Add the teacher's prompts to a base, for the kinds of texts for which it has none."""
    prompts = dict(base.prompts)
    for kind in PROMPT_NAMES:
        if teacher.prompt(kind) and not base.prompt(kind):
            name = base.prompt_name(kind) or teacher.prompt_name(kind)
            assert name is not None, "the teacher has a prompt of this kind"
            prompts[name] = teacher.prompt(kind)
    return base.model_copy(update={"prompts": prompts})


def split_texts(texts: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    """Split texts into those to train on and those to measure on, in a random order that depends on the seed.

    A tenth of the texts is left to choose the checkpoint, at most 1,000.
    """
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    dev = min(_MAX_DEV_TEXTS, len(texts) // 10)
    return [texts[row] for row in order[dev:]], [texts[row] for row in order[:dev]]


def _stage_data(recipe: Recipe, texts: Sequence[str], dev_texts: list[str]) -> StageData:
    """Return the texts as the data sets of the recipe, which take turns."""
    (stage,) = recipe.stages
    examples, objectives = [], []
    for number, spec in enumerate(stage.data):
        part = list(texts[number :: len(stage.data)])
        lines = np.arange(1, len(part) + 1, dtype=np.int64)
        examples.append(Examples(str(spec.name), Path(_TEXTS), (part,), None, lines))
        objectives.append(stage.objective_of(spec))
    dev = DevData("vectors", (dev_texts,), None)
    return StageData(tuple(examples), tuple[ObjectiveSpec, ...](objectives), dev)


def _hash_texts(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _export_untrained(
    teacher: str,
    folder: Path,
    student: Student,
    output: Path,
    name: str,
    report: Callable[[str], None],
) -> Distillation:
    """Make a static student from the teacher's token vectors, without training."""
    if not student.static:
        raise UsageError(
            "a student with layers must be trained, and there are no texts",
            f"Pass texts like those that you will search: {setting('texts', 'FILE')}. They need no labels.",
        ).about("texts")
    RunFolder(output).check_new()
    start = read_sentence_model(static_model_folder(folder, teacher, report=report), name)
    manifest = export_bundle(start, output, default_exports(start.architecture), reference="auto", on_progress=report)
    return Distillation(output, manifest.fingerprint)
