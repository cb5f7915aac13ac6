"""How much a model computes for a text, and how much a card can: what a share of the peak is taken from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Dense fp16 tensor-core TFLOP/s with fp32 sums, from NVIDIA's data sheets (half of a figure "with sparsity"). The first
# pattern that is found in the card's name counts.
_PEAKS = (
    (r"B200", 2250.0),
    (r"GH200", 989.4),
    (r"H200 NVL", 835.5),
    (r"H200", 989.4),
    (r"H100 NVL", 835.5),
    (r"H100 PCIe", 756.5),
    (r"H100", 989.4),
    (r"A100|A800", 312.0),
    (r"A30\b", 165.0),
    (r"A10\b", 125.0),
    (r"L40S", 362.1),
    (r"\bL4\b", 121.0),
    (r"V100.*PCIE", 112.0),
    (r"V100", 125.0),
    (r"\bT4\b", 65.1),
)


def peak_tflops(card: str) -> float | None:
    """A card's fp16 peak in TFLOP/s by its name; None for a card that is not in the table."""
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, card)), None)


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
