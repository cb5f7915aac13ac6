"""The network that graph builder and numpy reference both read: weights under one set of names.

Every supported architecture is a post-norm encoder (Vaswani et al. 2017, arXiv 1706.03762; BERT, arXiv
1810.04805); they differ in the names of their tensors and in how positions enter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class HiddenActivation(StrEnum):
    """Activation between the two products of a feed-forward block, by what it computes."""

    GELU = "gelu"  # x Φ(x), with the error function
    GELU_TANH = "gelu_tanh"  # the tanh approximation that BERT's first code used
    RELU = "relu"
    SILU = "silu"


@dataclass(frozen=True)
class Linear:
    """y = x W + b.

    Attributes:
        weight: *Shape:* ``(in_features, out_features)``.
        bias: *Shape:* ``(out_features,)``.
    """

    weight: Floats
    bias: Floats


@dataclass(frozen=True)
class Norm:
    """Layer normalisation over the last axis.

    Attributes:
        weight, bias: *Shape:* ``(hidden,)``.
        epsilon: Added to the variance.
    """

    weight: Floats
    bias: Floats
    epsilon: float


@dataclass(frozen=True)
class Embeddings:
    """What a token's vector starts from.

    Attributes:
        words: *Shape:* ``(vocabulary, hidden)``.
        positions: *Shape:* ``(positions, hidden)``.
        token_type: *Shape:* ``(hidden,)``, the row of type 0, or None. Sentence encoders read one segment.
        norm: Normalisation of the sum.
        padding_id: None where positions count from 0. Otherwise the padding token's id, and the position of a
            token is `padding_id` plus its rank (from 1) among the tokens that are not padding, as in RoBERTa.
    """

    words: Floats
    positions: Floats
    token_type: Floats | None
    norm: Norm
    padding_id: int | None


@dataclass(frozen=True)
class Layer:
    """One encoder layer: attention, add and norm, feed-forward, add and norm."""

    query: Linear
    key: Linear
    value: Linear
    attention_output: Linear
    attention_norm: Norm
    intermediate: Linear
    output: Linear
    output_norm: Norm


@dataclass(frozen=True)
class Transformer:
    """An encoder with its weights.

    Attributes:
        heads: Attention heads; `hidden` is a multiple of it.
        activation: Between the feed-forward products.
        embeddings: See there.
        layers: From the first to the last.
        relative_bias: *Shape:* ``(buckets, heads)``: bias on attention scores by relative position, shared by
            all layers (MPNet), or None.
    """

    heads: int
    activation: HiddenActivation
    embeddings: Embeddings
    layers: tuple[Layer, ...]
    relative_bias: Floats | None

    @property
    def hidden(self) -> int:
        return int(self.embeddings.words.shape[1])

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads
