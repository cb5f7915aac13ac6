"""Read the modules of a folder (modules.json), and how they compute the vector of a text.

These are the pooling and the modules before and after it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from es_sbert.bundle.known_settings import check_settings
from es_sbert.bundle.model_files import (
    COPY_AGAIN,
    find_weight_files,
    read_header,
    read_json,
    read_module_entries,
    read_optional_json,
)
from es_sbert.bundle.modules import (
    ACTIVATION_CLASSES,
    POOLING_MODE_FLAGS,
    STATIC,
    Dense,
    Feature,
    InputModule,
    LayerNorm,
    Normalize,
    Pooling,
)
from es_sbert.bundle.transformer_module import SENTENCE_BERT_CONFIG_FILES
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, error_summary

_SERVE_ELSEWHERE = "Serve it with sentence-transformers, or choose a model that begins with a Transformer."
_MAKE_STATIC = (
    "Make a StaticEmbedding of its vectors, with a tokenizer of the library `tokenizers`, and compare the two: "
    "SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=...)]).save(FOLDER)."
)
_TWO_NETWORKS = (
    "embeds queries and documents with separate networks; es-sbert embeds both with one",
    "Choose one model for both, and embed an index of this one again: `es-sbert index migrate INDEX --model MODEL`.",
)
# Modules of sentence-transformers that es-sbert does not read → the reason, and what to do.
_REFUSED_MODULES = {
    "WordEmbeddings": (
        "looks words up unchanged, then without punctuation, then in lower case, which no tokenizer.json can express",
        _MAKE_STATIC,
    ),
    "WordWeights": ("weights the words of WordEmbeddings, which es-sbert does not support", _MAKE_STATIC),
    "BoW": ("counts the words of a text and has no token vectors", "Search for words with the engine itself (BM25)."),
    "CNN": ("is a network over WordEmbeddings, which es-sbert does not support", _SERVE_ELSEWHERE),
    "LSTM": ("is a network over WordEmbeddings, which es-sbert does not support", _SERVE_ELSEWHERE),
    "Router": _TWO_NETWORKS,
    "Asym": _TWO_NETWORKS,  # its name in older releases
    "WeightedLayerPooling": (
        "averages the hidden states of several layers; es-sbert reads the last one",
        "Serve it with sentence-transformers, or choose a model without this module.",
    ),
    "CLIPModel": (
        "embeds images too, and its network does the pooling",
        "Serve it with sentence-transformers, or choose a model for texts.",
    ),
}

# Other files of a sentence-transformers folder, besides modules.json.
_SENTENCE_TRANSFORMERS_FILES = (
    "es_sbert.json", "config_sentence_transformers.json", "1_Pooling", *SENTENCE_BERT_CONFIG_FILES,
)  # fmt: skip


def plain_modules(folder: Path) -> list[tuple[str, str]]:
    """The modules of a transformers folder: only the Transformer.

    Raises:
        BundleInvalid: the folder is not a transformers folder, or is a sentence-transformers folder that has lost its
            modules.json.
    """
    lost = [name for name in _SENTENCE_TRANSFORMERS_FILES if (folder / name).exists()]
    if lost or not (folder / "config.json").exists():
        what = f"but {lost[0]}" if lost else "and no config.json"
        raise BundleInvalid(
            f"{folder} has no modules.json {what}, so the pooling of its token vectors is unknown",
            "Copy the folder again, or use one that SentenceTransformer(...).save wrote.",
        )
    return [("Transformer", "")]


def read_modules(folder: Path, ignored: Collection[str]) -> list[tuple[str, str]]:
    """Read (class name, folder) of each module in modules.json.

    Raises:
        BundleInvalid: the file is broken, or names a folder outside the model folder.
        UnsupportedArchitecture: a module that is not one of sentence-transformers or that es-sbert does not read, or a
            first module that is neither a Transformer nor a StaticEmbedding.
        UnsupportedSetting: an entry has a setting that es-sbert does not apply.
    """
    path = folder / "modules.json"
    entries = read_module_entries(folder)
    for entry in entries:
        check_settings(path, entry, "modules.json", ignored)
    foreign = [str(entry["type"]) for entry in entries if not str(entry["type"]).startswith("sentence_transformers.")]
    if foreign:
        raise UnsupportedArchitecture(
            f"{path} has a module of the class {foreign[0]}, which is not one of sentence-transformers",
            "es-sbert does not run code from a model; choose one with modules of sentence-transformers.",
        )
    names = [entry["name"] for entry in entries if "name" in entry]
    if len(set(map(str, names))) < len(names):
        raise BundleInvalid(
            f"{path} gives two modules the same name", "Give each module in modules.json a unique name."
        )
    modules = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries]
    for _, place in modules:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise BundleInvalid(f"{path} names {place!r}, which is outside the folder", "Do not use this model.")
    for kind, _ in modules:
        if kind in _REFUSED_MODULES:
            reason, remedy = _REFUSED_MODULES[kind]
            raise UnsupportedArchitecture(f"{path} has a {kind} module, which {reason}", remedy)
    if not modules or modules[0][0] not in ("Transformer", STATIC):
        raise UnsupportedArchitecture(
            f"{path} lists {', '.join(kind for kind, _ in modules) or 'no module'}; es-sbert reads models that begin "
            f"with a Transformer or a {STATIC}",
            "Choose such a model.",
        )
    return modules


TOKEN_EMBEDDINGS, SENTENCE_EMBEDDING = "token_embeddings", "sentence_embedding"


_DENSE_REMEDY = f"es-sbert supports Dense layers with {', '.join(ACTIVATION_CLASSES)}; choose such a model."


def read_pooling(folder: Path, tokens: Feature, ignored: Collection[str]) -> Feature:
    """Read a Pooling module, and return the sentence vector that it computes from token vectors.

    Raises:
        BundleInvalid: the module's config.json is missing or broken, or names no pooling mode.
        UnsupportedArchitecture: a pooling mode that es-sbert does not support.
    """
    config = read_json(folder / "config.json")
    check_settings(folder / "config.json", config, "Pooling", ignored)
    modes: Any = config.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in POOLING_MODE_FLAGS.items() if config.get(key)]
    elif isinstance(modes, str):
        modes = [modes]
    unknown = [mode for mode in modes if mode not in list(Pooling)] if isinstance(modes, list) else []
    if unknown:
        raise UnsupportedArchitecture(
            f"{folder / 'config.json'} has the pooling {', '.join(map(str, unknown))}",
            f"es-sbert supports {', '.join(Pooling)}; choose a model with one of these.",
        )
    try:
        pooling = tuple(Pooling(mode) for mode in modes)
        width = int(config.get("embedding_dimension") or config["word_embedding_dimension"])
    except (KeyError, ValueError, TypeError) as error:
        raise BundleInvalid(f"{folder / 'config.json'} lacks a pooling or its width: {error}", COPY_AGAIN) from error
    if not pooling:
        raise BundleInvalid(f"{folder / 'config.json'} names no pooling mode", "Set pooling_mode, e.g. to mean.")
    include_prompt = bool(config.get("include_prompt", True))
    # sentence-transformers pools vectors of any width: the width after a Dense module is not in these settings.
    width = (tokens.width or width) * len(pooling)
    return replace(tokens, pooling=pooling, include_prompt=include_prompt, width=width)


def read_sentence_vector(
    folder: Path, modules: list[tuple[str, str]], first: InputModule, ignored: Collection[str]
) -> Feature:
    """Determine the sentence vector of a model from its modules.

    Args:
        folder: The model folder.
        modules: (class name, folder) of the modules after the first one.
        first: The first module.
        ignored: Unknown settings to accept.

    Raises:
        BundleInvalid: a file is missing or broken, dimensions are inconsistent, or no module computes a sentence
            vector.
        UnsupportedArchitecture: a module that es-sbert does not support.
        UnsupportedSetting: a setting that may change vectors and that es-sbert does not apply.
    """
    features = {TOKEN_EMBEDDINGS if first.output.pooling is None else SENTENCE_EMBEDDING: first.output}
    for kind, place in modules:
        match kind:
            case "Pooling":
                tokens = _take(folder, kind, features, TOKEN_EMBEDDINGS)
                features[SENTENCE_EMBEDDING] = read_pooling(folder / place, tokens, ignored)
            case "Dense":
                _apply_dense(folder, place, features, ignored)
            case "LayerNorm":
                vector = _take(folder, kind, features, SENTENCE_EMBEDDING)
                layer_norm = _read_layer_norm(folder, place, ignored)
                _check_width(folder / place, layer_norm.dimension, vector.width)
                features[SENTENCE_EMBEDDING] = vector.apply(layer_norm, layer_norm.dimension)
            case "Dropout":
                # Dropout has no effect outside training, but reads the vector.
                _take(folder, kind, features, SENTENCE_EMBEDDING)
            case "Normalize":
                # Releases before 5.5 write no settings, and often no folder.
                path = folder / place / "config.json"
                config = read_optional_json(path) if place else {}
                check_settings(path, config, kind, ignored)
                source, target = _names(path, config)
                # Normalize has no effect if the vector does not exist.
                if source in features:
                    features[target] = features[source].apply(Normalize(), features[source].width)
            case _:
                raise UnsupportedArchitecture(
                    f"{folder / 'modules.json'} has a {kind} module",
                    "es-sbert reads Pooling, Dense, LayerNorm, Normalize and Dropout after the first module; choose "
                    "such a model.",
                )
    made = features.get(SENTENCE_EMBEDDING)
    if made is None or made.pooling is None or made.width is None:
        raise BundleInvalid(
            f"{folder / 'modules.json'} has no module that pools the token vectors into one vector",
            "Add a Pooling to the model: SentenceTransformer(modules=[Transformer(...), Pooling(...)]).save(folder).",
        )
    return made


def _take(folder: Path, kind: str, features: dict[str, Feature], name: str) -> Feature:
    """Get the value that a module reads.

    Raises:
        BundleInvalid: no earlier module writes a value of that name, or Pooling would read the vector of a text.
    """
    found = features.get(name)
    if found is None or (kind == "Pooling" and found.pooling is not None):
        what = "which no module before it writes" if found is None else "which is a vector of the text there"
        raise BundleInvalid(
            f"{folder / 'modules.json'} has a {kind} module that reads {name}, {what}",
            "Save the model with its modules in an order that works in sentence-transformers.",
        )
    return found


def _names(path: Path, config: dict[str, Any]) -> tuple[str, str]:
    """The names of the values that a module reads and writes (`module_input_name`, `module_output_name`)."""
    source = config.get("module_input_name", SENTENCE_EMBEDDING)
    target = config.get("module_output_name")
    target = source if target is None else target
    if not isinstance(source, str) or not isinstance(target, str):
        raise BundleInvalid(
            f"{path} has a setting of the wrong type: module_input_name and module_output_name must be strings",
            COPY_AGAIN,
        )
    return source, target


def _read_layer_norm(folder: Path, place: str, ignored: Collection[str]) -> LayerNorm:
    path = folder / place / "config.json"
    config = read_json(path)
    check_settings(path, config, "LayerNorm", ignored)
    try:
        layer = LayerNorm.model_validate({**config, "folder": place})
    except ValidationError as error:
        raise BundleInvalid(f"{path}: {error_summary(error)}", COPY_AGAIN) from error
    _check_tensors(folder / place, {"norm.weight": [layer.dimension], "norm.bias": [layer.dimension]})
    return layer


def _apply_dense(folder: Path, place: str, features: dict[str, Feature], ignored: Collection[str]) -> None:
    path = folder / place / "config.json"
    config = read_json(path)
    check_settings(path, config, "Dense", ignored)
    source, target = _names(path, config)
    vector = _take(folder, "Dense", features, source)
    layer = _read_dense(path, place, config)
    _check_width(folder / place, layer.in_features, vector.width)
    shapes = {"linear.weight": [layer.out_features, layer.in_features]}
    if layer.bias:
        shapes["linear.bias"] = [layer.out_features]
    if layer.residual and layer.in_features != layer.out_features:
        shapes["residual.weight"] = [layer.out_features, layer.in_features]
    _check_tensors(folder / place, shapes)
    features[target] = vector.apply(layer, layer.out_features)


def _read_dense(path: Path, place: str, config: dict[str, Any]) -> Dense:
    # sentence-transformers' own default is Tanh; null, which it cannot open, means no activation for other programs.
    stated = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    stated = "torch.nn.modules.linear.Identity" if stated is None else str(stated)
    if not stated.startswith("torch."):
        raise UnsupportedArchitecture(
            f"{path} uses the activation {stated!r}, which sentence-transformers replaces with Tanh",
            "Use a class of torch, such as torch.nn.modules.activation.ReLU.",
        )
    activation = stated.rpartition(".")[2]
    if activation not in ACTIVATION_CLASSES:
        raise UnsupportedArchitecture(f"{path} uses the activation {activation}", _DENSE_REMEDY)
    residual = config.get("use_residual", False)
    if not isinstance(residual, bool):
        raise BundleInvalid(f"{path} has a setting of the wrong type: use_residual is {residual!r}", COPY_AGAIN)
    try:
        own = {"folder": place, "activation": ACTIVATION_CLASSES[activation], "residual": residual}
        return Dense.model_validate({"bias": True, **config, **own})
    except ValidationError as error:
        raise BundleInvalid(f"{path}: {error_summary(error)}", COPY_AGAIN) from error


def _check_width(path: Path, expected: int, width: int | None) -> None:
    if width is not None and width != expected:
        raise BundleInvalid(f"{path} expects {expected} values but gets {width}", COPY_AGAIN)


def _check_tensors(path: Path, expected: dict[str, list[int]]) -> None:
    """Check that the tensors of a module agree with its settings."""
    headers = [read_header(file) for file in find_weight_files(path)]
    shapes = {name: list(entry["shape"]) for header in headers for name, entry in header.items()}
    if shapes != expected:
        raise BundleInvalid(
            f"the weights in {path} are {shapes}, but {expected} according to its config.json", COPY_AGAIN
        )
