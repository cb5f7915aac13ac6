"""Architectures with rotary positions: the encoders after BERT.

ModernBERT, Nomic Embed, GTE, EuroBERT, Qwen 3 Embedding and EmbeddingGemma rotate queries and keys by an angle that
grows with the position (RoFormer, arXiv 2104.09864) and multiply two products in the feed-forward block
(arXiv 2002.05202). They differ in the places of their norms and in the tokens that a token attends to. Settings and
their defaults are read as in transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from es_sbert.bundle.fingerprint import UNSUPPORTED_CONFIG_KEYS
from es_sbert.bundle.known_settings import ROTARY_CONFIGS, check_settings
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.errors import UnsupportedArchitecture, UnsupportedSetting
from es_sbert.exporters.rotary_weights import (
    BlockNorms,
    GatedFeedForward,
    RotaryAttention,
    RotaryLayer,
    RotaryReader,
    RotaryWeights,
)
from es_sbert.exporters.transformer_weights import NormWeights, unsupported_architecture
from es_sbert.installation import install_extra_command


def read_rotary_weights(model: SentenceModel) -> RotaryWeights:
    """Load the weights of a model's transformer.

    Raises:
        UnsupportedArchitecture: es-sbert cannot build a graph for the architecture or for a setting in config.json.
        BundleInvalid: a setting or tensor is missing or of the wrong shape.
    """
    config, path = model.transformer_config, model.transformer_folder / "config.json"
    read, table = ROTARY_ARCHITECTURES.get(model.architecture), ROTARY_CONFIGS.get(model.architecture)
    if read is None or table is None:
        raise unsupported_architecture(model, f"the architecture {model.architecture!r}")
    try:
        check_settings(path, config, table, model.ignored_settings)
    except UnsupportedSetting as error:
        raise UnsupportedArchitecture(
            error.message,
            f"{error.remedy} Or install the train extra, which can trace it: {install_extra_command('train')}",
        ) from error
    for key in UNSUPPORTED_CONFIG_KEYS:
        if config.get(key):
            raise unsupported_architecture(model, f"a {model.architecture} with {key}")
    # Only these architectures, which are decoders, read the setting.
    if not config.get("is_causal", True) and model.architecture in ("qwen3", "gemma3_text"):
        raise unsupported_architecture(model, f"a {model.architecture} that is not causal")
    return read(RotaryReader(model))


def _read_modernbert(reader: RotaryReader) -> RotaryWeights:
    """ModernBERT (arXiv 2412.13663): norms before blocks, and sliding-window attention in two of three layers."""
    config, size = reader.config, reader.head_size(None)
    epsilon, norm_bias = config.get("norm_eps", 1e-5), bool(config.get("norm_bias", False))
    attention_bias, mlp_bias = bool(config.get("attention_bias", False)), bool(config.get("mlp_bias", False))
    every = config.get("global_attn_every_n_layers", 3)
    if every < 1:
        raise reader.invalid(f"global_attn_every_n_layers {every!r}")
    types = reader.layer_types(lambda number: number % every == 0)
    frequencies = {
        "full_attention": reader.frequencies(size, 160_000.0, "global_rope_theta", "full_attention"),
        "sliding_attention": reader.frequencies(size, 10_000.0, "local_rope_theta", "sliding_attention"),
    }
    words = reader.open("embeddings.tok_embeddings.weight")

    def read_layer(number: int) -> RotaryLayer:
        name, kind = f"layers.{number}", types[number]
        query, key, value = reader.products(name, ("attn.Wqkv",), 3, reader.hidden, reader.hidden, bias=attention_bias)
        gate, up = reader.products(name, ("mlp.Wi",), 2, reader.hidden, reader.intermediate, bias=mlp_bias)
        attention = RotaryAttention(
            query=query,
            key=key,
            value=value,
            output=reader.tensors.linear(f"{name}.attn.Wo", reader.hidden, reader.hidden, bias=attention_bias),
            query_norm=None,
            key_norm=None,
            frequencies=frequencies[kind],
            window=config.get("local_attention", 128) // 2 if kind == "sliding_attention" else None,
        )
        down = reader.tensors.linear(f"{name}.mlp.Wo", reader.intermediate, reader.hidden, bias=mlp_bias)
        # The first layer has no norm because the embeddings are already normalized.
        before = reader.layer_norm(f"{name}.attn_norm", epsilon, bias=norm_bias) if number else None
        return RotaryLayer(
            attention,
            BlockNorms(before=before),
            GatedFeedForward(gate, up, down),
            BlockNorms(before=reader.layer_norm(f"{name}.mlp_norm", epsilon, bias=norm_bias)),
        )

    return RotaryWeights(
        words=words,
        embedding_norm=reader.layer_norm("embeddings.norm", epsilon, bias=norm_bias),
        final_norm=reader.layer_norm("final_norm", epsilon, bias=norm_bias),
        layers=tuple(map(read_layer, reader.layer_numbers)),
        heads=reader.heads,
        key_heads=reader.heads,
        head_size=size,
        score_scale=size**-0.5,
        activation=reader.activation("hidden_activation", "gelu"),
    )


@dataclass(frozen=True)
class _PostNormNames:
    """Tensor names of an encoder with norms after each sum.

    `qkv` and `up_gate` are either several names or the name of one joint product, with its parts in that order.

    Attributes:
        embedding_norm: Name of the norm of the embeddings.
        layer: Name of a layer, with `{}` in place of its number.
        qkv, output, attention_norm, up_gate, down, feed_forward_norm: Names within a layer.
    """

    embedding_norm: str
    layer: str
    qkv: Sequence[str]
    output: str
    attention_norm: str
    up_gate: Sequence[str]
    down: str
    feed_forward_norm: str


# Names in the network of transformers. It also loads, and still writes, the names in the models' original code.
_NATIVE_NAMES = _PostNormNames(
    embedding_norm="embeddings.LayerNorm",
    layer="layers.{}",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.o_proj",
    attention_norm="post_attention_layernorm",
    up_gate=("mlp.up_proj", "mlp.gate_proj"),
    down="mlp.down_proj",
    feed_forward_norm="post_mlp_layernorm",
)
_NOMIC_NAMES = _PostNormNames(
    embedding_norm="emb_ln",
    layer="encoder.layers.{}",
    qkv=("attn.Wqkv",),
    output="attn.out_proj",
    attention_norm="norm1",
    up_gate=("mlp.fc11", "mlp.fc12"),
    down="mlp.fc2",
    feed_forward_norm="norm2",
)
_GTE_NAMES = _PostNormNames(
    embedding_norm="embeddings.LayerNorm",
    layer="encoder.layer.{}",
    qkv=("attention.qkv_proj",),
    output="attention.o_proj",
    attention_norm="attn_ln",
    up_gate=("mlp.up_gate_proj",),
    down="mlp.down_proj",
    feed_forward_norm="mlp_ln",
)


def _read_post_norm(
    reader: RotaryReader, *, size: int, theta: float, activation: str, bias: bool, first_names: _PostNormNames
) -> RotaryWeights:
    """Read an encoder with norms after each sum, as in BERT (Nomic, GTE)."""
    reader.refuse_token_types()
    epsilon = reader.config.get("layer_norm_eps", 1e-12)
    frequencies = reader.frequencies(size, theta)
    words = reader.open("embeddings.word_embeddings.weight")
    has_types = reader.config.get("type_vocab_size", 1) > 0
    is_native = f"{_NATIVE_NAMES.layer.format(0)}.{_NATIVE_NAMES.output}.weight" in reader.tensors
    names = _NATIVE_NAMES if is_native else first_names
    width = reader.heads * size

    def read_layer(number: int) -> RotaryLayer:
        layer = names.layer.format(number)
        query, key, value = reader.products(layer, names.qkv, 3, reader.hidden, width, bias=bias)
        up, gate = reader.products(layer, names.up_gate, 2, reader.hidden, reader.intermediate)
        linear = reader.tensors.linear
        output = linear(f"{layer}.{names.output}", width, reader.hidden, bias=bias)
        down = linear(f"{layer}.{names.down}", reader.intermediate, reader.hidden, bias=bias)
        return RotaryLayer(
            RotaryAttention(query, key, value, output, None, None, frequencies, None),
            BlockNorms(after=reader.layer_norm(f"{layer}.{names.attention_norm}", epsilon)),
            GatedFeedForward(gate, up, down),
            BlockNorms(after=reader.layer_norm(f"{layer}.{names.feed_forward_norm}", epsilon)),
        )

    return RotaryWeights(
        words=words,
        token_type=reader.tensors.get("embeddings.token_type_embeddings.weight")[0] if has_types else None,
        embedding_norm=reader.layer_norm(names.embedding_norm, epsilon),
        layers=tuple(map(read_layer, reader.layer_numbers)),
        heads=reader.heads,
        key_heads=reader.heads,
        head_size=size,
        score_scale=size**-0.5,
        activation=reader.activation("hidden_act", activation),
    )


def _read_nomic(reader: RotaryReader) -> RotaryWeights:
    """Nomic Embed (arXiv 2402.01613)."""
    size = reader.head_size(reader.config.get("head_dim"))
    return _read_post_norm(reader, size=size, theta=1_000.0, activation="silu", bias=False, first_names=_NOMIC_NAMES)


def _read_gte(reader: RotaryReader) -> RotaryWeights:
    """GTE (mGTE, arXiv 2407.19669)."""
    size = reader.head_size(None)
    return _read_post_norm(reader, size=size, theta=160_000.0, activation="gelu", bias=True, first_names=_GTE_NAMES)


def _read_eurobert(reader: RotaryReader) -> RotaryWeights:
    """EuroBERT (arXiv 2503.05500): the layers of Llama without its causal mask."""
    return _read_llama(reader, size=reader.head_size(reader.config.get("head_dim")), epsilon=1e-5, is_causal=False)


def _read_qwen3(reader: RotaryReader) -> RotaryWeights:
    """Qwen 3 Embedding (arXiv 2506.05176): a causal model with normalized heads."""
    config = reader.config
    is_sliding = bool(config.get("use_sliding_window", False)) and config.get("sliding_window", 4096) is not None
    first = config.get("max_window_layers", 28)
    types = reader.layer_types(lambda number: not (is_sliding and number >= first))
    if "sliding_attention" in types and not is_sliding:
        raise reader.invalid("layer_types with sliding_attention, but no window")
    size = reader.head_size(config.get("head_dim", 128))
    # The setting counts the token itself as well.
    windows = [config.get("sliding_window", 4096) - 1 if kind == "sliding_attention" else None for kind in types]
    return _read_llama(reader, size=size, epsilon=1e-6, is_causal=True, windows=windows, normalized_heads=True)


def _read_llama(
    reader: RotaryReader,
    *,
    size: int,
    epsilon: float,
    is_causal: bool,
    windows: Sequence[int | None] | None = None,
    normalized_heads: bool = False,
) -> RotaryWeights:
    """Read a model with the layers of Llama: root-mean-square norms before blocks."""
    config, key_heads = reader.config, reader.key_heads()
    epsilon, bias = config.get("rms_norm_eps", epsilon), bool(config.get("attention_bias", False))
    frequencies = reader.frequencies(size, 10_000.0)
    words = reader.open("embed_tokens.weight")

    def read_layer(number: int) -> RotaryLayer:
        name = f"layers.{number}"
        attention = reader.attention(
            f"{name}.self_attn",
            frequencies,
            size=size,
            key_heads=key_heads,
            bias=bias,
            window=None if windows is None else windows[number],
            norm=(lambda norm: reader.rms_norm(norm, epsilon, size=size)) if normalized_heads else None,
        )
        return RotaryLayer(
            attention,
            BlockNorms(before=reader.rms_norm(f"{name}.input_layernorm", epsilon)),
            reader.feed_forward(f"{name}.mlp", bias=bool(config.get("mlp_bias", False))),
            BlockNorms(before=reader.rms_norm(f"{name}.post_attention_layernorm", epsilon)),
        )

    return RotaryWeights(
        words=words,
        final_norm=reader.rms_norm("norm", epsilon),
        layers=tuple(map(read_layer, reader.layer_numbers)),
        heads=reader.heads,
        key_heads=key_heads,
        head_size=size,
        score_scale=size**-0.5,
        is_causal=is_causal,
        activation=reader.activation("hidden_act", "silu"),
    )


def _read_gemma3(reader: RotaryReader) -> RotaryWeights:
    """Gemma 3 (arXiv 2503.19786) and EmbeddingGemma (arXiv 2509.20354), which attends in both directions."""
    config, key_heads, size = reader.config, reader.key_heads(), reader.head_size(reader.config.get("head_dim", 256))
    epsilon, bias = config.get("rms_norm_eps", 1e-6), bool(config.get("attention_bias", False))
    is_causal = not config.get("use_bidirectional_attention", False)
    # A setting of older files, which transformers reads too.
    every = config.get("sliding_window_pattern", 6)
    if every < 1:
        raise reader.invalid(f"sliding_window_pattern {every!r}")
    types = reader.layer_types(lambda number: (number + 1) % every == 0)
    stated = config.get("sliding_window", 4096)
    if stated is None and "sliding_attention" in types:
        raise reader.invalid("layers with sliding attention, but no window")
    frequencies = {
        "full_attention": reader.frequencies(size, 1_000_000.0, "rope_theta", "full_attention"),
        "sliding_attention": reader.frequencies(size, 10_000.0, "rope_local_base_freq", "sliding_attention"),
    }
    words = reader.open("embed_tokens.weight")

    def rms_norm(name: str, norm_size: int | None = None) -> NormWeights:
        # The weights are stored as differences from 1.
        return reader.rms_norm(name, epsilon, size=norm_size, offset=1)

    def read_layer(number: int) -> RotaryLayer:
        name, kind = f"layers.{number}", types[number]
        # For attention in both directions, the setting is the width of the whole window; a causal window counts the
        # token itself.
        window = None if kind == "full_attention" else stated - 1 if is_causal else stated // 2
        attention = reader.attention(
            f"{name}.self_attn",
            frequencies[kind],
            size=size,
            key_heads=key_heads,
            bias=bias,
            window=window,
            norm=lambda norm: rms_norm(norm, size),
        )
        return RotaryLayer(
            attention,
            BlockNorms(rms_norm(f"{name}.input_layernorm"), rms_norm(f"{name}.post_attention_layernorm")),
            reader.feed_forward(f"{name}.mlp"),
            BlockNorms(rms_norm(f"{name}.pre_feedforward_layernorm"), rms_norm(f"{name}.post_feedforward_layernorm")),
        )

    return RotaryWeights(
        words=words,
        embedding_scale=reader.tensors.round_to_type("embed_tokens.weight", reader.hidden**0.5),
        final_norm=rms_norm("norm"),
        layers=tuple(map(read_layer, reader.layer_numbers)),
        heads=reader.heads,
        key_heads=key_heads,
        head_size=size,
        score_scale=_inverse_root(reader, config.get("query_pre_attn_scalar", 256)),
        is_causal=is_causal,
        activation=reader.activation("hidden_activation", "gelu_pytorch_tanh"),
    )


def _inverse_root(reader: RotaryReader, scalar: Any) -> float:
    if not isinstance(scalar, int | float) or scalar <= 0:
        raise reader.invalid(f"query_pre_attn_scalar {scalar!r}")
    return float(scalar**-0.5)


ROTARY_ARCHITECTURES: dict[str, Callable[[RotaryReader], RotaryWeights]] = {
    "modernbert": _read_modernbert,
    "nomic_bert": _read_nomic,
    "gte": _read_gte,
    "eurobert": _read_eurobert,
    "qwen3": _read_qwen3,
    "gemma3_text": _read_gemma3,
}
