"""Architectures whose graphs are built from the weights: the names of their tensors, and the settings that they read.

BERT and its kin are post-norm encoders (Vaswani et al. 2017, arXiv 1706.03762; BERT, arXiv 1810.04805). ModernBERT
(arXiv 2412.13663), Nomic Embed (arXiv 2402.01613), GTE (arXiv 2407.19669), EuroBERT (arXiv 2503.05500), Qwen 3
Embedding (arXiv 2506.05176) and EmbeddingGemma (arXiv 2509.20354) rotate queries and keys by an angle that grows with
the position, and gate their feed-forward blocks. `architectures.json` has an `ArchitectureSpec` of each; settings and
their defaults are those of transformers 5.23.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from es_sbert.bundle.fingerprint import UNSUPPORTED_CONFIG_KEYS
from es_sbert.bundle.known_settings import ROTARY_CONFIGS, check_settings
from es_sbert.bundle.model_files import COPY_AGAIN
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting
from es_sbert.exporters.transformer_weights import (
    AttentionWeights,
    BlockNorms,
    EmbeddingWeights,
    FeedForwardWeights,
    Floats,
    HiddenActivation,
    LayerWeights,
    LinearWeights,
    ModuleWeights,
    NormWeights,
    TransformerWeights,
)
from es_sbert.installation import install_extra_command

# Names of activations in config.json.
_ACTIVATIONS = {
    "gelu": HiddenActivation.GELU,
    "gelu_python": HiddenActivation.GELU,
    "gelu_new": HiddenActivation.GELU_TANH,
    "gelu_fast": HiddenActivation.GELU_TANH,
    "gelu_pytorch_tanh": HiddenActivation.GELU_TANH,
    "relu": HiddenActivation.RELU,
    "silu": HiddenActivation.SILU,
    "swish": HiddenActivation.SILU,
}

_ATTENTION = ("query", "key", "value", "output")
_FEED_FORWARD = ("gate", "up", "down")
_HEAD_NORMS = ("query", "key")
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class TensorNames:
    """Names of tensors, without `.weight` and `.bias`.

    Attributes:
        layer: Name of a layer, with `{}` in place of its number.
        products: Maps products of a layer to their names in it. Products that share a tensor are in one key, in order.
        norms: Maps norms of a layer to their names in it: those around each block (`BlockNorms`), and of each head.
        words: Name of the token embeddings.
        embedding_norm, final_norm: Norms before the first layer and after the last one; empty if there are none.
    """

    layer: str
    products: Mapping[str, str]
    norms: Mapping[str, str]
    words: str = "embeddings.word_embeddings"
    embedding_norm: str = "embeddings.LayerNorm"
    final_norm: str = ""


@dataclass(frozen=True)
class ArchitectureSpec:
    """An architecture.

    Attributes:
        names: Names of its tensors.
        prefixes: What transformers accepts in front of all of these names.
        native_names: Names in the network of transformers, if files have either these or those of the original code.
        defaults: The settings in config.json that may be missing, with their defaults.
        sizes: Settings with the number of layers, heads, hidden units and units between the products of a feed-forward
            block.
        activation: Setting with the activation.
        epsilon: Setting with the epsilon of the norms, or the epsilon itself.
        biased: Products that have a bias; `attention_bias` and `mlp_bias` in config.json add others.
        token_types: Whether there are token type embeddings.
        padding_id: Default of `pad_token_id` in config.json, if positions count from the id after it. None if positions
            count from 0.
        padding_id_fixed: Whether the architecture's code ignores `pad_token_id`.
        relative_bias: Name of the table of relative position biases, or None.
        thetas: Settings with the base of the rotary angles, by the type of layer, or one for all under the empty name.
            Without them, positions are embeddings.
        window: Setting with the width of the window in layers that do not attend to the whole text, which `layer_types`
            in config.json lists. If it does not, such layers are those after the first (`full_first` has the setting
            with their number), or those whose number plus `full_offset` is not divisible by the setting `full_every`.
        is_causal: Whether tokens attend only to themselves and earlier tokens.
        rms_offset: Added to the weights of root-mean-square norms; None for layer norms.
        has_first_norm: Whether the first layer has a norm before its attention.
        scales_embeddings: Whether token embeddings are multiplied by the root of their width.
    """

    names: TensorNames
    prefixes: Sequence[str] = ()
    native_names: TensorNames | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sizes: Sequence[str] = ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size")
    activation: str = "hidden_act"
    epsilon: str | float = "layer_norm_eps"
    biased: Sequence[str] = ()
    token_types: bool = False
    padding_id: int | None = None
    padding_id_fixed: bool = False
    relative_bias: str | None = None
    thetas: Mapping[str, str] = field(default_factory=dict)
    window: str = ""
    full_first: str = ""
    full_every: str = ""
    full_offset: int = 0
    is_causal: bool = False
    rms_offset: float | None = None
    has_first_norm: bool = True
    scales_embeddings: bool = False


def _read_specs() -> dict[str, ArchitectureSpec]:
    specs: dict[str, ArchitectureSpec] = {}
    for name, entry in json.loads(Path(__file__).with_name("architectures.json").read_text(encoding="utf-8")).items():
        for key in entry.keys() & {"names", "native_names"}:
            entry[key] = TensorNames(**entry[key])
        like = entry.pop("like", None)
        specs[name] = ArchitectureSpec(**entry) if like is None else replace(specs[like], **entry)
    return specs


ARCHITECTURES = _read_specs()


def unsupported_architecture(model: SentenceModel, what: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        f"{model.name}: es-sbert cannot build a graph from the weights of {what}",
        f"Supported are {', '.join(ARCHITECTURES)}. Install the train extra, which can trace others: "
        f"{install_extra_command('train')}",
    )


def read_transformer_weights(model: SentenceModel) -> TransformerWeights:
    """Load the weights of a model's transformer.

    Raises:
        UnsupportedArchitecture: es-sbert cannot build a graph for the architecture or for a setting in config.json.
        BundleInvalid: a setting or tensor is missing or of the wrong shape.
    """
    return _Reader(model, _supported_architecture(model)).read()


def _supported_architecture(model: SentenceModel) -> ArchitectureSpec:
    """Check that a graph can be built for the settings in a model's config.json, and return its architecture."""
    config, name = model.transformer_config, model.architecture
    spec = ARCHITECTURES.get(name)
    if spec is None:
        raise unsupported_architecture(model, f"the architecture {name!r}")
    if name in ROTARY_CONFIGS:
        # Tables of the other architectures are checked when the folder is read.
        try:
            path = model.transformer_folder / "config.json"
            check_settings(path, config, name, model.ignored_settings)
        except UnsupportedSetting as error:
            raise UnsupportedArchitecture(
                error.message,
                f"{error.remedy} Or install the train extra, which can trace it: {install_extra_command('train')}",
            ) from error
    elif "auto_map" in config:
        raise unsupported_architecture(model, f"a {name} whose code comes with the model (auto_map)")
    elif (position := config.get("position_embedding_type") or "absolute") != "absolute":
        raise unsupported_architecture(model, f"a {name} with {position!r} position embeddings")
    if model.uses_token_types and spec.token_types:
        raise unsupported_architecture(model, f"a {name} whose tokenizer gives tokens a type other than 0")
    for key in UNSUPPORTED_CONFIG_KEYS:
        if config.get(key):
            raise unsupported_architecture(model, f"a {name} with {key}")
    # Only decoders read the setting.
    if spec.is_causal and not config.get("is_causal", True):
        raise unsupported_architecture(model, f"a {name} that is not causal")
    return spec


class _Reader:
    """Reads the weights of one transformer by the rules of its architecture."""

    def __init__(self, model: SentenceModel, spec: ArchitectureSpec) -> None:
        self._model = model
        self._spec = spec
        self._layers, self._heads, self._hidden, self._intermediate = map(self._read_size, spec.sizes)
        if spec.thetas and "max_position_embeddings" in model.transformer_config:
            self._read_size("max_position_embeddings")
        self._key_heads = self._read_key_heads()
        self._head_size = self._read_head_size()
        self._epsilon = float(self._get(spec.epsilon) if isinstance(spec.epsilon, str) else spec.epsilon)
        self._is_causal = spec.is_causal and not self._get("use_bidirectional_attention")
        self._biased = {
            *spec.biased,
            *(_ATTENTION if self._get("attention_bias") else ()),
            *(_FEED_FORWARD if self._get("mlp_bias") else ()),
        }

    def read(self) -> TransformerWeights:
        """Read the settings, and then the tensors."""
        spec, model = self._spec, self._model
        activation = self._get(spec.activation)
        if activation not in _ACTIVATIONS:
            raise unsupported_architecture(model, f"a {model.architecture} with the activation {activation!r}")
        scalar = self._get("query_pre_attn_scalar") if "query_pre_attn_scalar" in spec.defaults else self._head_size
        if not isinstance(scalar, int | float) or scalar <= 0:
            raise self._invalid(f"query_pre_attn_scalar {scalar!r}")
        rotations = self._rotations()
        tensors = ModuleWeights(model.transformer_folder).with_prefix_of(f"{spec.names.words}.weight", spec.prefixes)
        native = spec.native_names
        is_native = native is not None and f"{native.layer.format(0)}.{native.products['output']}.weight" in tensors
        names = native if native is not None and is_native else spec.names
        return TransformerWeights(
            embeddings=self._read_embeddings(tensors, names),
            layers=tuple(
                self._read_layer(tensors, names, number, *rotation) for number, rotation in enumerate(rotations)
            ),
            heads=self._heads,
            key_heads=self._key_heads,
            head_size=self._head_size,
            score_scale=float(scalar**-0.5),
            activation=_ACTIVATIONS[activation],
            relative_bias=tensors.get(spec.relative_bias) if spec.relative_bias else None,
            final_norm=self._read_norm(tensors, names.final_norm, self._hidden),
            is_causal=self._is_causal,
        )

    def _get(self, key: str) -> Any:
        defaults = self._spec.defaults
        return self._model.transformer_config.get(key, defaults[key]) if key in defaults else None

    def _read_size(self, key: str) -> int:
        value = self._model.transformer_config.get(key)
        if not isinstance(value, int) or value < 1:
            raise BundleInvalid(f"{self._path} has {key}: {value!r}, expected a positive number", COPY_AGAIN)
        return value

    def _read_key_heads(self) -> int:
        stated = self._get("num_key_value_heads")
        heads = self._heads if stated is None else int(stated)
        if heads < 1 or self._heads % heads:
            raise self._invalid(f"{self._heads} query heads, which cannot share {heads} key heads")
        return heads

    def _read_head_size(self) -> int:
        stated = self._get("head_dim")
        if stated is None and self._hidden % self._heads:
            raise self._invalid(f"{self._hidden} hidden units, which cannot be shared by {self._heads} heads")
        size: int = self._hidden // self._heads if stated is None else stated
        if self._spec.thetas and (size < 2 or size % 2):
            raise self._invalid(f"a head of {size} values, which cannot be rotated in pairs")
        return size

    def _rotations(self) -> list[tuple[Floats | None, int | None]]:
        """The rotary frequencies and the window of each layer."""
        spec = self._spec
        if not spec.thetas:
            return [(None, None)] * self._layers
        frequencies = {kind: self._frequencies(kind, key) for kind, key in spec.thetas.items()}
        window = self._window()
        types = self._layer_types(window)
        if _SLIDING in types and window is None:
            raise self._invalid("layers with sliding attention, but no window")
        return [
            (frequencies[kind if kind in frequencies else ""], window if kind == _SLIDING else None) for kind in types
        ]

    def _window(self) -> int | None:
        """Greatest distance between tokens that attend to each other in layers with sliding attention."""
        width = self._get(self._spec.window)
        if width is None or self._get("use_sliding_window") is False:
            return None
        # In a causal model, the width counts the token itself; otherwise it is that of both sides.
        return int(width) - 1 if self._is_causal else int(width) // 2

    def _layer_types(self, window: int | None) -> list[str]:
        """`full_attention` or `sliding_attention` for each layer."""
        spec = self._spec
        stated, numbers = self._model.transformer_config.get("layer_types"), range(self._layers)
        every, first = self._get(spec.full_every), self._get(spec.full_first)
        if not spec.window or (first is not None and window is None and stated is None):
            return [_FULL for _ in numbers]
        if every is not None and every < 1:
            raise self._invalid(f"{spec.full_every} {every!r}")
        if stated is None:
            are_full = (
                number < first if every is None else (number + spec.full_offset) % every == 0 for number in numbers
            )
            return [_FULL if is_full else _SLIDING for is_full in are_full]
        if (
            not isinstance(stated, list)
            or len(stated) != self._layers
            or any(each not in (_FULL, _SLIDING) for each in stated)
        ):
            raise self._invalid(f"layer_types {stated!r} for {self._layers} layers")
        return stated

    def _frequencies(self, layer_type: str, key: str) -> Floats:
        """Compute the rotary frequencies of a head, for a type of layer if each type has its own."""
        config, theta = self._model.transformer_config, None
        parameters = config.get("rope_parameters")
        scaled = bool(config.get("rope_scaling"))
        if layer_type and isinstance(parameters, dict):
            scaled = scaled or bool(parameters.keys() - {_FULL, _SLIDING})
            parameters = parameters.get(layer_type)
        if isinstance(parameters, dict):
            scaled = scaled or bool(parameters.keys() - {"rope_theta", "rope_type", "type"})
            scaled = scaled or parameters.get("rope_type", parameters.get("type", "default")) != "default"
            theta = parameters.get("rope_theta")
        elif parameters is not None:
            raise self._invalid(f"rope_parameters {parameters!r}")
        if scaled:
            name = self._model.architecture
            raise unsupported_architecture(self._model, f"a {name} with scaled rotary positions")
        theta = self._get(key) if theta is None else theta
        if not isinstance(theta, int | float) or isinstance(theta, bool) or theta <= 0:
            raise self._invalid(f"{key} {theta!r}, expected a positive number")
        exponents = np.arange(0, self._head_size, 2, dtype=np.float32) / np.float32(self._head_size)
        frequencies: Floats = np.reciprocal(np.power(np.float32(theta), exponents, dtype=np.float32))
        return frequencies

    def _read_embeddings(self, tensors: ModuleWeights, names: TensorNames) -> EmbeddingWeights:
        spec, model = self._spec, self._model
        words, stated = tensors.get(f"{names.words}.weight"), model.transformer_config.get("vocab_size")
        if stated is not None and stated != len(words):
            raise BundleInvalid(
                f"{model.name} has {len(words)} token embeddings, and config.json states a vocab_size of {stated}",
                COPY_AGAIN,
            )
        padding_id, positions = spec.padding_id, None
        if padding_id is not None and not spec.padding_id_fixed:
            padding_id = self._stated_padding(padding_id)
        if not spec.thetas:
            positions = tensors.get("embeddings.position_embeddings.weight")
            usable = positions.shape[0] - (0 if padding_id is None else padding_id + 1)
            if positions.shape[1] != self._hidden or usable < model.longest_input:
                raise BundleInvalid(
                    f"{model.name} has {usable} positions, fewer than its maximum of {model.longest_input} tokens",
                    f"Set max_seq_length to at most {usable} in sentence_bert_config.json.",
                )
        types = self._get("type_vocab_size")
        has_types = spec.token_types and (types is None or types > 0)
        return EmbeddingWeights(
            words=words,
            scale=tensors.round_to_type(f"{names.words}.weight", self._hidden**0.5) if spec.scales_embeddings else 1.0,
            positions=positions,
            token_type=tensors.get("embeddings.token_type_embeddings.weight")[0] if has_types else None,
            norm=self._read_norm(tensors, names.embedding_norm, self._hidden),
            padding_id=padding_id,
        )

    def _stated_padding(self, default: int) -> int:
        value = self._model.transformer_config.get("pad_token_id", default)
        if not isinstance(value, int):
            raise BundleInvalid(
                f"{self._model.name} has no pad_token_id, from which its positions are counted", COPY_AGAIN
            )
        return value

    def _read_layer(
        self, tensors: ModuleWeights, names: TensorNames, number: int, frequencies: Floats | None, window: int | None
    ) -> LayerWeights:
        layer = names.layer.format(number)
        products = self._read_products(tensors, layer, names)

        def norm(kind: str) -> NormWeights | None:
            if kind not in names.norms or (kind == "attention before" and not (number or self._spec.has_first_norm)):
                return None
            size = self._head_size if kind in _HEAD_NORMS else self._hidden
            return self._read_norm(tensors, f"{layer}.{names.norms[kind]}", size)

        attention_norms, feed_forward_norms = (
            BlockNorms(*(norm(f"{block} {place}") for place in ("before", "output", "after")))
            for block in ("attention", "feed_forward")
        )
        return LayerWeights(
            AttentionWeights(
                **{part: products[part] for part in _ATTENTION},
                query_norm=norm("query"),
                key_norm=norm("key"),
                frequencies=frequencies,
                window=window,
            ),
            attention_norms,
            FeedForwardWeights(products["up"], products["down"], products.get("gate")),
            feed_forward_norms,
        )

    def _read_products(self, tensors: ModuleWeights, layer: str, names: TensorNames) -> dict[str, LinearWeights]:
        hidden, inner = self._hidden, self._intermediate
        queries, keys = self._heads * self._head_size, self._key_heads * self._head_size
        shapes = {
            "query": (hidden, queries), "key": (hidden, keys), "value": (hidden, keys), "output": (queries, hidden),
            "gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden),
        }  # fmt: skip
        products: dict[str, LinearWeights] = {}
        for parts, name in names.products.items():
            each = parts.split()
            ends = np.cumsum([shapes[part][1] for part in each])
            joint = tensors.linear(f"{layer}.{name}", shapes[each[0]][0], int(ends[-1]), bias=each[0] in self._biased)
            pieces = zip(np.split(joint.weight, ends[:-1], axis=1), np.split(joint.bias, ends[:-1]), strict=True)
            products |= {part: LinearWeights(*piece) for part, piece in zip(each, pieces, strict=True)}
        return products

    def _read_norm(self, tensors: ModuleWeights, name: str, size: int) -> NormWeights | None:
        """Read a norm; None if the name is empty."""
        if not name:
            return None
        if self._spec.rms_offset is None:
            return tensors.norm(name, size, self._epsilon, bias=self._get("norm_bias") is not False)
        weight = tensors.get(f"{name}.weight", (size,)) + np.float32(self._spec.rms_offset)
        return NormWeights(weight, np.zeros_like(weight), self._epsilon, is_rms=True)

    def _invalid(self, what: str) -> BundleInvalid:
        return BundleInvalid(f"{self._path} states {what}", COPY_AGAIN)

    @property
    def _path(self) -> str:
        return str(self._model.transformer_folder / "config.json")
