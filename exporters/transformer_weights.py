"""Weights of a transformer under one set of names, read from safetensors as float32.

The graph builder and the numpy reference both use them. Every supported architecture is a post-norm encoder (Vaswani
et al. 2017, arXiv 1706.03762; BERT, arXiv 1810.04805); architectures differ in tensor names and in how positions
enter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model_files import find_weight_files, read_header
from es_sbert.errors import BundleInvalid

Floats = NDArray[np.float32]


class HiddenActivation(StrEnum):
    """Activation between the two products of a feed-forward block, by what it computes."""

    GELU = "gelu"  # x Φ(x), with the error function
    GELU_TANH = "gelu_tanh"  # the tanh approximation that BERT's first code used
    RELU = "relu"
    SILU = "silu"


@dataclass(frozen=True)
class LinearWeights:
    """y = x W + b.

    Attributes:
        weight: *Shape:* ``(in_features, out_features)``.
        bias: *Shape:* ``(out_features,)``.
    """

    weight: Floats
    bias: Floats


@dataclass(frozen=True)
class NormWeights:
    """Layer normalisation over the last axis.

    Attributes:
        weight, bias: *Shape:* ``(hidden,)``.
        epsilon: Added to the variance.
    """

    weight: Floats
    bias: Floats
    epsilon: float


@dataclass(frozen=True)
class EmbeddingWeights:
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
    norm: NormWeights
    padding_id: int | None


@dataclass(frozen=True)
class LayerWeights:
    """One encoder layer: attention, add and norm, feed-forward, add and norm."""

    query: LinearWeights
    key: LinearWeights
    value: LinearWeights
    attention_output: LinearWeights
    attention_norm: NormWeights
    intermediate: LinearWeights
    output: LinearWeights
    output_norm: NormWeights


@dataclass(frozen=True)
class TransformerWeights:
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
    embeddings: EmbeddingWeights
    layers: tuple[LayerWeights, ...]
    relative_bias: Floats | None

    @property
    def hidden(self) -> int:
        return int(self.embeddings.words.shape[1])

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


_HEADER_LENGTH_BYTES = 8
# numpy has no bfloat16: its bits are the upper half of a float32's, so it is read as integers.
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

# Checkpoints converted from BERT's first, TensorFlow, release name the parameters of their norms so.
_OLD_NORM_NAMES = ("gamma", "beta")


class ModuleWeights:
    """The tensors of a module's folder, spread over one or several safetensors files.

    Args:
        folder: Folder with `model.safetensors` or its shards.
        prefix: Put in front of every name asked for (`bert.`, `model.`, …).

    Raises:
        BundleInvalid: there are no weights, or only pickled ones.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.folder = folder
        self._prefix = prefix
        self._places = {
            name: (file, entry) for file in find_weight_files(folder) for name, entry in read_header(file).items()
        }

    def with_prefix_of(self, suffix: str) -> ModuleWeights:
        """The same tensors, asked for relative to the one name that ends in `suffix`.

        Which prefix a checkpoint carries depends on the class that saved it: none, `bert.`, `model.`, ….

        Raises:
            BundleInvalid: no name ends so, or several do.
        """
        found = [name for name in self._places if name == suffix or name.endswith("." + suffix)]
        if len(found) != 1:
            raise BundleInvalid(
                f"{self.folder} holds {len(found)} tensors called {suffix}, expected one",
                "The weights are not those of the architecture that config.json names: copy the folder again.",
            )
        return ModuleWeights(self.folder, found[0].removesuffix(suffix))

    def get(self, name: str, shape: tuple[int, ...] | None = None) -> Floats:
        """One tensor as float32.

        Args:
            name: Its name without the prefix.
            shape: The shape it must have, where that is known.

        Raises:
            BundleInvalid: it is missing, of another shape, or not of a floating-point type.
        """
        full = self._prefix + name
        if full not in self._places:
            raise BundleInvalid(
                f"the weights in {self.folder} lack the tensor {full}",
                "The download is incomplete or the weights belong to another architecture: copy the folder again.",
            )
        file, entry = self._places[full]
        if entry["dtype"] not in _DTYPES:
            raise BundleInvalid(
                f"the tensor {full} in {self.folder} is of type {entry['dtype']}, not floating-point",
                "Give the model as it was before it was quantised; es-sbert quantises it itself.",
            )
        actual = tuple(entry["shape"])
        if shape is not None and actual != shape:
            raise BundleInvalid(
                f"the tensor {full} in {self.folder} has shape {actual}, expected {shape}",
                "config.json and the weights do not belong together: copy the folder again.",
            )
        with file.open("rb") as stream:
            base = _HEADER_LENGTH_BYTES + int.from_bytes(stream.read(_HEADER_LENGTH_BYTES), "little")
            start, end = entry["data_offsets"]
            stream.seek(base + start)
            raw = stream.read(end - start)
        dtype = _DTYPES[entry["dtype"]]
        if len(raw) != dtype.itemsize * int(np.prod(actual)):
            raise BundleInvalid(f"{file} is broken at the tensor {full}", "Copy or download the model folder again.")
        values = np.frombuffer(raw, dtype).reshape(actual)
        if entry["dtype"] == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        floats: Floats = values.astype(np.float32, copy=False)
        return floats

    def linear(self, name: str, in_features: int, out_features: int, *, bias: bool = True) -> LinearWeights:
        """`name.weight`, stored as (out_features, in_features), and `name.bias` (zeros without one)."""
        weight = self.get(f"{name}.weight", (out_features, in_features)).T
        return LinearWeights(
            weight, self.get(f"{name}.bias", (out_features,)) if bias else np.zeros(out_features, np.float32)
        )

    def norm(self, name: str, size: int, epsilon: float) -> NormWeights:
        """`name.weight` and `name.bias` of a layer normalisation, or `gamma` and `beta` in old checkpoints."""
        old = f"{self._prefix}{name}.gamma" in self._places
        weight, bias = _OLD_NORM_NAMES if old else ("weight", "bias")
        return NormWeights(self.get(f"{name}.{weight}", (size,)), self.get(f"{name}.{bias}", (size,)), epsilon)
