"""The modules of a model: pooling, Dense, LayerNorm and Normalize, and the values that they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel

PromptKind = Literal["query", "document"]
# Class of the module with a table of token vectors instead of a network.
STATIC = "StaticEmbedding"
# Architecture of a model with this module.
STATIC_ARCHITECTURE = "static"


class Pooling(StrEnum):
    """Pooling of token vectors into a sentence vector (names as in sentence-transformers)."""

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
    SILU = "silu"
    SIGMOID = "sigmoid"


class Dense(BaseModel, frozen=True):
    """A Dense module: y = activation(x Wᵀ + b), and with a residual y + x, or y + x Rᵀ if the widths differ.

    Attributes:
        folder: The module's folder, relative to the model folder; its `model.safetensors` holds
            `linear.weight` of shape (out_features, in_features) and, with bias, `linear.bias`.
        residual: Whether the input is added; if the width differs, it is multiplied by `residual.weight` first.
    """

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: Activation
    residual: bool = False


class LayerNorm(BaseModel, frozen=True):
    """A LayerNorm module: layer normalization with weights.

    Attributes:
        folder: The module's folder, relative to the model folder, with `norm.weight` and `norm.bias`.
        dimension: Length of the vector.
    """

    folder: str
    dimension: int


class Normalize(BaseModel, frozen=True):
    """A Normalize module: scales vectors to unit length."""


# A module that computes a vector from a vector.
VectorModule = Dense | LayerNorm | Normalize


def drop_inner_normalize(modules: Sequence[VectorModule]) -> tuple[VectorModule, ...]:
    """Remove each Normalize that a later one makes superfluous. This changes vectors only by rounding.

    Between the two there are only products with a matrix (Dense modules without bias and activation), whose results
    scale with their inputs. A model with truncated vectors (`shortened_model.py`) then has Dense modules, and
    Normalize at the end.
    """
    kept: list[VectorModule] = []
    is_scaled_later = False
    for module in reversed(modules):
        if isinstance(module, Normalize):
            if is_scaled_later:
                continue
            is_scaled_later = True
        elif not (isinstance(module, Dense) and module.activation is Activation.IDENTITY and not module.bias):
            is_scaled_later = False
        kept.append(module)
    return tuple(reversed(kept))


@dataclass(frozen=True)
class Feature:
    """A value that modules pass on, described by the modules that computed it.

    sentence-transformers stores such values by name; a module reads one and writes one.

    Attributes:
        width: Length of a vector; None if only the transformers library knows it.
        token_modules: Modules applied to the vector of each token.
        pooling: Pooling modes of the vector of a text; None for token vectors.
        include_prompt: Whether the tokens of a prompt are pooled too.
        modules: Modules applied to the vector of a text.
    """

    width: int | None
    token_modules: tuple[VectorModule, ...] = ()
    pooling: tuple[Pooling, ...] | None = None
    include_prompt: bool = True
    modules: tuple[VectorModule, ...] = ()

    def apply(self, module: VectorModule, width: int | None) -> Feature:
        """Return the value after one more module."""
        applied = self.token_modules if self.pooling is None else self.modules
        if applied and applied[-1] == module == Normalize():
            return self  # a second Normalize has no effect
        applied = (*applied, module)
        if self.pooling is None:
            return replace(self, width=width, token_modules=applied)
        return replace(self, width=width, modules=applied)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a `SentenceModel` with this sentence vector."""
        return {
            "token_modules": self.token_modules,
            "pooling": self.pooling,
            "include_prompt": self.include_prompt,
            "modules": self.modules,
            "dimensions": self.width,
        }


@dataclass(frozen=True)
class InputModule:
    """The first module of a model, which reads texts: a Transformer or a StaticEmbedding.

    Attributes:
        settings: The settings of a `SentenceModel` that it determines.
        output: Its output: a vector of each token, or of the text.
        weights_hash: Hash of its tensors.
        fingerprint_fields: Settings of the `SentenceModel` in its fingerprint, besides those of all models.
        fingerprint_settings: Further settings in the fingerprint.
    """

    settings: dict[str, Any]
    output: Feature
    weights_hash: str
    fingerprint_fields: tuple[str, ...]
    fingerprint_settings: dict[str, Any] = field(default_factory=dict)


# Flags of a pooling configuration, in sentence-transformers' order. Its versions before 5.2 read and write only these,
# so saved models contain them too, and a new mode needs a flag.
POOLING_MODE_FLAGS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": Pooling.WEIGHTEDMEAN,
    "pooling_mode_lasttoken": Pooling.LASTTOKEN,
}

# Names of torch's classes in configurations.
_ACTIVATION_NAMES = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
ACTIVATION_CLASSES = {name: Activation(name.lower()) for name in _ACTIVATION_NAMES}
