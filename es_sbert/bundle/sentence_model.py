"""`SentenceModel`: the settings of a sentence encoder, read from its folder.

A sentence-transformers folder has a modules.json; a plain transformers folder has none, so the caller chooses its
pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from es_sbert.bundle.fingerprint import compute_fingerprint, fingerprint_settings, hash_tensors
from es_sbert.bundle.model_files import (
    COPY_AGAIN,
    find_weight_files,
    read_header,
    read_json,
    read_module_list,
    read_optional_json,
)
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture

PromptKind = Literal["query", "document"]

# Names under which sentence-transformers looks for a prompt of each kind, first found wins.
PROMPT_NAMES: dict[PromptKind, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


class Precision(StrEnum):
    """Number format of an ONNX variant's matrix products; sentence vectors are float32 in all of them."""

    FP32 = "fp32"
    INT8 = "int8"
    FP16 = "fp16"

    @property
    def device(self) -> str:
        """`cpu` or `cuda`: where variants of this precision are meant to run."""
        return "cuda" if self is Precision.FP16 else "cpu"


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


class SentenceModel(BaseModel, frozen=True):
    """A sentence-transformers model folder, read and validated.

    Attributes:
        folder: The model folder.
        name: Name for people: the hub id, package name or folder name it was opened by.
        transformer: Folder of the transformer (config.json, model.safetensors), relative to `folder`.
        architecture: `model_type` of the transformer's config (bert, roberta, xlm-roberta, distilbert, mpnet, …).
        transformer_config: The transformer's config.json.
        pooling: Pooling modes; several are concatenated in this order.
        dense: Dense modules after pooling, in order.
        normalize: Whether vectors are scaled to unit length at the end.
        max_tokens: Longest input in tokens, special tokens included; longer ones are cut.
        dimensions: Length of a sentence vector.
        prompts: Prompt name → text put in front of an input.
        default_prompt: Name of the prompt of inputs that are neither query nor document.
        lowercase: Whether the tokenizer lower-cases texts before all else, prompts included (`do_lower_case`).
        fingerprint: Hash of weights, tokenizer, pooling, dense, normalization, maximum tokens and prompts:
            models with equal fingerprints produce the same vectors.
    """

    folder: Path
    name: str
    transformer: str
    architecture: str
    transformer_config: dict[str, Any]
    pooling: tuple[Pooling, ...]
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    max_tokens: int
    dimensions: int
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    lowercase: bool = False
    fingerprint: str = ""

    @property
    def transformer_folder(self) -> Path:
        return self.folder / self.transformer

    @property
    def tokenizer_file(self) -> Path:
        return self.transformer_folder / "tokenizer.json"

    def prompt(self, kind: PromptKind | None) -> str:
        """Text to put in front of an input of this kind; empty where the model has none.

        The default prompt is for inputs of no kind only, as in sentence-transformers' `encode_query` and
        `encode_document`: it may be the prompt for queries, which documents must not get.
        """
        if kind is None:
            return self.prompts.get(self.default_prompt, "") if self.default_prompt else ""
        return next((self.prompts[name] for name in PROMPT_NAMES[kind] if name in self.prompts), "")


# Names that sentence-transformers has given to the file with the longest input, the first found wins.
_SENTENCE_BERT_CONFIG_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

# Tokenizer arguments in that file that do not change a single text.
_IGNORED_TOKENIZER_KEYS = {"model_max_length", "padding_side", "use_fast", "trust_remote_code"}

# A larger model_max_length means that none was set (transformers writes 10^30).
_NO_LIMIT = 10**9


def read_sentence_model(folder: Path, name: str | None = None) -> SentenceModel:
    """Read and check a sentence-transformers folder.

    Args:
        folder: The folder with modules.json.
        name: Name for people; the folder's own name by default.

    Raises:
        BundleInvalid: a file is missing or broken, weights are pickled, dimensions contradict each other.
        UnsupportedArchitecture: a module or a setting that es-sbert does not honour.
    """
    modules = _read_modules(folder)
    transformer, pooling_folder = modules[0][1], modules[1][1]
    config = read_json(folder / transformer / "config.json")
    pooling, width = _read_pooling(folder / pooling_folder)
    dense, normalize = _read_dense_and_normalize(folder, modules[2:])
    dimensions = _check_dimensions(folder, width * len(pooling), dense)
    tokenizer = read_json(folder / transformer / "tokenizer.json")
    sbert = _read_sentence_bert_config(folder / transformer, tokenizer)
    prompts, default_prompt = _read_prompts(folder / "config_sentence_transformers.json")

    files = find_weight_files(folder / transformer)
    weights = [hash_tensors(files)]
    weights += [hash_tensors(find_weight_files(folder / layer.folder)) for layer in dense]
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
            max_tokens=max_input_tokens(folder / transformer, config, sbert, tokenizer),
            dimensions=dimensions,
            prompts=prompts,
            default_prompt=default_prompt,
            lowercase=sbert.get("do_lower_case", False),
        )
    except (ValueError, TypeError) as error:  # pydantic's ValidationError is a ValueError
        raise BundleInvalid(f"{folder} has a setting of the wrong type: {error}", COPY_AGAIN) from error
    settings = model.model_dump(
        mode="json", include={"pooling", "dense", "normalize", "max_tokens", "prompts", "default_prompt", "lowercase"}
    )
    settings |= _fingerprint_revisions(model)
    settings["config"] = fingerprint_settings(config, files)
    return model.model_copy(update={"fingerprint": compute_fingerprint("".join(weights), tokenizer, settings)})


def _fingerprint_revisions(model: SentenceModel) -> dict[str, Any]:
    """Settings whose meaning changed between releases, so that old fingerprints no longer match."""
    changed: dict[str, Any] = {}
    a_prompt_for_each_kind = all(model.prompts.keys() & set(names) for names in PROMPT_NAMES.values())
    if model.default_prompt is not None and not a_prompt_for_each_kind:
        changed["prompt_without_kind"] = model.default_prompt
    if model.lowercase:
        changed["lowercase_in_tokenizer"] = True
    return changed


def _read_sentence_bert_config(folder: Path, tokenizer: dict[str, Any]) -> dict[str, Any]:
    """The sentence_bert_config.json of a transformer's folder, under any of its names; empty if there is none.

    Args:
        folder: Of the transformer.
        tokenizer: Its tokenizer.json.

    Raises:
        BundleInvalid: a file is broken.
        UnsupportedArchitecture: texts would be read otherwise than es-sbert reads them.
    """
    file, sbert = folder / _SENTENCE_BERT_CONFIG_FILES[0], {}
    for name in _SENTENCE_BERT_CONFIG_FILES:
        if found := read_optional_json(folder / name):
            file, sbert = folder / name, found
            break
    options = sbert.get("processor_kwargs") or sbert.get("tokenizer_args") or {}
    unknown = sorted(options.keys() - _IGNORED_TOKENIZER_KEYS - {"truncation_side"})
    if unknown:
        raise UnsupportedArchitecture(
            f"{file} changes the tokenizer's {', '.join(unknown)}",
            "es-sbert reads texts by tokenizer.json alone: save the model with a tokenizer that has these settings.",
        )
    configured = options.get("truncation_side")
    configured = configured or read_optional_json(folder / "tokenizer_config.json").get("truncation_side")
    side = str(configured or (tokenizer.get("truncation") or {}).get("direction") or "right")
    if side.lower() != "right":
        raise UnsupportedArchitecture(
            f"{folder} cuts long texts at their beginning (truncation_side {side})",
            "es-sbert cuts them at their end: choose a model that does, or save this one with truncation_side right.",
        )
    if "model_max_length" in options:
        sbert = {**sbert, "max_seq_length": options["model_max_length"]}
    return sbert


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    """The prompts and the name of the default one from config_sentence_transformers.json, where there is one."""
    settings = read_optional_json(path)
    if settings.get("truncate_dim") is not None:
        raise UnsupportedArchitecture(
            f"{path} cuts vectors to their first {settings['truncate_dim']} values (truncate_dim)",
            "es-sbert gives whole vectors: remove truncate_dim there for these.",
        )
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise BundleInvalid(
            f"{path} has a setting of the wrong type: prompts are no texts by name",
            'Write them as {"query": "…", "document": "…"}.',
        )
    # sentence-transformers has these two names even if they are not in the file.
    if default is not None and default not in {*prompts, "query", "document"}:
        raise BundleInvalid(
            f"{path} has the default prompt {default!r}, and no prompt of that name",
            "Name one of its prompts under default_prompt_name, or none.",
        )
    return {name: text or "" for name, text in prompts.items()}, default


def max_input_tokens(folder: Path, config: dict[str, Any], sbert: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    """The longest input in tokens: the model's setting, limited by its number of positions.

    Args:
        folder: Of the transformer.
        config, sbert, tokenizer: Its config.json, sentence_bert_config.json and tokenizer.json.

    Raises:
        BundleInvalid: no setting defines it.
    """
    positions = config.get("max_position_embeddings")
    if positions is not None and config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        # Their first positions are taken by the padding token: position ids start at pad_token_id + 1.
        positions -= int(config.get("pad_token_id", 1)) + 1
    stated = sbert.get("max_seq_length") or read_optional_json(folder / "tokenizer_config.json").get("model_max_length")
    if not stated and not positions:
        # The truncation in tokenizer.json is a setting of some run; it counts only if nothing else does.
        stated = (tokenizer.get("truncation") or {}).get("max_length")
    # XLNet writes -1 for unlimited positions.
    limits = [int(value) for value in (stated, positions) if value and 0 < value < _NO_LIMIT]
    if not limits:
        raise BundleInvalid(
            f"{folder} does not define a maximum input length", "Set max_seq_length in sentence_bert_config.json."
        )
    return min(limits)


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
ACTIVATION_CLASSES = {name: Activation(name.lower()) for name in ("Identity", "Tanh", "ReLU", "GELU")}

_DENSE_REMEDY = "es-sbert reads Dense layers with Identity, Tanh, ReLU or GELU; choose a model of that shape."


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """(class name, folder) of each module; the first two are the Transformer and the Pooling."""
    path = folder / "modules.json"
    if not path.exists():
        raise BundleInvalid(
            f"{folder} has no modules.json, so it does not say how token vectors become a sentence vector",
            "Give a sentence-transformers folder (SentenceTransformer(...).save writes one).",
        )
    modules = read_module_list(folder)
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
    if config.get("include_prompt") is False:
        raise UnsupportedArchitecture(
            f"{folder / 'config.json'} leaves prompt tokens out of pooling (include_prompt: false)",
            "es-sbert pools over the whole input; choose a model that does.",
        )
    return pooling, width


def _read_dense_and_normalize(folder: Path, modules: list[tuple[str, str]]) -> tuple[tuple[Dense, ...], bool]:
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


def _check_dimensions(folder: Path, width: int, dense: tuple[Dense, ...]) -> int:
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


# Where configurations keep the width of a token vector.
_WIDTH_KEYS = ("hidden_size", "dim", "d_model")


def read_plain_transformer(folder: Path, name: str, pooling: Sequence[Pooling] = (Pooling.MEAN,)) -> SentenceModel:
    """A transformers folder (config.json, safetensors, tokenizer.json) with a pooling of the caller's choice.

    The fingerprint is left empty: such a model is a starting point for training, and no vectors of it are stored.

    Args:
        folder: The folder.
        name: Name for people.
        pooling: Pooling modes; several are concatenated.

    Raises:
        BundleInvalid: a file is missing or broken, or the weights are pickled.
    """
    config = read_json(folder / "config.json")
    if not (folder / "tokenizer.json").exists():
        raise BundleInvalid(
            f"{folder} has no tokenizer.json",
            "Write one with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
        )
    find_weight_files(folder)
    width = next((int(config[key]) for key in _WIDTH_KEYS if key in config), None)
    if width is None:
        raise BundleInvalid(
            f"{folder / 'config.json'} does not say how wide a token vector is ({', '.join(_WIDTH_KEYS)})",
            "Give the folder of a transformer encoder.",
        )
    return SentenceModel(
        folder=folder,
        name=name,
        transformer="",
        architecture=str(config.get("model_type", "unknown")),
        transformer_config=config,
        pooling=tuple(pooling),
        max_tokens=max_input_tokens(folder, config, {}, read_json(folder / "tokenizer.json")),
        dimensions=width * len(pooling),
    )
