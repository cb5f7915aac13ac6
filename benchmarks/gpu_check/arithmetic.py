"""How much a model computes for a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Shape:
    """The size of a BERT-like transformer.

    Attributes:
        hidden, heads, layers: As in its configuration.
        intermediate: Width of the feed-forward block.
    """

    hidden: int
    heads: int
    layers: int
    intermediate: int

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Shape:
        """From a config.json in BERT's or DistilBERT's words."""
        hidden = int(config.get("hidden_size") or config["dim"])
        return cls(
            hidden,
            int(config.get("num_attention_heads") or config["n_heads"]),
            int(config.get("num_hidden_layers") or config["n_layers"]),
            int(config.get("intermediate_size") or config.get("hidden_dim") or 4 * hidden),
        )


def flops(shape: Shape, lengths: NDArray[np.int64]) -> float:
    """Floating-point operations of the products for texts without padding; a multiplication and an addition are two.

    Of each layer and token: query, key, value and output 8 D², the feed-forward block 4 D I, and attention 4 S D.
    Embeddings, norms, activations and pooling are not counted.

    Args:
        lengths: *Shape:* ``(texts,)``, tokens of each text.
    """
    tokens = float(lengths.sum())
    squares = float((lengths.astype(np.float64) ** 2).sum())
    products = 8 * shape.hidden**2 + 4 * shape.hidden * shape.intermediate
    return shape.layers * (products * tokens + 4 * shape.hidden * squares)
