"""Open a recipe's model as a training task, with its objectives, LoRA and gradient checkpointing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.errors import RecipeInvalid
from es_sbert.networks.cross_encoder import CrossEncoder
from es_sbert.networks.siamese_encoder import skip_mask_check
from es_sbert.training.bi_encoder_task import BiEncoderTask, TrainingTask
from es_sbert.training.data.examples import Examples
from es_sbert.training.initial_model import open_initial_model
from es_sbert.training.objectives.losses import Objective, build_objective, objective_schema
from es_sbert.training.objectives.settings import ObjectiveSpec
from es_sbert.training.pair_tasks import CrossEncoderTask, PolyEncoderTask
from es_sbert.training.recipe import LoraSpec, ModelKind, ModelSpec, StageSpec


def open_task(
    spec: ModelSpec, stage: StageSpec, examples: Sequence[Examples], objectives: Sequence[ObjectiveSpec]
) -> TrainingTask:
    """Open the model and put the stage's objectives on it; new heads and layers take torch's random numbers.

    Args:
        spec: What to start from.
        stage: The stage.
        examples: Its data sets.
        objectives: The objective of each.

    Raises:
        ModelError: the base cannot be opened.
        RecipeInvalid: settings that do not go with the kind of model, or with the base.
    """
    by_name = {each.name: objective for each, objective in zip(examples, objectives, strict=True)}
    task = (_open_bi_encoder_task if spec.kind is ModelKind.BI_ENCODER else _open_pair_task)(spec, stage, by_name)
    reads = task.encoder.model.max_tokens
    if spec.max_tokens is not None and reads < spec.max_tokens:
        raise RecipeInvalid(
            f"the recipe has max_tokens {spec.max_tokens}, but {spec.base} reads no more than {reads} tokens",
            f"Set model.max_tokens to {reads} or less, leave it out, or take another base.",
        )
    return task


def _open_pair_task(
    spec: ModelSpec, stage: StageSpec, objectives: Mapping[str, ObjectiveSpec]
) -> CrossEncoderTask | PolyEncoderTask:
    if stage.mini_batch is not None:
        raise RecipeInvalid(
            f"mini_batch is for bi-encoders, not for a {spec.kind}", "Lower batch and raise accumulation instead."
        )
    if any(data.prompts for data in stage.data):
        raise RecipeInvalid(
            f"prompts are for bi-encoders, not for a {spec.kind}", "Leave prompts out of the recipe's data."
        )
    task: CrossEncoderTask | PolyEncoderTask
    task = (CrossEncoderTask if spec.kind is ModelKind.CROSS_ENCODER else PolyEncoderTask).open(spec, objectives)
    _prepare_transformer(task.encoder, stage, spec.lora)
    return task


def _open_bi_encoder_task(spec: ModelSpec, stage: StageSpec, objectives: Mapping[str, ObjectiveSpec]) -> BiEncoderTask:
    encoder = open_initial_model(resolve_model(spec.base), spec)
    built: dict[int, Objective] = {}  # data sets that share the stage's objective share its head
    for objective in objectives.values():
        if id(objective) not in built:
            built[id(objective)] = build_objective(objective, encoder.dimensions)
    _prepare_transformer(encoder, stage, spec.lora)
    return BiEncoderTask(
        encoder,
        {name: built[id(objective)] for name, objective in objectives.items()},
        prompts={
            name: column_prompts(encoder.model.prompts, data.prompts, objective, data.columns)
            for (name, objective), data in zip(objectives.items(), stage.data, strict=True)
        },
        mini_batch=stage.mini_batch,
    )


def column_prompts(
    known: Mapping[str, str],
    wanted: Mapping[str, str],
    objective: ObjectiveSpec,
    columns: Mapping[str, str | tuple[str, ...]],
) -> list[str]:
    """The prompt of each text column, empty where none is wanted.

    Raises:
        RecipeInvalid: the model has no prompt of that name.
    """
    unknown = sorted(set(wanted.values()) - set(known))
    if unknown:
        raise RecipeInvalid(
            f"the model has no prompt {', '.join(unknown)}",
            f"Add it under model.prompts; there are: {', '.join(known) or 'none'}.",
        )
    prompts = []
    for role in objective_schema(objective).roles:
        mapped = columns.get(role, ())
        prompt = known[wanted[role]] if role in wanted else ""
        prompts += [prompt] * (1 if isinstance(mapped, str) else len(mapped))
    return prompts


def _prepare_transformer(encoder: nn.Module, stage: StageSpec, lora: LoraSpec | None) -> None:
    """Gradient checkpointing and LoRA on the encoder's transformer; the head above it is trained whole."""
    transformer = encoder.transformer
    skip_mask_check(transformer)
    if stage.gradient_checkpointing:
        transformer.gradient_checkpointing_enable({"use_reentrant": False})
    if lora is not None:
        from peft import LoraConfig, get_peft_model

        head = encoder.head if isinstance(encoder, CrossEncoder) else []
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=list(lora.targets) or "all-linear",
            modules_to_save=head or None,
            exclude_modules=rf"({'|'.join(head)})(\..*)?" if head else None,
        )
        try:
            encoder.transformer = get_peft_model(transformer, config)
        except ValueError as error:
            raise RecipeInvalid(
                f"model.lora.targets {list(lora.targets)} does not fit the transformer: {error}",
                "Leave targets out to take every linear layer.",
            ) from error
        if stage.gradient_checkpointing:
            # Frozen embeddings give no gradient that a recomputed layer could start from.
            transformer.enable_input_require_grads()
