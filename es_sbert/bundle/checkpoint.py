"""Read a sentence-transformers folder: modules.json and the configurations of its modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from es_sbert.bundle.fingerprint import fingerprint
from es_sbert.bundle.model import Activation, Dense, Pooling, SentenceModel
from es_sbert.bundle.safetensors import find_weights, hash_tensors, read_header
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture

# Architectures whose every setting is known, and those of their config.json that change the output.
KNOWN_ARCHITECTURES = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet"})
_CONFIG_KEYS = (
    "model_type", "hidden_act", "activation", "layer_norm_eps", "num_attention_heads", "n_heads",
    "position_embedding_type", "relative_attention_num_buckets", "pad_token_id",
)  # fmt: skip

# Of any other architecture everything counts but what no network computes with: who wrote it, and how to train it.
_INERT_CONFIG_KEYS = frozenset({
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range",
    "initializer_factor", "init", "init_range", "init_std", "id2label", "label2id", "problem_type",
    "gradient_checkpointing", "_attn_implementation", "_attn_implementation_autoset", "sentence_transformers",
    "sbert_ce_default_activation_function",
})  # fmt: skip

# A model_max_length beyond this says that nobody set one (transformers writes 10^30).
_NO_LIMIT = 10**9

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

_AGAIN = "Copy or download the model folder again."
_PLAIN_DENSE = "es-sbert reads Dense layers with Identity, Tanh, ReLU or GELU; choose a model of that shape."


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        BundleInvalid: missing, unreadable, or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BundleInvalid(f"{path} is missing", _AGAIN) from error
    except (OSError, ValueError) as error:
        raise BundleInvalid(f"{path} cannot be read: {error}", _AGAIN) from error
    if not isinstance(value, dict):
        raise BundleInvalid(f"{path} does not hold a JSON object", _AGAIN)
    return value


def read_model(folder: Path, name: str | None = None) -> SentenceModel:
    """Read and check a sentence-transformers folder.

    Args:
        folder: The folder with modules.json.
        name: Name for people; the folder's own name by default.

    Raises:
        BundleInvalid: a file is missing or broken, weights are pickled, dimensions contradict each other.
        UnsupportedArchitecture: a module that es-sbert does not honour.
    """
    modules = _read_modules(folder)
    transformer, pooling_folder = modules[0][1], modules[1][1]
    config = read_json(folder / transformer / "config.json")
    pooling, width = _read_pooling(folder / pooling_folder)
    dense, normalize = _read_head(folder, modules[2:])
    dimensions = _check_widths(folder, width * len(pooling), dense)
    tokenizer = read_json(folder / transformer / "tokenizer.json")
    sbert = optional_json(folder / transformer / "sentence_bert_config.json")
    prompts = optional_json(folder / "config_sentence_transformers.json")

    weights = [hash_tensors(find_weights(folder / transformer))]
    weights += [hash_tensors(find_weights(folder / layer.folder)) for layer in dense]
    try:
        model = SentenceModel(
            folder=folder,
            name=name or folder.resolve().name,
            transformer=transformer,
            architecture=str(config.get("model_type", "unknown")),
            transformer_config=config,
            pooling=pooling,
            dense=dense,
            normalize=normalize,
            max_tokens=longest_input(folder / transformer, config, sbert, tokenizer),
            dimensions=dimensions,
            prompts=prompts.get("prompts") or {},
            default_prompt=prompts.get("default_prompt_name"),
            lowercase=sbert.get("do_lower_case", False),
            fingerprint="",
        )
    except (ValueError, TypeError) as error:  # pydantic's ValidationError is a ValueError
        raise BundleInvalid(f"{folder} has a setting of the wrong type: {error}", _AGAIN) from error
    settings = model.model_dump(
        mode="json",
        include={"pooling", "dense", "normalize", "max_tokens", "prompts", "default_prompt", "lowercase"},
    )
    settings["config"] = decisive_settings(config)
    return model.model_copy(update={"fingerprint": fingerprint("".join(weights), tokenizer, settings)})


def optional_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; an empty one where there is none.

    Raises:
        BundleInvalid: unreadable, or not a JSON object.
    """
    return read_json(path) if path.exists() else {}


def decisive_settings(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a transformer's config.json that change its output, for the fingerprint."""
    if config.get("model_type") in KNOWN_ARCHITECTURES:
        return {key: config[key] for key in _CONFIG_KEYS if key in config}
    return {key: value for key, value in config.items() if key not in _INERT_CONFIG_KEYS and "dropout" not in key}


def _read_modules(folder: Path) -> list[tuple[str, str]]:
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
        raise BundleInvalid(f"{path} is broken: {error}", _AGAIN) from error
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


def _read_pooling(folder: Path) -> tuple[tuple[Pooling, ...], int]:
    """The pooling modes and the width of a token vector."""
    config = read_json(folder / "config.json")
    modes: Any = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in _OLD_POOLING_KEYS.items() if config.get(key)]
    elif isinstance(modes, str):
        modes = [modes]
    try:
        pooling = tuple(Pooling(mode) for mode in modes)
        width = int(config.get("embedding_dimension") or config["word_embedding_dimension"])
    except (KeyError, ValueError, TypeError) as error:
        raise BundleInvalid(f"{folder / 'config.json'}: {error}", _AGAIN) from error
    if not pooling:
        raise BundleInvalid(f"{folder / 'config.json'} names no pooling mode", "Set pooling_mode, e.g. to mean.")
    if config.get("include_prompt") is False:
        raise UnsupportedArchitecture(
            f"{folder / 'config.json'} leaves prompt tokens out of pooling (include_prompt: false)",
            "es-sbert pools over the whole input; choose a model that does.",
        )
    return pooling, width


def _read_head(folder: Path, modules: list[tuple[str, str]]) -> tuple[tuple[Dense, ...], bool]:
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
    activation = str(config.get("activation_function") or "Identity").rpartition(".")[2]
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
        raise BundleInvalid(f"{path}: {error}", _AGAIN) from error


def _check_widths(folder: Path, width: int, dense: tuple[Dense, ...]) -> int:
    """Follow the vector's width through the Dense modules and compare it with their weights."""
    for layer in dense:
        shapes = {}
        for file in find_weights(folder / layer.folder):
            shapes.update({name: entry["shape"] for name, entry in read_header(file).items()})
        if layer.in_features != width or shapes.get("linear.weight") != [layer.out_features, layer.in_features]:
            raise BundleInvalid(
                f"{folder / layer.folder} takes {layer.in_features} values and gets {width}, "
                f"with weights of shape {shapes.get('linear.weight')}",
                _AGAIN,
            )
        width = layer.out_features
    return width


def longest_input(folder: Path, config: dict[str, Any], sbert: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    """The longest input in tokens: what the model says, and never more than it has positions for.

    Args:
        folder: Of the transformer.
        config, sbert, tokenizer: Its config.json, sentence_bert_config.json and tokenizer.json.

    Raises:
        BundleInvalid: nothing says it.
    """
    positions = config.get("max_position_embeddings")
    if positions is not None and config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        # Their first positions are taken by the padding token: position ids start at pad_token_id + 1.
        positions -= int(config.get("pad_token_id", 1)) + 1
    said = sbert.get("max_seq_length") or optional_json(folder / "tokenizer_config.json").get("model_max_length")
    said = said or (tokenizer.get("truncation") or {}).get("max_length")
    # -1 is XLNet's word for positions without an end.
    limits = [int(value) for value in (said, positions) if value and 0 < value < _NO_LIMIT]
    if not limits:
        raise BundleInvalid(
            f"{folder} says nowhere how many tokens the model reads",
            "Set max_seq_length in sentence_bert_config.json.",
        )
    return min(limits)
