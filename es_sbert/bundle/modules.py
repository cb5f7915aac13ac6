"""The modules of a sentence-transformers folder: which there are, and the settings of those behind the transformer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from es_sbert.bundle.json_files import COPY_AGAIN, read_json
from es_sbert.bundle.model import Activation, Dense, Pooling
from es_sbert.bundle.safetensors import find_weights, read_header
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture

# Keys of pooling configurations written before sentence-transformers 5.2, in that library's order.
_OLD_POOLING_KEYS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": Pooling.WEIGHTEDMEAN,
    "pooling_mode_lasttoken": Pooling.LASTTOKEN,
}

_ACTIVATIONS = {"Identity": Activation.IDENTITY, "Tanh": Activation.TANH, "ReLU": Activation.RELU,
                "GELU": Activation.GELU}  # fmt: skip

_PLAIN_DENSE = "es-sbert reads Dense layers with Identity, Tanh, ReLU or GELU; choose a model of that shape."


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """(class name, folder) of each module; the first two are the Transformer and the Pooling."""
    path = folder / "modules.json"
    if not path.exists():
        raise BundleInvalid(
            f"{folder} has no modules.json, so it does not say how token vectors become a sentence vector",
            "Give a sentence-transformers folder (SentenceTransformer(...).save writes one).",
        )
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        modules = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleInvalid(f"{path} is broken: {error}", COPY_AGAIN) from error
    for _, place in modules:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise BundleInvalid(f"{path} names {place!r}, outside the folder", "Do not use this model.")
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise UnsupportedArchitecture(
            f"{path} lists {', '.join(kinds)}; es-sbert reads Transformer, Pooling, then Dense and Normalize",
            "Choose a model of that shape.",
        )
    return modules


def read_pooling(folder: Path) -> tuple[tuple[Pooling, ...], int]:
    """The pooling modes and the width of a token vector."""
    config = read_json(folder / "config.json")
    modes: Any = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_POOLING_KEYS.items() if config.get(key)]
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
    if config.get("include_prompt") is False:
        raise UnsupportedArchitecture(
            f"{folder / 'config.json'} leaves prompt tokens out of pooling (include_prompt: false)",
            "es-sbert pools over the whole input; choose a model that does.",
        )
    return pooling, width


def read_head(folder: Path, modules: list[tuple[str, str]]) -> tuple[tuple[Dense, ...], bool]:
    """The modules after pooling: any number of Dense, then at most one Normalize at the end."""
    dense: list[Dense] = []
    normalize = False
    for kind, place in modules:
        if kind == "Dense" and not normalize:
            dense.append(_read_dense(folder, place))
        elif kind == "Normalize":
            normalize = True
        else:
            where = " after Normalize" if normalize else ""
            raise UnsupportedArchitecture(
                f"{folder / 'modules.json'} has a {kind} module{where}",
                "es-sbert reads Dense modules and then Normalize; choose a model of that shape.",
            )
    return tuple(dense), normalize


def _read_dense(folder: Path, place: str) -> Dense:
    path = folder / place / "config.json"
    config = read_json(path)
    # sentence-transformers' own default is Tanh; what it cannot open, a null, means no activation to others.
    activation = str(config.get("activation_function", "Tanh") or "Identity").rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise UnsupportedArchitecture(f"{path} uses the activation {activation}", _PLAIN_DENSE)
    if config.get("use_residual") or config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise UnsupportedArchitecture(f"{path} is not a plain Dense layer on the sentence vector", _PLAIN_DENSE)
    try:
        return Dense(
            folder=place,
            in_features=config["in_features"],
            out_features=config["out_features"],
            bias=config.get("bias", True),
            activation=_ACTIVATIONS[activation],
        )
    except (KeyError, ValueError) as error:
        raise BundleInvalid(f"{path}: {error}", COPY_AGAIN) from error


def check_widths(folder: Path, width: int, dense: tuple[Dense, ...]) -> int:
    """Follow the vector's width through the Dense modules and compare it with their weights."""
    for layer in dense:
        shapes = {}
        for file in find_weights(folder / layer.folder):
            shapes.update({name: entry["shape"] for name, entry in read_header(file).items()})
        if layer.in_features != width or shapes.get("linear.weight") != [layer.out_features, layer.in_features]:
            raise BundleInvalid(
                f"{folder / layer.folder} takes {layer.in_features} values and gets {width}, "
                f"with weights of shape {shapes.get('linear.weight')}",
                COPY_AGAIN,
            )
        width = layer.out_features
    return width
