"""Weights of a transformer under one set of names, read from safetensors as float32.

The graph builder and the numpy reference both use them. Every supported architecture is a post-norm encoder (Vaswani
et al. 2017, arXiv 1706.03762; BERT, arXiv 1810.04805). They differ in their tensor names and in their position
embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.fingerprint import UNSUPPORTED_CONFIG_KEYS
from es_sbert.bundle.known_settings import CONFIGS, ROTARY_CONFIGS
from es_sbert.bundle.model_files import COPY_AGAIN, find_weight_files, read_header, read_tensor
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture
from es_sbert.installation import install_extra_command

Floats = NDArray[np.float32]


class HiddenActivation(StrEnum):
    """Activation between the two products of a feed-forward block."""

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
        positions: *Shape:* ``(positions, hidden)``.
        token_type: *Shape:* ``(hidden,)``, the row of type 0, or None. Sentence encoders read one segment.
        norm: Normalization of the sum.
        padding_id: None if positions count from 0. Otherwise the id of the padding token; the position of a token is
            then `padding_id` plus its rank (from 1) among the tokens that are not padding, as in RoBERTa.
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
        heads: Number of attention heads; `hidden` is a multiple of it.
        activation: Activation between the feed-forward products.
        embeddings: The embeddings.
        layers: The layers in order.
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

    def with_prefix_of(self, suffix: str) -> ModuleWeights:
        """Return the same tensors, with the prefix of the only name that ends in `suffix`.

        The prefix in a checkpoint depends on the class that saved it: none, `bert.`, `model.` or others.

        Raises:
            BundleInvalid: no name ends in `suffix`, or several do.
        """
        found = [name for name in self._places if name == suffix or name.endswith("." + suffix)]
        if len(found) != 1:
            raise BundleInvalid(
                f"{self.folder} holds {len(found)} tensors called {suffix}, expected one",
                "The weights are not those of the architecture that config.json names: copy the folder again.",
            )
        return ModuleWeights(self.folder, found[0].removesuffix(suffix))

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

    def norm(self, name: str, size: int, epsilon: float) -> NormWeights:
        """Read `name.weight` and `name.bias` of a layer normalization, or `gamma` and `beta` in old checkpoints."""
        # Checkpoints converted from the original TensorFlow release of BERT use the old names.
        old = f"{self._prefix}{name}.gamma" in self._places
        weight, bias = ("gamma", "beta") if old else ("weight", "bias")
        return NormWeights(self.get(f"{name}.{weight}", (size,)), self.get(f"{name}.{bias}", (size,)), epsilon)


_WORDS = "embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class StaticWeights:
    """The token vectors of a StaticEmbedding.

    Attributes:
        table: *Shape:* ``(vocabulary, hidden)``.
    """

    table: Floats


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


# `hidden_act` in config.json → the activation.
ACTIVATIONS = {
    "gelu": HiddenActivation.GELU,
    "gelu_python": HiddenActivation.GELU,
    "gelu_new": HiddenActivation.GELU_TANH,
    "gelu_fast": HiddenActivation.GELU_TANH,
    "gelu_pytorch_tanh": HiddenActivation.GELU_TANH,
    "relu": HiddenActivation.RELU,
    "silu": HiddenActivation.SILU,
    "swish": HiddenActivation.SILU,
}


@dataclass(frozen=True)
class ArchitectureSpec:
    """The names of an architecture's tensors and settings, and its other properties.

    Attributes:
        layer: Name of a layer, with `{}` in place of its number.
        query, key, value, attention_output, attention_norm, intermediate, output, output_norm: Names within a layer.
        relative_bias: Name of the table of relative position biases, or None.
        token_types: Whether there are token type embeddings.
        padding_id: Default of `pad_token_id` in config.json, if positions count from the id after it. None if positions
            count from 0.
        padding_id_fixed: Whether the architecture's code ignores `pad_token_id`.
        epsilon: Epsilon of the norms, if it is not in config.json.
        size_keys: Names in config.json of the number of layers, heads, hidden units and units between the products of a
            feed-forward block.
        activation_key: Name in config.json of the activation between these products.
    """

    layer: str = "encoder.layer.{}"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    intermediate: str = "intermediate.dense"
    output: str = "output.dense"
    output_norm: str = "output.LayerNorm"
    relative_bias: str | None = None
    token_types: bool = True
    padding_id: int | None = None
    padding_id_fixed: bool = False
    epsilon: float | None = None
    size_keys: Sequence[str] = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size")
    activation_key: str = "hidden_act"


_ROBERTA = ArchitectureSpec(padding_id=1)

ARCHITECTURES = {
    "bert": ArchitectureSpec(),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": ArchitectureSpec(
        layer="transformer.layer.{}",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_output="attention.out_lin",
        attention_norm="sa_layer_norm",
        intermediate="ffn.lin1",
        output="ffn.lin2",
        output_norm="output_layer_norm",
        token_types=False,
        epsilon=1e-12,  # fixed in its code, absent from its config.json
        size_keys=("n_layers", "n_heads", "dim", "hidden_dim"),
        activation_key="activation",
    ),
    "mpnet": ArchitectureSpec(
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        attention_output="attention.attn.o",
        attention_norm="attention.LayerNorm",
        relative_bias="encoder.relative_attention_bias.weight",
        token_types=False,
        padding_id=1,
        padding_id_fixed=True,
    ),
}


def unsupported_architecture(model: SentenceModel, what: str) -> UnsupportedArchitecture:
    known = ", ".join([*CONFIGS, *ROTARY_CONFIGS])
    return UnsupportedArchitecture(
        f"{model.name}: es-sbert cannot build a graph from the weights of {what}",
        f"Supported are {known}. Install the train extra, which can trace others: {install_extra_command('train')}",
    )


def read_transformer_weights(model: SentenceModel) -> TransformerWeights:
    """Load the weights of a model's transformer.

    Raises:
        UnsupportedArchitecture: the builder does not support the architecture or a setting in config.json.
        BundleInvalid: a setting or tensor is missing or of the wrong shape.
    """
    config = model.transformer_config
    architecture = _supported_architecture(model)
    layers, heads, hidden, intermediate = (read_size(model, key) for key in architecture.size_keys)
    if hidden % heads:
        raise BundleInvalid(
            f"{model.name}: {hidden} hidden units cannot be shared by {heads} heads",
            "config.json was edited or is broken: copy the model folder again.",
        )
    tensors = open_transformer_weights(model, _WORDS)
    epsilon = architecture.epsilon if architecture.epsilon is not None else float(config.get("layer_norm_eps", 1e-12))
    return TransformerWeights(
        heads=heads,
        activation=ACTIVATIONS[config.get(architecture.activation_key, "gelu")],
        embeddings=_read_embeddings(model, architecture, tensors, hidden, epsilon),
        layers=tuple(
            _read_layer(architecture, tensors, number, hidden, intermediate, epsilon) for number in range(layers)
        ),
        relative_bias=tensors.get(architecture.relative_bias) if architecture.relative_bias else None,
    )


def open_transformer_weights(model: SentenceModel, words: str) -> ModuleWeights:
    """Open the tensors of a model's transformer.

    Args:
        model: The model.
        words: Name of the token embeddings, by which the prefix of all names is found.

    Raises:
        BundleInvalid: the model has no weights, or no token embeddings of that name.
    """
    return ModuleWeights(model.transformer_folder).with_prefix_of(words)


def read_word_embeddings(model: SentenceModel, tensors: ModuleWeights, name: str) -> Floats:
    """Read the token embeddings, *shape* ``(vocabulary, hidden)``.

    Raises:
        BundleInvalid: the token embeddings are missing, or their number differs from the one in config.json.
    """
    words, stated = tensors.get(name), model.transformer_config.get("vocab_size")
    if stated is not None and stated != len(words):
        raise BundleInvalid(
            f"{model.name} has {len(words)} token embeddings, and config.json states a vocab_size of {stated}",
            COPY_AGAIN,
        )
    return words


def _supported_architecture(model: SentenceModel) -> ArchitectureSpec:
    """Check that the builder supports a model's config.json, and return the model's architecture."""
    config = model.transformer_config
    architecture = ARCHITECTURES.get(model.architecture)
    if architecture is None:
        raise unsupported_architecture(model, f"the architecture {model.architecture!r}")
    if "auto_map" in config:
        raise unsupported_architecture(model, f"a {model.architecture} whose code comes with the model (auto_map)")
    if model.uses_token_types and architecture.token_types:
        raise unsupported_architecture(
            model, f"a {model.architecture} whose tokenizer gives tokens a type other than 0"
        )
    position = config.get("position_embedding_type") or "absolute"
    if position != "absolute":
        raise unsupported_architecture(model, f"a {model.architecture} with {position!r} position embeddings")
    activation = config.get(architecture.activation_key, "gelu")
    if activation not in ACTIVATIONS:
        raise unsupported_architecture(model, f"a {model.architecture} with the activation {activation!r}")
    for key in UNSUPPORTED_CONFIG_KEYS:
        if config.get(key):
            raise unsupported_architecture(model, f"a {model.architecture} with {key}")
    return architecture


def read_size(model: SentenceModel, key: str) -> int:
    value = model.transformer_config.get(key)
    if not isinstance(value, int) or value < 1:
        raise BundleInvalid(
            f"{model.transformer_folder / 'config.json'} has {key}: {value!r}, expected a positive number", COPY_AGAIN
        )
    return value


def _read_embeddings(
    model: SentenceModel, architecture: ArchitectureSpec, tensors: ModuleWeights, hidden: int, epsilon: float
) -> EmbeddingWeights:
    padding_id = architecture.padding_id
    if padding_id is not None and not architecture.padding_id_fixed:
        padding_id = _stated_padding(model, padding_id)
    positions = tensors.get("embeddings.position_embeddings.weight")
    usable = positions.shape[0] - (0 if padding_id is None else padding_id + 1)
    if positions.shape[1] != hidden or usable < model.longest_input:
        raise BundleInvalid(
            f"{model.name} has {usable} positions, fewer than its maximum of {model.longest_input} tokens",
            f"Set max_seq_length to at most {usable} in sentence_bert_config.json.",
        )
    return EmbeddingWeights(
        words=read_word_embeddings(model, tensors, _WORDS),
        positions=positions,
        token_type=tensors.get("embeddings.token_type_embeddings.weight")[0] if architecture.token_types else None,
        norm=tensors.norm("embeddings.LayerNorm", hidden, epsilon),
        padding_id=padding_id,
    )


def _stated_padding(model: SentenceModel, default: int) -> int:
    value = model.transformer_config.get("pad_token_id", default)
    if not isinstance(value, int):
        raise BundleInvalid(f"{model.name} has no pad_token_id, from which its positions are counted", COPY_AGAIN)
    return value


def _read_layer(
    architecture: ArchitectureSpec, tensors: ModuleWeights, number: int, hidden: int, intermediate: int, epsilon: float
) -> LayerWeights:
    name = architecture.layer.format(number)
    return LayerWeights(
        query=tensors.linear(f"{name}.{architecture.query}", hidden, hidden),
        key=tensors.linear(f"{name}.{architecture.key}", hidden, hidden),
        value=tensors.linear(f"{name}.{architecture.value}", hidden, hidden),
        attention_output=tensors.linear(f"{name}.{architecture.attention_output}", hidden, hidden),
        attention_norm=tensors.norm(f"{name}.{architecture.attention_norm}", hidden, epsilon),
        intermediate=tensors.linear(f"{name}.{architecture.intermediate}", hidden, intermediate),
        output=tensors.linear(f"{name}.{architecture.output}", intermediate, hidden),
        output_norm=tensors.norm(f"{name}.{architecture.output_norm}", hidden, epsilon),
    )
