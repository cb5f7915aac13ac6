"""A siamese encoder with its objectives, as the trainer uses it: how it is opened, its batches, and their loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from es_sbert.batched import batched
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.modules import Dense, Normalize, Pooling
from es_sbert.encoder.static_model import static_model_folder
from es_sbert.errors import RecipeInvalid, UnsupportedArchitecture, UsageError
from es_sbert.runtime.siamese_encoder import (
    DenseLayer,
    SiameseEncoder,
    TokenTable,
    open_siamese_encoder,
    save_siamese_encoder,
)
from es_sbert.training.losses import Objective, build_objective, objective_schema
from es_sbert.training.recipe import ModelSpec, ObjectiveSpec, StageSpec
from es_sbert.training.training_examples import Examples

# Token ids of a text, *shape* ``(tokens,)``.
Tokens = NDArray[np.int64]

# Texts tokenized at a time: the tokenizer's own objects are many times as large as their ids.
_SLICE = 16_384


class TokenColumn:
    """Token ids of many texts, in one flat array.

    Args:
        texts: The texts.
        tokenize: Texts → one int64 array of token ids each.

    Attributes:
        lengths: Tokens of each text, *shape* ``(texts,)``.
    """

    def __init__(self, texts: Sequence[str], tokenize: Callable[[Sequence[str]], list[Tokens]]) -> None:
        parts, lengths = [np.empty(0, dtype=np.int32)], []
        for start in range(0, len(texts), _SLICE):
            rows = tokenize(texts[start : start + _SLICE])
            parts.append(np.concatenate(rows).astype(np.int32))  # (tokens of the slice,)
            lengths += [len(row) for row in rows]
        self._flat = np.concatenate(parts)  # (tokens,)
        self.lengths = np.array(lengths, dtype=np.int64)
        self._ends = np.cumsum(self.lengths)  # (texts,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Tokens:
        """Token ids of one text, *shape* ``(tokens,)``."""
        end = self._ends[row]
        return self._flat[end - self.lengths[row] : end].astype(np.int64)


# A collated batch: name → tensors, nested for the text columns. The trainer moves it to the device.
Batch = Mapping[str, Any]


# One pass over all columns has less overhead than one per column, unless it pads short texts to the length of long
# ones.
_MAX_PADDING_RATIO = 1.25


class BiEncoderTask(nn.Module):
    """A siamese encoder with its objectives, one for each data set.

    It holds every trained parameter: its `state_dict` is the whole checkpoint.

    Args:
        encoder: The encoder.
        objectives: Data set → objective; several data sets may share one.
        prompts: Data set → the prompt of each text column; data sets without prompts may be missing.
        mini_batch: Number of texts whose activations are in memory at once; None: all texts of the batch.
    """

    def __init__(
        self,
        encoder: SiameseEncoder,
        objectives: Mapping[str, Objective],
        *,
        prompts: Mapping[str, Sequence[str]] | None = None,
        mini_batch: int | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        different = list(dict.fromkeys(objectives.values()))
        self.objectives = nn.ModuleList(different)
        self._objective_of = {dataset: different.index(objective) for dataset, objective in objectives.items()}
        self._prompts = prompts or {}
        self._mini_batch = mini_batch
        self._token_cache: dict[str, list[TokenColumn]] = {}

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        """Count the tokens of each example's longest text, *shape* ``(examples,)``, for sorting batches by length."""
        longest: NDArray[np.int64] = np.max([column.lengths for column in self.tokenized(examples)], axis=0)
        return longest

    def tokenized(self, examples: Examples) -> list[TokenColumn]:
        """Tokenize the text columns of a data set, once: that is most of the host's work for a batch."""
        if examples.name not in self._token_cache:
            prompts = self._prompts.get(examples.name) or [""] * len(examples.texts)
            self._token_cache[examples.name] = [
                TokenColumn(texts, lambda part, prompt=prompt: self.encoder.tokenize(part, prompt))  # type: ignore[misc]
                for texts, prompt in zip(examples.texts, prompts, strict=True)
            ]
        return self._token_cache[examples.name]

    def collate(self, examples: Examples, rows: Sequence[int]) -> Batch:
        """Make a batch of rows of a data set; its tensors stay on the CPU.

        It has `passes`, one for all columns or one per column, each a list of mini-batches as `SiameseEncoder.inputs`
        returns them; `columns`, their number; `labels`, if the objective needs them.
        """
        columns = [[column[row] for row in rows] for column in self.tokenized(examples)]
        longest = [max(map(len, column)) for column in columns]
        merged = max(longest) * len(columns) <= _MAX_PADDING_RATIO * sum(longest)
        passes = [[row for column in columns for row in column]] if merged else columns
        # Mini-batches are made on the host, which knows the lengths: reading them from a GPU would block.
        batch: dict[str, object] = {
            "passes": [
                [self.encoder.inputs(part) for part in batched(texts, self._mini_batch or len(texts))]
                for texts in passes
            ],
            "columns": len(columns),
        }
        if examples.labels is not None:
            batch["labels"] = torch.from_numpy(np.ascontiguousarray(examples.labels[np.asarray(rows)]))
        return batch

    def forward(self, dataset: str, batch: Batch) -> Tensor:
        """Compute the loss of a batch of one data set: a scalar.

        Args:
            dataset: Name of the data set.
            batch: As `collate` returned it.
        """
        objective = self.objectives[self._objective_of[dataset]]
        columns = [self._encode(mini_batches) for mini_batches in batch["passes"]]  # each (texts, dimensions)
        if len(columns) == 1:
            columns = list(columns[0].chunk(batch["columns"]))  # each (examples, dimensions)
        loss: Tensor = objective(columns, batch.get("labels"))
        return loss

    def _encode(self, mini_batches: Sequence[Batch]) -> Tensor:
        """Compute the vectors of one pass, ``(texts, dimensions)``; each of several mini-batches is computed again for
        the gradients.
        """
        if len(mini_batches) == 1:
            vectors: Tensor = self.encoder(**mini_batches[0])
            return vectors
        return torch.cat(
            [checkpoint(self.encoder, part["ids"], part["mask"], use_reentrant=False) for part in mini_batches]
        )

    def save(self, folder: Path, *, name: str) -> None:
        """Write the trained model to a new folder, without the objectives' heads.

        Raises:
            OSError: the disk is full, or the folder cannot be written to.
        """
        self.encoder.model = self.encoder.model.model_copy(update={"name": name})
        save_siamese_encoder(self.encoder, folder)


def open_task(
    spec: ModelSpec, stage: StageSpec, examples: Sequence[Examples], objectives: Sequence[ObjectiveSpec]
) -> BiEncoderTask:
    """Open the model with the stage's objectives; new heads and layers are drawn from torch's random numbers.

    Args:
        spec: The start model.
        stage: The stage.
        examples: Its data sets.
        objectives: The objective of each.

    Raises:
        ModelError: the base cannot be opened.
        RecipeInvalid: settings do not apply to the base.
    """
    encoder = open_initial_model(resolve_model(spec.base), spec)
    prompts = {
        each.name: prompts_of_columns(encoder.model.prompts, data.prompts, objective, data.trained_columns)
        for each, objective, data in zip(examples, objectives, stage.data, strict=True)
    }
    # Data sets with the same objective share its head.
    built = {id(objective): build_objective(objective, encoder.dimensions) for objective in objectives}
    by_name = {each.name: built[id(objective)] for each, objective in zip(examples, objectives, strict=True)}
    max_tokens = encoder.model.max_tokens
    if spec.max_tokens is not None and max_tokens < spec.max_tokens:
        raise RecipeInvalid(
            f"the recipe has max_tokens {spec.max_tokens}, but {spec.base} reads no more than {max_tokens} tokens",
            f"Set model.max_tokens to {max_tokens} or less, leave it out, or use another base.",
        )
    return BiEncoderTask(encoder, by_name, prompts=prompts, mini_batch=stage.mini_batch)


def prompts_of_columns(
    prompts: Mapping[str, str],
    role_prompts: Mapping[str, str],
    objective: ObjectiveSpec,
    columns: Mapping[str, str | tuple[str, ...]],
) -> list[str]:
    """Look up the prompt of each text column; empty for columns without one.

    Raises:
        RecipeInvalid: the model has no prompt with a requested name.
    """
    unknown = sorted(set(role_prompts.values()) - set(prompts))
    if unknown:
        raise RecipeInvalid(
            f"the model has no prompt {', '.join(unknown)}",
            f"Add it under model.prompts; existing prompts: {', '.join(prompts) or 'none'}.",
        )
    column_prompts = []
    schema = objective_schema(objective)
    for role in schema.roles:
        role_columns = columns.get(role, ())
        prompt = prompts[role_prompts[role]] if role in role_prompts else ""
        count = 1 if isinstance(role_columns, str) else len(role_columns)
        if not schema.repeats_last:  # several mined negatives make more rows, not more columns
            count = min(count, 1)
        column_prompts += [prompt] * count
    return column_prompts


def open_initial_model(folder: Path, spec: ModelSpec) -> SiameseEncoder:
    """Open a sentence encoder with the changes of the recipe; a new Dense layer has random weights from torch.

    Args:
        folder: A sentence-transformers folder, or a bare transformers folder.
        spec: Model settings of the recipe; its `base` is the name in messages.

    Raises:
        ModelError: the folder cannot be opened, cannot become a static model, or cannot have layers removed.
        UsageError: the encoder does not have more layers than the recipe keeps.
    """
    if spec.static:
        folder = static_model_folder(folder, spec.base)
    encoder = open_siamese_encoder(folder, name=spec.base, pooling=spec.pooling or (Pooling.MEAN,))
    if spec.layers is not None:
        remove_layers(encoder.transformer, spec.layers, spec.base)
    if spec.dropout is not None:
        for module in encoder.transformer.modules():
            if isinstance(module, nn.Dropout):
                module.p = spec.dropout
    if isinstance(encoder.transformer, TokenTable) and spec.pooling not in (None, (Pooling.MEAN,)):
        raise RecipeInvalid(
            "in a static model, the vector of a text is the mean of its token vectors, so pooling cannot apply to it",
            "Leave pooling out of the recipe, or use a base with a transformer.",
        )
    model, dense = encoder.model, encoder.dense_layers
    pooled = model.dense[0].in_features if model.dense else model.dimensions
    width = pooled // len(model.pooling)
    pooling = spec.pooling or model.pooling
    if spec.dense is not None or len(pooling) != len(model.pooling):
        dense = []
    if spec.dense is not None:
        settings = Dense(
            folder="2_Dense",
            in_features=width * len(pooling),
            out_features=spec.dense.out_features,
            bias=spec.dense.bias,
            activation=spec.dense.activation,
        )
        dense = [DenseLayer(settings)]
    normalize = model.normalize if spec.normalize is None else spec.normalize
    changed = model.model_copy(
        update={
            "pooling": pooling,
            "modules": (*(layer.settings for layer in dense), *((Normalize(),) if normalize else ())),
            "max_tokens": min(spec.max_tokens or model.max_tokens, model.max_tokens),
            "dimensions": dense[-1].settings.out_features if dense else width * len(pooling),
            "prompts": {**model.prompts, **spec.prompts},
            "fingerprint": "",
        }
    )
    return SiameseEncoder(changed, encoder.transformer, dense, encoder.token_types)


# Architectures with identical layers. In others, such as ModernBERT, the attention of a layer depends on its number.
_UNIFORM_LAYERS = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "electra"})


def evenly_spaced_layers(layers: int, kept: int) -> tuple[int, ...]:
    """Return the numbers of the layers to keep, from 0, evenly spaced; the last one is among them.

    Of 12 layers, for example, the 3 to keep are 3, 7 and 11, as in paraphrase-MiniLM-L3-v2.

    Args:
        layers: Number of layers.
        kept: Number of layers to keep, from 1 to `layers`.
    """
    return tuple((number + 1) * layers // kept - 1 for number in range(kept))


def remove_layers(transformer: nn.Module, kept: int, name: str) -> None:
    """Remove all layers except those that `evenly_spaced_layers` chooses.

    Args:
        transformer: A transformers encoder; changed in place.
        kept: Number of layers to keep.
        name: Name of the model, for messages.

    Raises:
        UnsupportedArchitecture: the layers of this architecture are not identical.
        UsageError: `kept` is less than 1, or not less than the number of layers.
    """
    network: Any = transformer
    config = getattr(network, "config", None)
    architecture = getattr(config, "model_type", "static")
    if config is None or architecture not in _UNIFORM_LAYERS:
        raise UnsupportedArchitecture(
            f"{name} has the architecture {architecture}, from which es-sbert cannot remove layers",
            f"Choose a model with one of these architectures: {', '.join(sorted(_UNIFORM_LAYERS))}.",
        )
    layers = config.num_hidden_layers
    if not 1 <= kept < layers:
        possible = "no smaller number" if layers == 1 else "1" if layers == 2 else f"1 to {layers - 1}"
        raise UsageError(f"{name} has {layers} layers, not {kept} to keep", f"Keep {possible}.").about("layers", kept)
    (place,) = [
        place
        for place, module in network.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == layers and "." in place
    ]
    parent, _, attribute = place.rpartition(".")
    owner = network.get_submodule(parent)
    stack = getattr(owner, attribute)
    setattr(owner, attribute, nn.ModuleList([stack[number] for number in evenly_spaced_layers(layers, kept)]))
    config.num_hidden_layers = kept
