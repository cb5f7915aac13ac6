"""The modules of a sentence-transformers folder: the list in modules.json, pooling, and the modules after it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from es_sbert.bundle.known_settings import DENSE, MODULE_ENTRY, NORMALIZE, POOLING, check_settings
from es_sbert.bundle.model_files import (
    COPY_AGAIN,
    find_weight_files,
    read_header,
    read_json,
    read_module_entries,
    read_optional_json,
)
from es_sbert.bundle.transformer_settings import SENTENCE_BERT_CONFIG_FILES, hidden_width
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting

# Name of the module that is a table of token vectors, without a network.
STATIC = "StaticEmbedding"


class Pooling(StrEnum):
    """How token vectors become one sentence vector (names as in sentence-transformers)."""

    CLS = "cls"
    MAX = "max"
    MEAN = "mean"
    MEAN_SQRT_LEN = "mean_sqrt_len_tokens"
    WEIGHTEDMEAN = "weightedmean"
    LASTTOKEN = "lasttoken"


class Activation(StrEnum):
    """Activation after a Dense module."""

    IDENTITY = "identity"
    TANH = "tanh"
    RELU = "relu"
    GELU = "gelu"
    SILU = "silu"
    SIGMOID = "sigmoid"
    MISH = "mish"
    ELU = "elu"
    SELU = "selu"
    LEAKY_RELU = "leakyrelu"
    SOFTPLUS = "softplus"
    SOFTSIGN = "softsign"
    HARD_SWISH = "hardswish"
    RELU6 = "relu6"


class Dense(BaseModel, frozen=True):
    """A Dense module: y = activation(x Wᵀ + b).

    Attributes:
        folder: The module's folder, relative to the model folder; its `model.safetensors` holds
            `linear.weight` of shape (out_features, in_features) and, with bias, `linear.bias`.
    """

    folder: str
    in_features: int
    out_features: int
    bias: bool
    activation: Activation


@dataclass(frozen=True)
class InputModule:
    """The first modules of a model, which make a vector of a text.

    Attributes:
        settings: The settings of a `SentenceModel` that they decide.
        width: Length of the vector.
        tokenizer: Parsed tokenizer.json.
        weights_hash: Hash of their tensors.
        fingerprint_fields: Settings of the `SentenceModel` that its fingerprint has besides those of all models.
        fingerprint_settings: More settings of the fingerprint.
    """

    settings: dict[str, Any]
    width: int
    tokenizer: dict[str, Any]
    weights_hash: str
    fingerprint_fields: tuple[str, ...]
    fingerprint_settings: dict[str, Any] = field(default_factory=dict)


# Flags of a pooling configuration, in sentence-transformers' order. Its versions before 5.2 read and write only these,
# so saved models have them too: a new mode needs one.
POOLING_MODE_FLAGS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": Pooling.WEIGHTEDMEAN,
    "pooling_mode_lasttoken": Pooling.LASTTOKEN,
}

# Names of torch's classes, as configurations have them.
_ACTIVATION_NAMES = (
    "Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "Mish", "ELU", "SELU", "LeakyReLU", "Softplus", "Softsign",
    "Hardswish", "ReLU6",
)  # fmt: skip
ACTIVATION_CLASSES = {name: Activation(name.lower()) for name in _ACTIVATION_NAMES}

_DENSE_REMEDY = f"es-sbert reads Dense layers with {', '.join(_ACTIVATION_NAMES)}; choose a model of that shape."


# Of a sentence-transformers folder, besides modules.json.
_SENTENCE_TRANSFORMERS_FILES = (
    "es_sbert.json", "config_sentence_transformers.json", "1_Pooling", *SENTENCE_BERT_CONFIG_FILES,
)  # fmt: skip


def plain_modules(folder: Path) -> list[tuple[str, str]]:
    """The modules that sentence-transformers gives to a transformers folder.

    Raises:
        BundleInvalid: it is none, or a sentence-transformers folder that has lost its modules.json.
    """
    lost = [name for name in _SENTENCE_TRANSFORMERS_FILES if (folder / name).exists()]
    if lost or not (folder / "config.json").exists():
        what = f"but {lost[0]}" if lost else "and no config.json"
        raise BundleInvalid(
            f"{folder} has no modules.json {what}: it does not say how token vectors become a sentence vector",
            "Copy the folder again, or give another one (SentenceTransformer(...).save writes one).",
        )
    return [("Transformer", ""), ("Pooling", "")]


def plain_pooling(folder: Path, config: dict[str, Any]) -> tuple[tuple[Pooling, ...], int]:
    """The pooling that sentence-transformers gives a transformers folder, and the width of a token vector."""
    names = config.get("architectures") or [""]
    if str(names[0]).endswith("ForSequenceClassification"):
        raise BundleInvalid(
            f"{folder} is a cross-encoder ({names[0]}), which has no sentence vectors",
            f"Export it as a reranker: es-sbert export {folder} -o RERANKER.",
        )
    if config.get("model_type") == "model2vec":
        raise UnsupportedArchitecture(
            f"{folder} is a folder of model2vec without modules.json",
            "Save it with one: SentenceTransformer(modules=[StaticEmbedding.from_model2vec(MODEL)]).save(FOLDER).",
        )
    templates = (folder / "chat_template.jinja", folder / "chat_template.json")
    if read_optional_json(folder / "tokenizer_config.json").get("chat_template") or any(
        template.exists() for template in templates
    ):
        raise UnsupportedSetting(
            f"{folder} has no modules.json and a chat template, with which sentence-transformers makes a message of "
            "each text",
            "Save it with a pooling: SentenceTransformer(modules=[Transformer(...), Pooling(...)]).save(folder).",
        )
    is_causal = str(names[0]).endswith("ForCausalLM") and config.get("is_causal", True)
    return (Pooling.LASTTOKEN if is_causal else Pooling.MEAN,), hidden_width(folder, config)


def read_modules(folder: Path, ignored: Collection[str]) -> list[tuple[str, str]]:
    """(class name, folder) of each module in modules.json, without Dropout, which does nothing outside training.

    The first ones are a Transformer and a Pooling, or a StaticEmbedding.

    Raises:
        BundleInvalid: the file is broken, or names a folder outside the model's.
        UnsupportedArchitecture: a module that is not one of sentence-transformers, or another order.
        UnsupportedSetting: an entry has a setting that es-sbert does not apply.
    """
    path = folder / "modules.json"
    entries = read_module_entries(folder)
    for entry in entries:
        check_settings(path, entry, MODULE_ENTRY, ignored)
    foreign = [str(entry["type"]) for entry in entries if not str(entry["type"]).startswith("sentence_transformers.")]
    if foreign:
        raise UnsupportedArchitecture(
            f"{path} has a module of the class {foreign[0]}, which is not one of sentence-transformers",
            "es-sbert runs no code that comes with a model; choose one with modules of sentence-transformers.",
        )
    names = [entry["name"] for entry in entries if "name" in entry]
    if len(set(map(str, names))) < len(names):
        raise BundleInvalid(f"{path} gives two modules the same name", COPY_AGAIN)
    modules = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries]
    modules = [(kind, place) for kind, place in modules if kind != "Dropout"]
    for _, place in modules:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise BundleInvalid(f"{path} names {place!r}, outside the folder", "Do not use this model.")
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] and kinds[:1] != [STATIC]:
        raise UnsupportedArchitecture(
            f"{path} lists {', '.join(kinds)}; es-sbert reads Transformer and Pooling, or StaticEmbedding, then Dense "
            "and Normalize",
            "Choose a model of that shape.",
        )
    return modules


def read_pooling(folder: Path, ignored: Collection[str]) -> tuple[tuple[Pooling, ...], int]:
    """The pooling modes and the width of a token vector."""
    config = read_json(folder / "config.json")
    check_settings(folder / "config.json", config, POOLING, ignored)
    modes: Any = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in POOLING_MODE_FLAGS.items() if config.get(key)]
    elif isinstance(modes, str):
        modes = [modes]
    unknown = [mode for mode in modes if mode not in set(Pooling)] if isinstance(modes, list) else []
    if unknown:
        raise UnsupportedArchitecture(
            f"{folder / 'config.json'} pools by {', '.join(map(str, unknown))}",
            f"es-sbert pools by {', '.join(Pooling)}; choose a model that does.",
        )
    try:
        pooling = tuple(Pooling(mode) for mode in modes)
        width = int(config.get("embedding_dimension") or config["word_embedding_dimension"])
    except (KeyError, ValueError, TypeError) as error:
        raise BundleInvalid(f"{folder / 'config.json'}: {error}", COPY_AGAIN) from error
    if not pooling:
        raise BundleInvalid(f"{folder / 'config.json'} names no pooling mode", "Set pooling_mode, e.g. to mean.")
    if not config.get("include_prompt", True):
        raise UnsupportedArchitecture(
            f"{folder / 'config.json'} leaves prompt tokens out of pooling (include_prompt: false)",
            "es-sbert pools over the whole input; choose a model that does.",
        )
    return pooling, width


def read_dense_and_normalize(
    folder: Path, modules: list[tuple[str, str]], ignored: Collection[str]
) -> tuple[tuple[Dense, ...], bool]:
    """The modules after pooling: any number of Dense, then at most one Normalize at the end."""
    dense: list[Dense] = []
    normalize = False
    for kind, place in modules:
        if kind == "Dense" and not normalize:
            dense.append(_read_dense(folder, place, ignored))
        elif kind == "Normalize":
            # Releases before 5.5 write no settings, and often no folder.
            path = folder / place / "config.json"
            if place:
                check_settings(path, read_optional_json(path), NORMALIZE, ignored)
            normalize = True
        else:
            where = " after Normalize" if normalize else ""
            raise UnsupportedArchitecture(
                f"{folder / 'modules.json'} has a {kind} module{where}",
                "es-sbert reads Dense modules and then Normalize; choose a model of that shape.",
            )
    return tuple(dense), normalize


def _read_dense(folder: Path, place: str, ignored: Collection[str]) -> Dense:
    path = folder / place / "config.json"
    config = read_json(path)
    check_settings(path, config, DENSE, ignored)
    # sentence-transformers' own default is Tanh; what it cannot open, a null, means no activation to others.
    stated = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    stated = "torch.nn.modules.linear.Identity" if stated is None else str(stated)
    if not stated.startswith("torch."):
        raise UnsupportedArchitecture(
            f"{path} uses the activation {stated!r}, for which sentence-transformers takes Tanh",
            "Name a class of torch, such as torch.nn.modules.activation.ReLU.",
        )
    activation = stated.rpartition(".")[2]
    if activation not in ACTIVATION_CLASSES:
        raise UnsupportedArchitecture(f"{path} uses the activation {activation}", _DENSE_REMEDY)
    if config.get("use_residual") or config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise UnsupportedArchitecture(f"{path} is not a plain Dense layer on the sentence vector", _DENSE_REMEDY)
    try:
        return Dense(
            folder=place,
            in_features=config["in_features"],
            out_features=config["out_features"],
            bias=config.get("bias", True),
            activation=ACTIVATION_CLASSES[activation],
        )
    except (KeyError, ValueError) as error:
        raise BundleInvalid(f"{path}: {error}", COPY_AGAIN) from error


def check_dimensions(folder: Path, width: int, dense: tuple[Dense, ...]) -> int:
    """Follow the vector's width through the Dense modules and compare it with their weights."""
    for layer in dense:
        headers = map(read_header, find_weight_files(folder / layer.folder))
        shape = next((header["linear.weight"]["shape"] for header in headers if "linear.weight" in header), None)
        if layer.in_features != width or shape != [layer.out_features, layer.in_features]:
            raise BundleInvalid(
                f"{folder / layer.folder} takes {layer.in_features} values and gets {width}, "
                f"with weights of shape {shape}",
                COPY_AGAIN,
            )
        width = layer.out_features
    return width
