"""`SentenceModel`: the settings of a sentence encoder, read from its folder.

A sentence-transformers folder has a modules.json, which lists a Transformer and a Pooling, or a StaticEmbedding, and
the modules after them. The folder of a plain transformer has none: `read_sentence_model` then uses the default pooling
of sentence-transformers, and `read_plain_transformer` that of the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field, computed_field

from es_sbert.bundle.cross_encoder_model import is_cross_encoder
from es_sbert.bundle.fingerprint import compute_fingerprint, hash_tensors
from es_sbert.bundle.known_settings import check_settings
from es_sbert.bundle.model_files import COPY_AGAIN, find_weight_files, read_json, read_optional_json, refuse_adapter
from es_sbert.bundle.modules import STATIC, Dense, InputModule, Normalize, Pooling, PromptKind, VectorModule
from es_sbert.bundle.sentence_vector import plain_modules, read_modules, read_sentence_vector
from es_sbert.bundle.static_embedding import read_static_embedding
from es_sbert.bundle.tokenizer_settings import read_tokenizer_json, resolve_tokenizer, special_tokens
from es_sbert.bundle.transformer_module import TextModel, hidden_width, max_input_tokens, read_transformer
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting, error_summary

# es-sbert reads models as these releases do.
_FOLLOWED_RELEASES = {"sentence_transformers": "6.2.0", "sentence-transformers": "6.2.0", "transformers": "5.23.0"}

KINDS: tuple[PromptKind | None, ...] = (None, "document", "query")

# Names under which sentence-transformers looks for a prompt of each kind; the first one that exists is used.
PROMPT_NAMES: dict[PromptKind, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


class SentenceModel(TextModel, frozen=True):
    """A model folder, read and validated.

    Attributes: As in `TextModel`, and:
        pooling: Pooling modes; several are concatenated in this order.
        token_modules: Modules between transformer and pooling, applied to the vector of each token.
        include_prompt: Whether the pooling includes the tokens of a prompt.
        modules: Modules after pooling, in order.
        truncate_dim: Number of values to which the modules' output is truncated; None for all.
        max_tokens_by_kind: The maximum for queries or documents, if it differs from `max_tokens`.
        dimensions: Length of a sentence vector.
        prompts: Maps prompt names to the text in front of an input.
        default_prompt: Name of the prompt of inputs that are neither query nor document.
        tokenizer_class: Tokenizer class of transformers.
        tokenizer_is_known: Whether es-sbert knows this class, so that `tokenizer_changes` is complete.
        uses_token_types: Whether the network gets a token type other than 0 for some tokens of a text.
        ignored_settings: Unknown settings that the user accepted.
    """

    pooling: tuple[Pooling, ...]
    token_modules: tuple[VectorModule, ...] = ()
    include_prompt: bool = True
    modules: tuple[VectorModule, ...] = ()
    truncate_dim: int | None = None
    max_tokens_by_kind: dict[PromptKind, int] = Field(default_factory=dict)
    dimensions: int
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt: str | None = None
    tokenizer_class: str = ""
    tokenizer_is_known: bool = True
    uses_token_types: bool = False
    ignored_settings: tuple[str, ...] = ()

    @computed_field  # type: ignore[prop-decorator]  # mypy has no decorated properties
    @property
    def normalize(self) -> bool:
        """Whether the last module scales vectors to unit length."""
        return self.modules[-1:] == (Normalize(),)

    @property
    def dense(self) -> tuple[Dense, ...]:
        """The Dense modules after pooling, in order."""
        return tuple(module for module in self.modules if isinstance(module, Dense))

    @property
    def has_plain_modules(self) -> bool:
        """Whether its modules after pooling are Dense without a residual, and optionally a Normalize at the end."""
        last = (Normalize(),) if self.normalize else ()
        return not self.token_modules and self.modules == (
            *(layer for layer in self.dense if not layer.residual),
            *last,
        )

    def special_tokens(self) -> frozenset[str]:
        """Read the tokens that transformers counts as special (`all_special_tokens`).

        Raises:
            BundleInvalid: a file is broken.
        """
        return special_tokens(
            self.transformer_folder, self.tokenizer_json(), self.tokenizer_settings(), self.transformer_config
        )

    @property
    def longest_input(self) -> int:
        """Maximum input in tokens over all kinds."""
        return max(self.max_tokens, *self.max_tokens_by_kind.values(), 0)

    @property
    def shortest_input(self) -> int:
        """Maximum input in tokens of the kind with the lowest maximum."""
        return min([self.max_tokens, *self.max_tokens_by_kind.values()])

    def input_limit(self, kind: PromptKind | None) -> int:
        """Maximum input of this kind in tokens, special tokens included."""
        return self.max_tokens if kind is None else self.max_tokens_by_kind.get(kind, self.max_tokens)

    def prompt(self, kind: PromptKind | None) -> str:
        """Text to put in front of an input of this kind; empty if the model has none.

        The default prompt is only for inputs without a kind, as in sentence-transformers' `encode_query` and
        `encode_document`: it may be the prompt for queries, which must not be used for documents.
        """
        if kind is None:
            return self.prompts.get(self.default_prompt, "") if self.default_prompt else ""
        name = self.prompt_name(kind)
        return "" if name is None else self.prompts[name]

    def prompt_name(self, kind: PromptKind) -> str | None:
        """Name of the prompt for inputs of this kind, which may be empty; None if the model has none."""
        return next((name for name in PROMPT_NAMES[kind] if name in self.prompts), None)


def read_sentence_model(folder: Path, name: str | None = None, *, ignored: Collection[str] = ()) -> SentenceModel:
    """Read and check a model folder: a Transformer or StaticEmbedding of sentence-transformers, or a plain transformer.

    Args:
        folder: The folder with modules.json, or the folder of a plain transformer as written by transformers.
        name: Name in messages; by default the name of the folder.
        ignored: Unknown settings to accept, besides those accepted at the export of a bundle.

    Raises:
        BundleInvalid: a file is missing or broken, the weights are pickled, or dimensions are inconsistent.
        UnsupportedArchitecture: es-sbert does not support one of the modules.
        UnsupportedSetting: es-sbert does not support a setting that may change the vectors.
    """
    if (folder / "poly_encoder.json").exists():  # the rest of the folder is another model: its sentence encoder
        raise UnsupportedArchitecture(
            f"{name or folder} is a poly-encoder, which es-sbert does not read",
            "Train a cross-encoder with sentence-transformers, or remove poly_encoder.json from a copy to use its "
            "sentence encoder alone.",
        )
    refuse_adapter(folder)
    if is_cross_encoder(folder):
        raise BundleInvalid(
            f"{folder} is a cross-encoder, which scores pairs of texts and does not compute sentence vectors",
            f"Rerank hits with it: `es-sbert search QUERY --rerank {folder}`."
            if (folder / "es_sbert_reranker.json").exists()
            else f"Export it as a reranker: `es-sbert export {folder} -o RERANKER`.",
        )
    # Read from the manifest directly: importing bundle.py, which imports this module, would be circular.
    accepted = read_optional_json(folder / "es_sbert.json").get("ignored_settings") or ()
    ignored = tuple(sorted({*ignored, *accepted}))
    name = name or folder.resolve().name
    if not (folder / "modules.json").exists():
        return _read_model(folder, name, plain_modules(folder), ignored, is_plain=True)
    return _read_model(folder, name, read_modules(folder, ignored), ignored)


def _read_model(
    folder: Path,
    name: str,
    modules: list[tuple[str, str]],
    ignored: tuple[str, ...],
    *,
    is_plain: bool = False,
) -> SentenceModel:
    """Read a model with given modules.

    Args:
        modules: (class name, folder) of each module.
        is_plain: Whether the folder has no modules.json.
    """
    kind, place = modules[0]
    if kind == STATIC:
        first = read_static_embedding(folder, place)
    else:
        first = read_transformer(folder, place, ignored, is_plain=is_plain)
    vector = first.output if is_plain else read_sentence_vector(folder, modules[1:], first, ignored)
    settings = first.settings | vector.settings
    if not is_plain:
        settings |= _read_settings(folder / "config_sentence_transformers.json", ignored)
    if (kept := settings.get("truncate_dim")) is not None:
        settings["truncate_dim"] = kept if kept < settings["dimensions"] else None
        settings["dimensions"] = min(kept, settings["dimensions"])
    folders = [module.folder for module in vector.token_modules + vector.modules if not isinstance(module, Normalize)]
    weights = [first.weights_hash, *(hash_tensors(find_weight_files(folder / each)) for each in folders)]
    try:
        model = SentenceModel(
            folder=folder,
            name=name,
            transformer=place,
            ignored_settings=ignored,
            **settings,
        )
    except (ValueError, TypeError) as error:  # pydantic's ValidationError is a ValueError
        raise BundleInvalid(f"{folder} has a setting of the wrong type: {error_summary(error)}", COPY_AGAIN) from error
    return model.model_copy(update={"fingerprint": _fingerprint(model, first, "".join(weights))})


def _read_settings(path: Path, ignored: Collection[str]) -> dict[str, Any]:
    """Read the prompts, the name of the default prompt and `truncate_dim` from config_sentence_transformers.json, if
    any.

    Raises:
        BundleInvalid: a setting has the wrong type.
        UnsupportedSetting: a setting that may change vectors and that es-sbert does not apply.
    """
    settings = read_optional_json(path)
    check_settings(path, settings, "config_sentence_transformers.json", ignored)
    _check_requirements(path, settings.get("requirements"))
    # For any other value, including null, sentence-transformers builds other modules.
    if (kind := settings.get("model_type", "SentenceTransformer")) != "SentenceTransformer":
        raise UnsupportedSetting(
            f"{path} sets model_type to {kind!r}", "Choose a model that was saved as a SentenceTransformer."
        )
    kept = settings.get("truncate_dim")
    if kept is not None and (not isinstance(kept, int) or isinstance(kept, bool) or kept < 1):
        raise BundleInvalid(
            f"{path} has the truncate_dim {kept!r}, expected a positive number of values",
            "Correct it, or remove it for whole vectors.",
        )
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise BundleInvalid(
            f"{path} has a setting of the wrong type: prompts is not an object of strings",
            'Write them as {"query": "…", "document": "…"}.',
        )
    if not isinstance(default, str | None):
        raise BundleInvalid(f"{path} has a setting of the wrong type: default_prompt_name is {default!r}", COPY_AGAIN)
    # sentence-transformers defines these two names even if they are not in the file.
    if default is not None and default not in {*prompts, "query", "document"}:
        raise BundleInvalid(
            f"{path} has the default prompt {default!r}, but no prompt with that name",
            "Set default_prompt_name to one of its prompts, or remove it.",
        )
    texts = {name: text or "" for name, text in prompts.items()}
    return {"prompts": texts, "default_prompt": default, "truncate_dim": kept}


def _check_requirements(path: Path, requirements: Any) -> None:
    """Refuse a model that requires a different release of a library than the one that es-sbert follows."""
    for package, requirement in requirements.items() if isinstance(requirements, dict) else ():
        specifier = requirement.get("specifier") if isinstance(requirement, dict) else requirement
        followed = _FOLLOWED_RELEASES.get(package)
        try:
            is_met = followed is None or SpecifierSet(str(specifier or "")).contains(followed, prereleases=True)
        except InvalidSpecifier:
            continue  # sentence-transformers skips it too
        if not is_met:
            raise UnsupportedSetting(
                f"{path} requires {package} {specifier}, but es-sbert reads models like release {followed}",
                "Choose a model that these releases can read.",
            )


def _fingerprint(model: SentenceModel, first: InputModule, weights: str) -> str:
    fields = {"pooling", "normalize", "max_tokens", "prompts", "default_prompt", *first.fingerprint_fields}
    settings = model.model_dump(mode="json", include=fields)
    settings |= _describe_modules(model) | _fingerprint_revisions(model) | first.fingerprint_settings
    return compute_fingerprint(weights, model.tokenizer_file, model.tokenizer_json, settings)


def _describe_modules(model: SentenceModel) -> dict[str, Any]:
    """Describe how a model computes its vectors, for its fingerprint.

    Earlier releases read only models with Dense modules and a final Normalize; the fingerprints of these do not change.
    """
    dense = [layer.model_dump(mode="json", exclude_defaults=True) for layer in model.dense]
    settings: dict[str, Any] = {"dense": dense}
    if not model.has_plain_modules:
        for key in ("token_modules", "modules"):
            settings[key] = [[type(each).__name__, each.model_dump(mode="json")] for each in getattr(model, key)]
    if not model.include_prompt:
        settings["include_prompt"] = False
    if model.truncate_dim is not None:
        settings["truncate_dim"] = model.truncate_dim
    return settings


def _fingerprint_revisions(model: SentenceModel) -> dict[str, Any]:
    """Return the settings that earlier releases read differently, or not at all.

    A setting is in the fingerprint only if the model has it. So the fingerprints of all other models do not change, and
    a model that an earlier release misread has a different fingerprint from its vectors in an index.
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


def read_plain_transformer(folder: Path, name: str, pooling: Sequence[Pooling] = (Pooling.MEAN,)) -> SentenceModel:
    """Read a transformers folder (config.json, safetensors, tokenizer.json), with a pooling of the caller's choice.

    The fingerprint is empty: such a model is a starting point for training, and its vectors are never stored.

    Args:
        folder: The folder.
        name: Name in messages.
        pooling: Pooling modes; several are concatenated.

    Raises:
        BundleInvalid: a file is missing or broken, or the weights are pickled.
    """
    refuse_adapter(folder)
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
