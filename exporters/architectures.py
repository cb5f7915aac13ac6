"""Architectures that the graph builder supports, and the tensor names each one uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from es_sbert.bundle.fingerprint import UNSUPPORTED_CONFIG_KEYS
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture
from es_sbert.exporters.transformer_weights import (
    EmbeddingWeights,
    HiddenActivation,
    LayerWeights,
    ModuleWeights,
    TransformerWeights,
)

_WORDS = "embeddings.word_embeddings.weight"
_DISTILBERT_EPSILON = 1e-12  # fixed in its code, absent from its config.json

# hidden_act as config.json writes it → what it computes.
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


@dataclass(frozen=True)
class ArchitectureSpec:
    """Names of tensors and settings of one architecture, and what is peculiar to it.

    Attributes:
        layer: Name of a layer, `{}` standing for its number.
        query, key, value, attention_output, attention_norm, intermediate, output, output_norm: Names in a layer.
        relative_bias: Name of the table of relative position biases, where there is one.
        token_types: Whether there are token type embeddings.
        padding_id: Padding token where positions count from behind it: the default of config.json's
            `pad_token_id`. None where positions count from 0.
        padding_id_fixed: The architecture's code does not read `pad_token_id`.
        epsilon: Of the norms, where config.json does not say.
        settings: Our name of a setting → its name in config.json.
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
    settings: dict[str, str] = field(
        default_factory=lambda: {
            "layers": "num_hidden_layers",
            "heads": "num_attention_heads",
            "hidden": "hidden_size",
            "intermediate": "intermediate_size",
            "activation": "hidden_act",
        }
    )


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
        epsilon=_DISTILBERT_EPSILON,
        settings={
            "layers": "n_layers",
            "heads": "n_heads",
            "hidden": "dim",
            "intermediate": "hidden_dim",
            "activation": "activation",
        },
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


def _unsupported(model: SentenceModel, what: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        f"{model.name}: no graph can be built from the weights of {what}",
        f"Known are {', '.join(ARCHITECTURES)}. The train extra can trace others: pip install 'es-sbert[train]'.",
    )


def read_transformer_weights(model: SentenceModel) -> TransformerWeights:
    """Load the weights of a model's transformer.

    Raises:
        UnsupportedArchitecture: the architecture, or a setting of its config.json, is none that the builder knows.
        BundleInvalid: a setting or tensor is missing or of the wrong shape.
    """
    layout, config = _check_supported(model)
    sizes = {
        ours: _read_size(model, config, theirs) for ours, theirs in layout.settings.items() if ours != "activation"
    }
    if sizes["hidden"] % sizes["heads"]:
        raise BundleInvalid(
            f"{model.name}: {sizes['hidden']} hidden units cannot be shared by {sizes['heads']} heads",
            "config.json was edited or is broken: copy the model folder again.",
        )
    tensors = ModuleWeights(model.transformer_folder).with_prefix_of(_WORDS)
    epsilon = layout.epsilon if layout.epsilon is not None else float(config.get("layer_norm_eps", 1e-12))
    layers = tuple(_read_layer(layout, tensors, number, sizes, epsilon) for number in range(sizes["layers"]))
    return TransformerWeights(
        heads=sizes["heads"],
        activation=_ACTIVATIONS[config.get(layout.settings["activation"], "gelu")],
        embeddings=_read_embeddings(model, layout, config, tensors, sizes["hidden"], epsilon),
        layers=layers,
        relative_bias=tensors.get(layout.relative_bias) if layout.relative_bias else None,
    )


def _check_supported(model: SentenceModel) -> tuple[ArchitectureSpec, dict[str, Any]]:
    """The layout of a model, once nothing in its config.json asks for more than the builder does."""
    config = model.transformer_config
    layout = ARCHITECTURES.get(model.architecture)
    if layout is None:
        raise _unsupported(model, f"the architecture {model.architecture!r}")
    if "auto_map" in config:
        raise _unsupported(model, f"a {model.architecture} whose code comes with the model (auto_map)")
    position = config.get("position_embedding_type") or "absolute"
    if position != "absolute":
        raise _unsupported(model, f"a {model.architecture} with {position!r} position embeddings")
    activation = config.get(layout.settings["activation"], "gelu")
    if activation not in _ACTIVATIONS:
        raise _unsupported(model, f"a {model.architecture} with the activation {activation!r}")
    for key in UNSUPPORTED_CONFIG_KEYS:
        if config.get(key):
            raise _unsupported(model, f"a {model.architecture} with {key}")
    return layout, config


def _read_size(model: SentenceModel, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise BundleInvalid(
            f"{model.transformer_folder / 'config.json'} has {key}: {value!r}, expected a positive number",
            "Copy or download the model folder again.",
        )
    return value


def _read_embeddings(
    model: SentenceModel,
    layout: ArchitectureSpec,
    config: dict[str, Any],
    tensors: ModuleWeights,
    hidden: int,
    epsilon: float,
) -> EmbeddingWeights:
    padding_id = layout.padding_id
    if padding_id is not None and not layout.padding_id_fixed:
        padding_id = int(config.get("pad_token_id", padding_id))
    positions = tensors.get("embeddings.position_embeddings.weight")
    room = positions.shape[0] - (0 if padding_id is None else padding_id + 1)
    if positions.shape[1] != hidden or room < model.max_tokens:
        raise BundleInvalid(
            f"{model.name} has {room} positions and is said to read {model.max_tokens} tokens",
            f"Set max_seq_length to at most {room} in sentence_bert_config.json.",
        )
    return EmbeddingWeights(
        words=tensors.get(_WORDS),
        positions=positions,
        token_type=tensors.get("embeddings.token_type_embeddings.weight")[0] if layout.token_types else None,
        norm=tensors.norm("embeddings.LayerNorm", hidden, epsilon),
        padding_id=padding_id,
    )


def _read_layer(
    layout: ArchitectureSpec, tensors: ModuleWeights, number: int, sizes: dict[str, int], epsilon: float
) -> LayerWeights:
    name = layout.layer.format(number)
    hidden, intermediate = sizes["hidden"], sizes["intermediate"]
    return LayerWeights(
        query=tensors.linear(f"{name}.{layout.query}", hidden, hidden),
        key=tensors.linear(f"{name}.{layout.key}", hidden, hidden),
        value=tensors.linear(f"{name}.{layout.value}", hidden, hidden),
        attention_output=tensors.linear(f"{name}.{layout.attention_output}", hidden, hidden),
        attention_norm=tensors.norm(f"{name}.{layout.attention_norm}", hidden, epsilon),
        intermediate=tensors.linear(f"{name}.{layout.intermediate}", hidden, intermediate),
        output=tensors.linear(f"{name}.{layout.output}", intermediate, hidden),
        output_norm=tensors.norm(f"{name}.{layout.output_norm}", hidden, epsilon),
    )
