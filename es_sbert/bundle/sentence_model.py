"""Settings of a sentence encoder: the value that bundle, exporters, encoder and networks share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from es_sbert.bundle.model_files import find_weight_files

PromptKind = Literal["query", "document"]

# Names under which sentence-transformers looks for a prompt of each kind, first found wins.
PROMPT_NAMES: dict[PromptKind, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


class Precision(StrEnum):
    """Number format of an ONNX variant's matrix products; sentence vectors are float32 in all of them."""

    FP32 = "fp32"
    INT8 = "int8"
    FP16 = "fp16"


class Pooling(StrEnum):
    """How token vectors become one sentence vector (names as in sentence-transformers)."""

    CLS = "cls"
    MAX = "max"
    MEAN = "mean"
    MEAN_SQRT_LEN = "mean_sqrt_len_tokens"
    WEIGHTEDMEAN = "weightedmean"
    LASTTOKEN = "lasttoken"


class Activation(StrEnum):
    """Activation after a Dense module."""

    IDENTITY = "identity"
    TANH = "tanh"
    RELU = "relu"
    GELU = "gelu"


class Dense(BaseModel):
    """A Dense module: y = activation(x Wᵀ + b).

    Attributes:
        folder: The module's folder, relative to the model folder; its `model.safetensors` holds
            `linear.weight` of shape (out_features, in_features) and, with bias, `linear.bias`.
    """

    model_config = ConfigDict(frozen=True)

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: Activation


class SentenceModel(BaseModel):
    """A sentence-transformers model folder, read and validated.

    Attributes:
        folder: The model folder.
        name: Name for people: the hub id, package name or folder name it was opened by.
        transformer: Folder of the transformer (config.json, model.safetensors), relative to `folder`.
        architecture: `model_type` of the transformer's config (bert, roberta, xlm-roberta, distilbert, mpnet, …).
        transformer_config: The transformer's config.json.
        pooling: Pooling modes; several are concatenated in this order.
        dense: Dense modules after pooling, in order.
        normalize: Whether vectors are scaled to unit length at the end.
        max_tokens: Longest input in tokens, special tokens included; longer ones are cut.
        dimensions: Length of a sentence vector.
        prompts: Prompt name → text put in front of an input.
        default_prompt: Name of the prompt of inputs that are neither query nor document.
        lowercase: Whether the tokenizer lower-cases texts before all else, prompts included (`do_lower_case`).
        fingerprint: Hash of weights, tokenizer, pooling, dense, normalisation, maximum tokens and prompts:
            equal fingerprints mean vectors that may stand in one field.
    """

    model_config = ConfigDict(frozen=True)

    folder: Path
    name: str
    transformer: str
    architecture: str
    transformer_config: dict[str, Any]
    pooling: tuple[Pooling, ...]
    dense: tuple[Dense, ...]
    normalize: bool
    max_tokens: int
    dimensions: int
    prompts: dict[str, str]
    default_prompt: str | None
    lowercase: bool
    fingerprint: str

    @property
    def transformer_folder(self) -> Path:
        return self.folder / self.transformer

    @property
    def weight_files(self) -> list[Path]:
        """The transformer's safetensors files, one or several shards, sorted by name."""
        return find_weight_files(self.transformer_folder)

    @property
    def tokenizer_file(self) -> Path:
        return self.transformer_folder / "tokenizer.json"

    def prompt(self, kind: PromptKind | None) -> str:
        """Text to put in front of an input of this kind; empty where the model has none.

        The default prompt is for inputs of no kind only, as in sentence-transformers' `encode_query` and
        `encode_document`: it may be the prompt for queries, which documents must not get.
        """
        if kind is None:
            return self.prompts.get(self.default_prompt, "") if self.default_prompt else ""
        return next((self.prompts[name] for name in PROMPT_NAMES[kind] if name in self.prompts), "")
