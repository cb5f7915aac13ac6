"""Weights of transformers with rotary positions and gated feed-forward blocks, under one set of names.

`rotary_architectures` reads them. The graph builder and the numpy reference both use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from es_sbert.bundle.model_files import COPY_AGAIN
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.errors import BundleInvalid
from es_sbert.exporters.transformer_weights import (
    ACTIVATIONS,
    Floats,
    HiddenActivation,
    LinearWeights,
    ModuleWeights,
    NormWeights,
    StaticWeights,
    TransformerWeights,
    open_transformer_weights,
    read_size,
    read_word_embeddings,
    unsupported_architecture,
)


@dataclass(frozen=True)
class RotaryAttention:
    """The attention of one layer.

    Attributes:
        query, key, value: Products of a block's input. Keys and values may have fewer heads than queries; each then
            serves several consecutive query heads (arXiv 2305.13245).
        output: Product of the heads' results.
        query_norm, key_norm: Normalization of each head before its rotation, of *shape* ``(head_size,)``, or None.
        frequencies: *Shape:* ``(head_size / 2,)``: angle in radians from one position to the next, for the pair of
            coordinates i and i + head_size / 2.
        window: Greatest distance between tokens that attend to each other; None for no limit.
    """

    query: LinearWeights
    key: LinearWeights
    value: LinearWeights
    output: LinearWeights
    query_norm: NormWeights | None
    key_norm: NormWeights | None
    frequencies: Floats
    window: int | None


@dataclass(frozen=True)
class GatedFeedForward:
    """down(activation(gate(x)) · up(x))."""

    gate: LinearWeights
    up: LinearWeights
    down: LinearWeights


@dataclass(frozen=True)
class BlockNorms:
    """The normalizations around a block: after(x + output(block(before(x)))). None leaves its argument unchanged."""

    before: NormWeights | None = None
    output: NormWeights | None = None
    after: NormWeights | None = None


@dataclass(frozen=True)
class RotaryLayer:
    """One layer: an attention block, then a feed-forward block."""

    attention: RotaryAttention
    attention_norms: BlockNorms
    feed_forward: GatedFeedForward
    feed_forward_norms: BlockNorms


@dataclass(frozen=True)
class RotaryWeights:
    """A transformer with rotary positions.

    Attributes:
        words: *Shape:* ``(vocabulary, hidden)``.
        layers: The layers in order.
        heads, key_heads: Number of heads of the queries, and of the keys and values.
        head_size: Coordinates of a head, an even number.
        score_scale: Factor of the products of queries and keys.
        activation: Activation of the gate.
        embedding_scale: Factor of the token embeddings.
        token_type: *Shape:* ``(hidden,)``, the row of type 0, or None. Sentence encoders read one segment.
        embedding_norm, final_norm: Normalizations before the first layer and after the last one, or None.
        is_causal: Whether tokens attend only to themselves and earlier tokens.
    """

    words: Floats
    layers: tuple[RotaryLayer, ...]
    heads: int
    key_heads: int
    head_size: int
    score_scale: float
    activation: HiddenActivation
    embedding_scale: float = 1.0
    token_type: Floats | None = None
    embedding_norm: NormWeights | None = None
    final_norm: NormWeights | None = None
    is_causal: bool = False

    @property
    def hidden(self) -> int:
        return int(self.words.shape[1])


class RotaryReader:
    """Reads the settings and tensors of one model.

    Attributes:
        config: The contents of config.json.
        hidden, heads, intermediate: Hidden units, attention heads, and units of the feed-forward block.
        layer_numbers: Numbers of the layers.
    """

    def __init__(self, model: SentenceModel) -> None:
        self._model = model
        self.config = model.transformer_config
        self.hidden, self.heads, self.intermediate = (
            read_size(model, key) for key in ("hidden_size", "num_attention_heads", "intermediate_size")
        )
        self.layer_numbers = range(read_size(model, "num_hidden_layers"))
        if "max_position_embeddings" in self.config:
            read_size(model, "max_position_embeddings")
        self._tensors: ModuleWeights | None = None

    def open(self, words: str) -> Floats:
        """Read the token embeddings, and find the prefix of all tensor names by theirs."""
        self._tensors = open_transformer_weights(self._model, words)
        return read_word_embeddings(self._model, self.tensors, words)

    @property
    def tensors(self) -> ModuleWeights:
        assert self._tensors is not None, "opened with the name of the token embeddings"
        return self._tensors

    def head_size(self, stated: int | None) -> int:
        """Size of a head: the stated one, or the hidden units divided by the number of heads."""
        if stated is None and self.hidden % self.heads:
            raise self.invalid(f"{self.hidden} hidden units cannot be shared by {self.heads} heads")
        size = self.hidden // self.heads if stated is None else stated
        if size < 2 or size % 2:
            raise self.invalid(f"a head of {size} values, which cannot be rotated in pairs")
        return size

    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        stated = self.config.get("num_key_value_heads")
        heads = self.heads if stated is None else int(stated)
        if heads < 1 or self.heads % heads:
            raise self.invalid(f"{self.heads} query heads cannot share {heads} key heads")
        return heads

    def activation(self, key: str, default: str) -> HiddenActivation:
        name = self.config.get(key, default)
        if name not in ACTIVATIONS:
            raise unsupported_architecture(self._model, f"a {self._model.architecture} with the activation {name!r}")
        return ACTIVATIONS[name]

    def layer_types(self, default: Callable[[int], bool]) -> list[str]:
        """Return `full_attention` or `sliding_attention` for each layer.

        Args:
            default: Layer number → whether the layer has full attention; used if config.json does not list the types.
        """
        stated = self.config.get("layer_types")
        names = ("sliding_attention", "full_attention")
        if stated is None:
            return [names[default(number)] for number in self.layer_numbers]
        if (
            not isinstance(stated, list)
            or len(stated) != len(self.layer_numbers)
            or any(each not in names for each in stated)
        ):
            raise self.invalid(f"layer_types {stated!r} for {len(self.layer_numbers)} layers")
        return stated

    def frequencies(self, size: int, default: float, key: str = "rope_theta", layer_type: str | None = None) -> Floats:
        """Compute the rotary frequencies of a head.

        Args:
            size: Size of the head.
            default: Base of the angles if config.json does not state one.
            key: Name of the base in config.json, outside `rope_parameters`.
            layer_type: Type of layer whose parameters to read, if each type has its own.
        """
        config, theta = self.config, None
        parameters = config.get("rope_parameters")
        scaled = bool(config.get("rope_scaling"))
        if layer_type is not None and isinstance(parameters, dict):
            scaled = scaled or bool(parameters.keys() - {"full_attention", "sliding_attention"})
            parameters = parameters.get(layer_type)
        if isinstance(parameters, dict):
            scaled = scaled or bool(parameters.keys() - {"rope_theta", "rope_type", "type"})
            scaled = scaled or parameters.get("rope_type", parameters.get("type", "default")) != "default"
            theta = parameters.get("rope_theta")
        elif parameters is not None:
            raise self.invalid(f"rope_parameters {parameters!r}")
        if scaled:
            raise unsupported_architecture(self._model, f"a {self._model.architecture} with scaled rotary positions")
        theta = config.get(key, default) if theta is None else theta
        if not isinstance(theta, int | float) or isinstance(theta, bool) or theta <= 0:
            raise self.invalid(f"{key} {theta!r}, expected a positive number")
        exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
        frequencies: Floats = np.reciprocal(np.power(np.float32(theta), exponents, dtype=np.float32))
        return frequencies

    def layer_norm(self, name: str, epsilon: float, *, bias: bool = True) -> NormWeights:
        if bias:
            return self.tensors.norm(name, self.hidden, epsilon)
        weight = self.tensors.get(f"{name}.weight", (self.hidden,))
        return NormWeights(weight, np.zeros_like(weight), epsilon)

    def rms_norm(self, name: str, epsilon: float, *, size: int | None = None, offset: float = 0) -> NormWeights:
        """Read a root-mean-square normalization; `offset` is added to its weight."""
        weight = self.tensors.get(f"{name}.weight", (self.hidden if size is None else size,)) + np.float32(offset)
        return NormWeights(weight, np.zeros_like(weight), epsilon, is_rms=True)

    def products(
        self, layer: str, names: Sequence[str], parts: int, in_features: int, out_features: int, *, bias: bool = False
    ) -> list[LinearWeights]:
        """Read several products of the same input, stored separately or joined in one tensor."""
        linear = self.tensors.linear
        if len(names) == parts:
            return [linear(f"{layer}.{name}", in_features, out_features, bias=bias) for name in names]
        joint = linear(f"{layer}.{names[0]}", in_features, parts * out_features, bias=bias)
        weights = np.split(joint.weight, parts, axis=1)
        return [LinearWeights(*pair) for pair in zip(weights, np.split(joint.bias, parts), strict=True)]

    def attention(
        self,
        name: str,
        frequencies: Floats,
        *,
        size: int,
        key_heads: int,
        bias: bool,
        window: int | None,
        norm: Callable[[str], NormWeights] | None,
    ) -> RotaryAttention:
        """Read the attention of a layer whose tensors are named as in Llama.

        Args:
            name: Name of the module.
            frequencies: Frequencies of its rotation.
            size: Size of a head.
            key_heads: Number of heads of keys and values.
            bias: Whether its products have a bias.
            window: Greatest distance between tokens that attend to each other; None for no limit.
            norm: Reads the normalization of heads by its name; None if there is none.
        """
        queries, keys = self.heads * size, key_heads * size
        linear = self.tensors.linear
        return RotaryAttention(
            query=linear(f"{name}.q_proj", self.hidden, queries, bias=bias),
            key=linear(f"{name}.k_proj", self.hidden, keys, bias=bias),
            value=linear(f"{name}.v_proj", self.hidden, keys, bias=bias),
            output=linear(f"{name}.o_proj", queries, self.hidden, bias=bias),
            query_norm=None if norm is None else norm(f"{name}.q_norm"),
            key_norm=None if norm is None else norm(f"{name}.k_norm"),
            frequencies=frequencies,
            window=window,
        )

    def feed_forward(self, name: str, *, bias: bool = False) -> GatedFeedForward:
        """Read the feed-forward block of a layer whose tensors are named as in Llama."""
        linear = self.tensors.linear
        return GatedFeedForward(
            gate=linear(f"{name}.gate_proj", self.hidden, self.intermediate, bias=bias),
            up=linear(f"{name}.up_proj", self.hidden, self.intermediate, bias=bias),
            down=linear(f"{name}.down_proj", self.intermediate, self.hidden, bias=bias),
        )

    def invalid(self, what: str) -> BundleInvalid:
        return BundleInvalid(f"{self._model.transformer_folder / 'config.json'} states {what}", COPY_AGAIN)

    def refuse_token_types(self) -> None:
        """Reject a tokenizer that gives tokens a type other than 0."""
        if self._model.uses_token_types:
            raise unsupported_architecture(
                self._model, f"a {self._model.architecture} whose tokenizer gives tokens a type other than 0"
            )


# The weights of a network whose graph is built from them.
EncoderWeights = TransformerWeights | RotaryWeights | StaticWeights
