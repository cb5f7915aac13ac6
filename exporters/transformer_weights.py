"""Weights of a transformer under one set of names, read from safetensors as float32.

`architectures` reads them. The graph builders and the numpy reference both use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.model_files import COPY_AGAIN, find_weight_files, read_header, read_tensor, unexpected_prefix
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.errors import BundleInvalid

Floats = NDArray[np.float32]


class HiddenActivation(StrEnum):
    """Activation between the products of a feed-forward block."""

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

    def scaled(self, factor: float) -> LinearWeights:
        """Return the product whose results are multiplied by a number."""
        return LinearWeights(self.weight * np.float32(factor), self.bias * np.float32(factor))


@dataclass(frozen=True)
class NormWeights:
    """Layer normalization over the last axis.

    Attributes:
        weight, bias: *Shape:* ``(hidden,)``.
        epsilon: Added to the variance.
        is_rms: Whether it only divides by the root of the mean square (arXiv 1910.07467): no mean is subtracted, and no
            bias added.
    """

    weight: Floats
    bias: Floats
    epsilon: float
    is_rms: bool = False


@dataclass(frozen=True)
class EmbeddingWeights:
    """The embeddings, from which the vector of a token starts.

    Attributes:
        words: *Shape:* ``(vocabulary, hidden)``.
        scale: Factor of these vectors.
        positions: *Shape:* ``(positions, hidden)``; None if positions are rotary.
        token_type: *Shape:* ``(hidden,)``, the row of type 0, or None. Sentence encoders read one segment.
        norm: Normalization of the sum, or None.
        padding_id: None if positions count from 0. Otherwise the id of the padding token; the position of a token is
            then `padding_id` plus its rank (from 1) among the tokens that are not padding, as in RoBERTa.
    """

    words: Floats
    scale: float
    positions: Floats | None
    token_type: Floats | None
    norm: NormWeights | None
    padding_id: int | None


@dataclass(frozen=True)
class AttentionWeights:
    """The attention of one layer.

    Attributes:
        query, key, value: Products of a block's input. Keys and values may have fewer heads than queries; each then
            serves several consecutive query heads (arXiv 2305.13245).
        output: Product of the heads' results.
        query_norm, key_norm: Normalization of each head before its rotation, of *shape* ``(head_size,)``, or None.
        frequencies: *Shape:* ``(head_size / 2,)``: angle in radians from one position to the next, for the pair of
            coordinates i and i + head_size / 2 (RoFormer, arXiv 2104.09864). None without rotation.
        window: Greatest distance between tokens that attend to each other; None for no limit.
    """

    query: LinearWeights
    key: LinearWeights
    value: LinearWeights
    output: LinearWeights
    query_norm: NormWeights | None = None
    key_norm: NormWeights | None = None
    frequencies: Floats | None = None
    window: int | None = None


@dataclass(frozen=True)
class FeedForwardWeights:
    """down(activation(up(x))), or with a gate down(activation(gate(x)) · up(x)) (arXiv 2002.05202)."""

    up: LinearWeights
    down: LinearWeights
    gate: LinearWeights | None


@dataclass(frozen=True)
class BlockNorms:
    """The normalizations around a block: after(x + output(block(before(x)))). None leaves its argument unchanged."""

    before: NormWeights | None = None
    output: NormWeights | None = None
    after: NormWeights | None = None


@dataclass(frozen=True)
class LayerWeights:
    """One layer: an attention block, then a feed-forward block."""

    attention: AttentionWeights
    attention_norms: BlockNorms
    feed_forward: FeedForwardWeights
    feed_forward_norms: BlockNorms


@dataclass(frozen=True)
class TransformerWeights:
    """A transformer with its weights.

    Attributes:
        embeddings: The embeddings.
        layers: The layers in order.
        heads, key_heads: Number of heads of the queries, and of the keys and values.
        head_size: Coordinates of a head.
        score_scale: Factor of the products of queries and keys.
        activation: Activation of the feed-forward blocks.
        relative_bias: *Shape:* ``(buckets, heads)``: bias on attention scores by relative position, shared by
            all layers (MPNet), or None.
        final_norm: Normalization after the last layer, or None.
        is_causal: Whether tokens attend only to themselves and earlier tokens.
    """

    embeddings: EmbeddingWeights
    layers: tuple[LayerWeights, ...]
    heads: int
    key_heads: int
    head_size: int
    score_scale: float
    activation: HiddenActivation
    relative_bias: Floats | None
    final_norm: NormWeights | None
    is_causal: bool

    @property
    def hidden(self) -> int:
        return int(self.embeddings.words.shape[1])

    @property
    def is_rotary(self) -> bool:
        """Whether positions are rotations of the heads, not embeddings."""
        return self.embeddings.positions is None


@dataclass(frozen=True)
class StaticWeights:
    """The token vectors of a StaticEmbedding.

    Attributes:
        table: *Shape:* ``(vocabulary, hidden)``.
    """

    table: Floats


# The weights of a network whose graph is built from them.
EncoderWeights = TransformerWeights | StaticWeights


class ModuleWeights:
    """The tensors of a module's folder, in one or several safetensors files.

    Args:
        folder: Folder with `model.safetensors` or its shards.
        prefix: Prepended to every requested name (`bert.`, `model.`, …).

    Raises:
        BundleInvalid: the folder has no weights, or only pickled ones.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.folder = folder
        self._prefix = prefix
        self._places = {
            name: (file, entry) for file in find_weight_files(folder) for name, entry in read_header(file).items()
        }

    def with_prefix_of(self, suffix: str, known: Sequence[str]) -> ModuleWeights:
        """Return the same tensors, with the prefix of the only name that ends in `suffix`.

        The prefix in a checkpoint depends on the class that saved it: none, or one of the known ones.

        Raises:
            BundleInvalid: no name ends in `suffix`, several do, or transformers would ignore tensors with this prefix.
        """
        found = [name for name in self._places if name == suffix or name.endswith("." + suffix)]
        if len(found) != 1:
            raise BundleInvalid(
                f"{self.folder} holds {len(found)} tensors called {suffix}, expected one",
                "The weights are not those of the architecture that config.json names: copy the folder again.",
            )
        prefix = found[0].removesuffix(suffix)
        if prefix not in ("", *known):
            raise unexpected_prefix(self.folder, prefix)
        return ModuleWeights(self.folder, prefix)

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._places

    def integers(self, name: str) -> NDArray[np.int64]:
        """Read a tensor of 32-bit or 64-bit integers.

        Raises:
            BundleInvalid: the tensor has a different type.
        """
        file, entry = self._places[self._prefix + name]
        types = {"I64": "<i8", "I32": "<i4"}
        if entry["dtype"] not in types:
            raise BundleInvalid(f"the tensor {name} in {self.folder} is of type {entry['dtype']}", COPY_AGAIN)
        start, count = entry["data_offsets"][0], int(np.prod(entry["shape"]))
        return np.fromfile(file, types[entry["dtype"]], offset=start, count=count).astype(np.int64)

    def get(self, name: str, shape: tuple[int, ...] | None = None) -> Floats:
        """Read a tensor as float32.

        Args:
            name: Its name without the prefix.
            shape: The shape that it must have; None accepts any.

        Raises:
            BundleInvalid: the tensor is missing, has a different shape, or is not floating-point.
        """
        full = self._prefix + name
        if full not in self._places:
            raise BundleInvalid(
                f"the weights in {self.folder} lack the tensor {full}",
                "The download is incomplete or the weights belong to another architecture: copy the folder again.",
            )
        file, entry = self._places[full]
        actual = tuple(entry["shape"])
        if shape is not None and actual != shape:
            raise BundleInvalid(
                f"the tensor {full} in {self.folder} has shape {actual}, expected {shape}",
                "config.json and the weights do not belong together: copy the folder again.",
            )
        return read_tensor(file, full, entry)

    def round_to_type(self, name: str, value: float) -> float:
        """Round a number to the type in which a tensor is stored, as if the number were stored in the same file."""
        _, entry = self._places[self._prefix + name]
        if entry["dtype"] == "F16":
            return float(np.float16(value))
        if entry["dtype"] != "BF16":
            return float(np.float32(value))
        bits = int(np.array(value, np.float32).view(np.uint32))
        # Round to nearest, ties to even.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return float(np.array(rounded, np.uint32).view(np.float32))

    def linear(self, name: str, in_features: int, out_features: int, *, bias: bool = True) -> LinearWeights:
        """Read `name.weight`, stored as (out_features, in_features), and `name.bias` (zeros without one)."""
        weight = self.get(f"{name}.weight", (out_features, in_features)).T
        offset = self.get(f"{name}.bias", (out_features,)) if bias else np.zeros(out_features, np.float32)
        return LinearWeights(weight, offset)

    def norm(self, name: str, size: int, epsilon: float, *, bias: bool = True) -> NormWeights:
        """Read `name.weight` and `name.bias` of a layer normalization, or `gamma` and `beta` in old checkpoints."""
        # Checkpoints converted from the original TensorFlow release of BERT use the old names.
        old = f"{self._prefix}{name}.gamma" in self._places
        weight = self.get(f"{name}.{'gamma' if old else 'weight'}", (size,))
        offset = self.get(f"{name}.{'beta' if old else 'bias'}", (size,)) if bias else np.zeros_like(weight)
        return NormWeights(weight, offset, epsilon)


def read_static_weights(model: SentenceModel) -> StaticWeights:
    """Read the token vectors of a StaticEmbedding. In model2vec's format, tokens may share rows and have weights.

    Raises:
        BundleInvalid: the token vectors are missing or not floating-point.
    """
    tensors = ModuleWeights(model.transformer_folder)
    if "embedding.weight" in tensors:
        return StaticWeights(tensors.get("embedding.weight"))
    table = tensors.get("embeddings")
    if "mapping" in tensors:
        table = table[tensors.integers("mapping")]
    if "weights" in tensors:
        table = table * tensors.get("weights")[:, None]
    return StaticWeights(np.ascontiguousarray(table, dtype=np.float32))
