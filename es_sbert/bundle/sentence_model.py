"""`SentenceModel`: the settings of a sentence encoder, read from its folder.

A sentence-transformers folder has a modules.json; a plain transformers folder has none, so the caller chooses its
pooling.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BaseModel

from es_sbert.bundle.adapter import Adapter, find_base_folder, merge_weights, read_adapter
from es_sbert.bundle.fingerprint import compute_fingerprint, fingerprint_settings, hash_tensors
from es_sbert.bundle.known_settings import (
    CONFIG_SENTENCE_TRANSFORMERS,
    DENSE,
    MODULE_ENTRY,
    NORMALIZE,
    POOLING,
    check_settings,
)
from es_sbert.bundle.model_files import (
    COPY_AGAIN,
    find_weight_files,
    read_header,
    read_json,
    read_module_entries,
    read_optional_json,
)
from es_sbert.bundle.tokenizer_settings import read_tokenizer_json, resolve_tokenizer
from es_sbert.bundle.transformer_settings import (
    SENTENCE_BERT_CONFIG_FILES,
    check_truncation,
    hidden_width,
    input_limits,
    max_input_tokens,
    read_sentence_bert_config,
    read_tokenizer_settings,
    read_transformer_config,
)
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting

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


class SentenceModel(BaseModel, frozen=True):
    """A sentence-transformers model folder, read and validated.

    Attributes:
        folder: The model folder.
        name: Name for people: the hub id, package name or folder name it was opened by.
        transformer: Folder of the transformer (config.json, model.safetensors), relative to `folder`.
        has_adapter: Whether that folder has a LoRA adapter, which is merged into the weights.
        base_folder: Folder with these weights, if the adapter is alone in its folder.
        architecture: `model_type` of the transformer's config (bert, roberta, xlm-roberta, distilbert, mpnet, …);
            `static` for a StaticEmbedding, a table of token vectors without a network.
        transformer_config: The transformer's config.json.
        pooling: Pooling modes; several are concatenated in this order.
        dense: Dense modules after pooling, in order.
        normalize: Whether vectors are scaled to unit length at the end.
        max_tokens: Longest input in tokens, special tokens included; longer ones are cut.
        max_tokens_by_kind: The same for queries or documents, where the model has another limit for them.
        dimensions: Length of a sentence vector.
        prompts: Prompt name → text put in front of an input.
        default_prompt: Name of the prompt of inputs that are neither query nor document.
        lowercase: Whether the tokenizer lower-cases texts before all else, prompts included (`do_lower_case`).
        tokenizer_class: Class of transformers that reads texts.
        tokenizer_changes: What that class reads otherwise than tokenizer.json says; see `ResolvedTokenizer`.
        tokenizer_is_known: Whether es-sbert knows that class, so that `tokenizer_changes` is complete.
        adds_special_tokens: Whether texts get special tokens; a StaticEmbedding has none.
        tokenizer_arguments: Arguments of its constructor that override its files (`processor_kwargs`).
        uses_token_types: Whether the network gets another token type than 0 for some tokens of a text.
        earlier_fingerprint: Fingerprint that earlier releases gave the model if they misread it; else empty.
        ignored_settings: Unknown settings that were accepted with `--ignore-setting`.
        fingerprint: Hash of weights, tokenizer, pooling, dense, normalization, maximum tokens and prompts:
            models with equal fingerprints produce the same vectors.
    """

    folder: Path
    name: str
    transformer: str
    has_adapter: bool = False
    base_folder: Path | None = None
    architecture: str
    transformer_config: dict[str, Any]
    pooling: tuple[Pooling, ...]
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    max_tokens: int
    max_tokens_by_kind: dict[PromptKind, int] = {}
    dimensions: int
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    lowercase: bool = False
    tokenizer_class: str = ""
    tokenizer_changes: dict[str, Any] = {}
    tokenizer_is_known: bool = True
    adds_special_tokens: bool = True
    tokenizer_arguments: dict[str, Any] = {}
    uses_token_types: bool = False
    earlier_fingerprint: str = ""
    ignored_settings: tuple[str, ...] = ()
    fingerprint: str = ""

    @property
    def transformer_folder(self) -> Path:
        return self.folder / self.transformer

    @property
    def weights_folder(self) -> Path:
        """Folder with the transformer's weights; those that an adapter is merged into."""
        return self.base_folder or self.transformer_folder

    @property
    def tokenizer_file(self) -> Path:
        return self.transformer_folder / "tokenizer.json"

    def tokenizer_json(self) -> dict[str, Any]:
        """The tokenizer.json, made from the vocabulary where the folder has none.

        Raises:
            BundleInvalid: a file is broken.
        """
        settings = read_optional_json(self.transformer_folder / "tokenizer_config.json")
        return read_tokenizer_json(
            self.transformer_folder, {**settings, **self.tokenizer_arguments}, self.transformer_config
        )

    @property
    def longest_input(self) -> int:
        """Longest input of any kind in tokens."""
        return max(self.max_tokens, *self.max_tokens_by_kind.values(), 0)

    def input_limit(self, kind: PromptKind | None) -> int:
        """Longest input of this kind in tokens, special tokens included."""
        return self.max_tokens if kind is None else self.max_tokens_by_kind.get(kind, self.max_tokens)

    def prompt(self, kind: PromptKind | None) -> str:
        """Text to put in front of an input of this kind; empty where the model has none.

        The default prompt is for inputs of no kind only, as in sentence-transformers' `encode_query` and
        `encode_document`: it may be the prompt for queries, which documents must not get.
        """
        if kind is None:
            return self.prompts.get(self.default_prompt, "") if self.default_prompt else ""
        return next((self.prompts[name] for name in PROMPT_NAMES[kind] if name in self.prompts), "")


# Of the releases whose reading es-sbert follows.
_FOLLOWED_RELEASES = {"sentence_transformers": "6.2.0", "sentence-transformers": "6.2.0", "transformers": "5.23.0"}


def read_sentence_model(folder: Path, name: str | None = None, *, ignored: Collection[str] = ()) -> SentenceModel:
    """Read and check a sentence-transformers folder.

    Args:
        folder: The folder with modules.json.
        name: Name for people; the folder's own name by default.
        ignored: Unknown settings to accept, besides those that a bundle was exported with.

    Raises:
        BundleInvalid: a file is missing or broken, weights are pickled, dimensions contradict each other.
        UnsupportedArchitecture: a module that es-sbert does not have.
        UnsupportedSetting: a setting that may change vectors and that es-sbert does not apply.
    """
    # Read from the manifest directly: importing bundle.py, which imports this module, would be circular.
    accepted = read_optional_json(folder / "es_sbert.json").get("ignored_settings") or ()
    ignored = tuple(sorted({*ignored, *accepted}))
    is_plain = not (folder / "modules.json").exists()
    modules = _plain_modules(folder) if is_plain else _read_modules(folder, ignored)
    if modules[0][0] == _STATIC:
        return _read_static_model(folder, name, modules, ignored)
    place, pooling_folder = folder / modules[0][1], modules[1][1]
    # Like sentence-transformers, read its own files only if modules.json exists.
    sbert = read_sentence_bert_config(place, ignored, is_plain=is_plain)
    adapter = read_adapter(place, ignored)
    base = None if adapter is None else _find_base_folder(place, adapter)
    config = read_transformer_config(
        place if base is None or (place / "config.json").exists() else base, sbert, ignored
    )
    pooling, width = _plain_pooling(folder, config) if is_plain else _read_pooling(folder / pooling_folder, ignored)
    dense, normalize = _read_dense_and_normalize(folder, modules[2:], ignored)
    dimensions = _check_dimensions(folder, width * len(pooling), dense)
    tokenizer_settings = read_tokenizer_settings(place, sbert, ignored)
    if config.get("model_type") in ("bert", "distilbert") and tokenizer_settings.get("padding_side") == "left":
        raise UnsupportedSetting(
            f"{place / 'tokenizer_config.json'} pads on the left, which moves the positions of this architecture: "
            "vectors would depend on their batch",
            "Set padding_side to right.",
        )
    tokenizer = read_tokenizer_json(place, tokenizer_settings, config)
    check_truncation(place, tokenizer_settings, tokenizer)
    resolved = resolve_tokenizer(place, tokenizer, tokenizer_settings, config)
    prompts, default_prompt = (
        ({}, None) if is_plain else _read_prompts(folder / "config_sentence_transformers.json", ignored)
    )
    max_tokens, by_kind = input_limits(place, config, sbert, tokenizer)

    files = find_weight_files(base or place)
    weights = [hash_tensors(files, None if adapter is None else merge_weights(base or place, adapter))]
    weights += [hash_tensors(find_weight_files(folder / layer.folder)) for layer in dense]
    try:
        model = SentenceModel(
            folder=folder,
            name=name or folder.resolve().name,
            transformer=modules[0][1],
            has_adapter=adapter is not None,
            base_folder=None if base == place else base,
            architecture=str(config.get("model_type", "unknown")),
            transformer_config=config,
            pooling=pooling,
            dense=dense,
            normalize=normalize,
            max_tokens=max_tokens,
            max_tokens_by_kind=by_kind,
            dimensions=dimensions,
            prompts=prompts,
            default_prompt=default_prompt,
            lowercase=sbert.get("do_lower_case", False),
            tokenizer_class=resolved.class_name,
            tokenizer_changes=resolved.changes,
            tokenizer_is_known=resolved.is_known,
            tokenizer_arguments=sbert["processor_kwargs"],
            uses_token_types=resolved.uses_token_types,
            ignored_settings=ignored,
        )
    except (ValueError, TypeError) as error:  # pydantic's ValidationError is a ValueError
        raise BundleInvalid(f"{folder} has a setting of the wrong type: {error}", COPY_AGAIN) from error
    settings = model.model_dump(
        mode="json", include={"pooling", "dense", "normalize", "max_tokens", "prompts", "default_prompt", "lowercase"}
    )
    settings |= _fingerprint_revisions(model)
    settings["config"] = fingerprint_settings(config, files)
    hashed = "".join(weights)
    changed = {"fingerprint": compute_fingerprint(hashed, tokenizer, settings)}
    if settings.keys() & _ONCE_MISREAD:
        earlier = {key: value for key, value in settings.items() if key not in _ONCE_MISREAD}
        changed["earlier_fingerprint"] = compute_fingerprint(hashed, tokenizer, earlier)
    return model.model_copy(update=changed)


def _read_static_model(
    folder: Path, name: str | None, modules: list[tuple[str, str]], ignored: tuple[str, ...]
) -> SentenceModel:
    """A StaticEmbedding: the mean of token vectors, and the modules after it."""
    place = folder / modules[0][1]
    tokenizer = read_json(place / "tokenizer.json")
    files = find_weight_files(place)
    shapes = {key: entry["shape"] for file in files for key, entry in read_header(file).items()}
    table = shapes.get("embedding.weight") or shapes.get("embeddings")
    if table is None or len(table) != 2:
        raise BundleInvalid(f"the weights in {place} have no table of token vectors (embedding.weight)", COPY_AGAIN)
    check_truncation(place, {}, tokenizer)
    dense, normalize = _read_dense_and_normalize(folder, modules[1:], ignored)
    prompts, default_prompt = _read_prompts(folder / "config_sentence_transformers.json", ignored)
    model = SentenceModel(
        folder=folder,
        name=name or folder.resolve().name,
        transformer=modules[0][1],
        architecture="static",
        transformer_config={"vocab_size": _static_rows(shapes, table)},
        pooling=(Pooling.MEAN,),
        dense=dense,
        normalize=normalize,
        # The library cuts by the tokenizer's own setting only.
        max_tokens=int((tokenizer.get("truncation") or {}).get("max_length") or _NO_LIMIT_OF_TOKENS),
        dimensions=_check_dimensions(folder, table[1], dense),
        prompts=prompts,
        default_prompt=default_prompt,
        adds_special_tokens=False,
        ignored_settings=ignored,
    )
    weights = [hash_tensors(files), *(hash_tensors(find_weight_files(folder / layer.folder)) for layer in dense)]
    settings = model.model_dump(
        mode="json",
        include={
            "architecture", "pooling", "dense", "normalize", "max_tokens", "prompts", "default_prompt",
            "adds_special_tokens",
        },
    )  # fmt: skip
    settings |= _fingerprint_revisions(model)
    return model.model_copy(update={"fingerprint": compute_fingerprint("".join(weights), tokenizer, settings)})


def _static_rows(shapes: dict[str, list[int]], table: list[int]) -> int:
    """Number of tokens that have a vector: model2vec may map several tokens to one row."""
    return shapes["mapping"][0] if "mapping" in shapes else table[0]


# As long as a text may be for a StaticEmbedding that does not cut.
_NO_LIMIT_OF_TOKENS = 1_000_000
_STATIC = "StaticEmbedding"


def _find_base_folder(folder: Path, adapter: Adapter) -> Path:
    # Imported here: it reads models by this module.
    from es_sbert.bundle.model_lookup import resolve_model

    return find_base_folder(folder, adapter, resolve_model)


# Of the settings in `_fingerprint_revisions`, those that releases before them did not read.
_ONCE_MISREAD = frozenset({"uses_token_types", "tokenizer_changes", "max_tokens_by_kind"})


def _fingerprint_revisions(model: SentenceModel) -> dict[str, Any]:
    """Settings that earlier releases read otherwise, or not at all.

    A setting is in the fingerprint only if the model has it. So the fingerprints of all other models stay as they are,
    and a model that an earlier release misread gets another one than its vectors in an index.
    """
    changed: dict[str, Any] = {}
    a_prompt_for_each_kind = all(model.prompts.keys() & set(names) for names in PROMPT_NAMES.values())
    if model.default_prompt is not None and not a_prompt_for_each_kind:
        changed["prompt_without_kind"] = model.default_prompt
    if model.lowercase:
        changed["lowercase_in_tokenizer"] = True
    if model.uses_token_types:
        changed["uses_token_types"] = True
    if model.tokenizer_changes:
        changed["tokenizer_changes"] = model.tokenizer_changes
    if model.max_tokens_by_kind:
        changed["max_tokens_by_kind"] = model.max_tokens_by_kind
    return changed


def _read_prompts(path: Path, ignored: Collection[str]) -> tuple[dict[str, str], str | None]:
    """The prompts and the name of the default one from config_sentence_transformers.json, where there is one."""
    settings = read_optional_json(path)
    check_settings(path, settings, CONFIG_SENTENCE_TRANSFORMERS, ignored)
    _check_requirements(path, settings.get("requirements"))
    # Of any other value, also of null, sentence-transformers builds other modules.
    if (kind := settings.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise UnsupportedSetting(
            f"{path} sets model_type to {kind!r}", "Choose a model that was saved as a SentenceTransformer."
        )
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
    if not isinstance(default, str | None):
        raise BundleInvalid(f"{path} has a setting of the wrong type: default_prompt_name is {default!r}", COPY_AGAIN)
    # sentence-transformers has these two names even if they are not in the file.
    if default is not None and default not in {*prompts, "query", "document"}:
        raise BundleInvalid(
            f"{path} has the default prompt {default!r}, and no prompt of that name",
            "Name one of its prompts under default_prompt_name, or none.",
        )
    return {name: text or "" for name, text in prompts.items()}, default


def _check_requirements(path: Path, requirements: Any) -> None:
    """Make sure that a model does not need another release of a library than the one that es-sbert follows."""
    for package, requirement in (requirements or {}).items() if isinstance(requirements, dict) else ():
        specifier = requirement.get("specifier") if isinstance(requirement, dict) else requirement
        followed = _FOLLOWED_RELEASES.get(package)
        try:
            is_met = followed is None or SpecifierSet(str(specifier or "")).contains(followed, prereleases=True)
        except InvalidSpecifier:
            continue  # sentence-transformers skips it too
        if not is_met:
            raise UnsupportedSetting(
                f"{path} requires {package} {specifier}, and es-sbert reads models as release {followed} does",
                "Choose a model that these releases can read.",
            )


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


def _plain_modules(folder: Path) -> list[tuple[str, str]]:
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


def _plain_pooling(folder: Path, config: dict[str, Any]) -> tuple[tuple[Pooling, ...], int]:
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


def _read_modules(folder: Path, ignored: Collection[str]) -> list[tuple[str, str]]:
    """(class name, folder) of each module; the first two are the Transformer and the Pooling."""
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
    # It does nothing outside training.
    modules = [(kind, place) for kind, place in modules if kind != "Dropout"]
    for _, place in modules:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise BundleInvalid(f"{path} names {place!r}, outside the folder", "Do not use this model.")
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] and kinds[:1] != [_STATIC]:
        raise UnsupportedArchitecture(
            f"{path} lists {', '.join(kinds)}; es-sbert reads Transformer and Pooling, or StaticEmbedding, then Dense "
            "and Normalize",
            "Choose a model of that shape.",
        )
    return modules


def _read_pooling(folder: Path, ignored: Collection[str]) -> tuple[tuple[Pooling, ...], int]:
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


def _read_dense_and_normalize(
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
    settings = read_optional_json(folder / "tokenizer_config.json")
    tokenizer = read_tokenizer_json(folder, settings, config)
    resolved = resolve_tokenizer(folder, tokenizer, settings, config)
    find_weight_files(folder)
    return SentenceModel(
        folder=folder,
        name=name,
        transformer="",
        architecture=str(config.get("model_type", "unknown")),
        transformer_config=config,
        pooling=tuple(pooling),
        max_tokens=max_input_tokens(folder, config, {}, tokenizer),
        dimensions=hidden_width(folder, config) * len(pooling),
        tokenizer_class=resolved.class_name,
        tokenizer_changes=resolved.changes,
        tokenizer_is_known=resolved.is_known,
        uses_token_types=resolved.uses_token_types,
    )
