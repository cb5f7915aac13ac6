"""Read the Transformer of a model folder: settings, weights, tokenizer, and the maximum length of texts.

sentence_bert_config.json overrides settings in config.json and tokenizer_config.json. The functions return the settings
that sentence-transformers uses in the end, and refuse those that es-sbert does not apply.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from es_sbert.bundle.fingerprint import fingerprint_settings, hash_tensors
from es_sbert.bundle.known_settings import CONFIG_TYPES, CONFIGS, ROTARY_CONFIGS, check_settings
from es_sbert.bundle.model_files import COPY_AGAIN, find_weight_files, read_json, read_optional_json, refuse_adapter
from es_sbert.bundle.modules import Feature, InputModule, Pooling, PromptKind
from es_sbert.bundle.tokenizer_settings import read_tokenizer_json, resolve_tokenizer
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting

# Names that sentence-transformers has used for the file with the maximum input; the first one found is used.
SENTENCE_BERT_CONFIG_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

# A larger model_max_length means that there is no limit (transformers writes 10^30).
_NO_LIMIT = 10**9


class TextModel(BaseModel, frozen=True):
    """What sentence encoders and cross-encoders have in common: a network that reads tokens, and its tokenizer.

    Class attributes:
        reads_pairs: Whether its inputs are pairs of texts.

    Attributes:
        folder: The model folder.
        name: Name in messages: the hub id, package name or folder name by which it was opened.
        transformer: Folder of the transformer (config.json, model.safetensors), relative to `folder`.
        architecture: `model_type` of the transformer's config (bert, roberta, xlm-roberta, distilbert, mpnet, …);
            `static` for a StaticEmbedding, a table of token vectors without a network.
        transformer_config: The transformer's config.json.
        max_tokens: Maximum input in tokens, special tokens included; longer inputs are truncated, of a pair the longer
            text.
        lowercase: Whether the tokenizer first lower-cases texts, including prompts (`do_lower_case`).
        tokenizer_changes: Parts that transformers builds differently from tokenizer.json; see `ResolvedTokenizer`.
        tokenizer_arguments: Arguments of the tokenizer's constructor that override its files (`processor_kwargs`).
        adds_special_tokens: Whether special tokens are added to texts; not for a StaticEmbedding.
        fingerprint: Hash of weights, tokenizer and everything else that affects a vector or score: models with equal
            fingerprints compute the same.
    """

    reads_pairs: ClassVar = False

    folder: Path
    name: str
    transformer: str = ""
    architecture: str
    transformer_config: dict[str, Any]
    max_tokens: int
    lowercase: bool = False
    tokenizer_changes: dict[str, Any] = {}
    tokenizer_arguments: dict[str, Any] = {}
    adds_special_tokens: bool = True
    fingerprint: str = ""

    @property
    def transformer_folder(self) -> Path:
        return self.folder / self.transformer

    @property
    def tokenizer_file(self) -> Path:
        return self.transformer_folder / "tokenizer.json"

    def tokenizer_json(self) -> dict[str, Any]:
        """Read the tokenizer.json, or build it from the vocabulary if the folder has none.

        Raises:
            BundleInvalid: a file is broken.
        """
        return read_tokenizer_json(
            self.transformer_folder, self.tokenizer_settings(), self.transformer_config, pairs=self.reads_pairs
        )

    def tokenizer_settings(self) -> dict[str, Any]:
        """Read the tokenizer_config.json, with the arguments that override it; empty if there is none."""
        return {**read_optional_json(self.transformer_folder / "tokenizer_config.json"), **self.tokenizer_arguments}

    @property
    def longest_input(self) -> int:
        """Maximum input in tokens over all kinds."""
        return self.max_tokens

    @property
    def shortest_input(self) -> int:
        """Maximum input in tokens of the kind with the lowest maximum."""
        return self.max_tokens


def read_transformer(folder: Path, transformer: str, ignored: Collection[str], *, is_plain: bool) -> InputModule:
    """Read the Transformer in a folder of a model folder.

    Args:
        folder: The model folder.
        transformer: The Transformer's folder, relative to it.
        ignored: Unknown settings to accept.
        is_plain: Whether the model folder has no modules.json, so that sentence-transformers' defaults for such a
            folder apply.

    Raises:
        BundleInvalid: a file is missing or broken, or weights are pickled.
        UnsupportedSetting: a setting that may change vectors and that es-sbert does not apply.
    """
    place = folder / transformer
    refuse_adapter(place)
    # Like sentence-transformers, read sentence_bert_config.json only if modules.json exists.
    sbert = _read_sentence_bert_config(place, ignored, is_plain=is_plain)
    config = _read_transformer_config(place, sbert, ignored)
    tokenizer_settings = _read_tokenizer_settings(place, sbert, ignored)
    tokenizer = read_tokenizer_json(place, tokenizer_settings, config)
    check_truncation(place, tokenizer_settings, tokenizer)
    check_network_inputs(place, tokenizer_settings, tokenizer, config)
    resolved = resolve_tokenizer(place, tokenizer, tokenizer_settings, config)
    max_tokens, by_kind = _input_limits(place, config, sbert, tokenizer)
    files = find_weight_files(place)
    return InputModule(
        settings={
            "architecture": str(config.get("model_type", "unknown")),
            "transformer_config": config,
            "max_tokens": max_tokens,
            "max_tokens_by_kind": by_kind,
            "lowercase": sbert.get("do_lower_case", False),
            "tokenizer_class": resolved.class_name,
            "tokenizer_changes": resolved.changes,
            "tokenizer_is_known": resolved.is_known,
            "tokenizer_arguments": sbert["processor_kwargs"],
            "uses_token_types": resolved.uses_token_types,
        },
        output=_plain_pooling(folder, config) if is_plain else Feature(width=None),
        weights_hash=hash_tensors(files),
        fingerprint_fields=("lowercase",),
        fingerprint_settings={"config": fingerprint_settings(config, files)},
    )


def _plain_pooling(folder: Path, config: dict[str, Any]) -> Feature:
    """Return the sentence vector that sentence-transformers computes with a transformers folder."""
    names = config.get("architectures") or [""]
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
            f"{folder} has no modules.json, but a chat template, so sentence-transformers turns each text into a chat "
            "message",
            "Save it with a pooling: SentenceTransformer(modules=[Transformer(...), Pooling(...)]).save(folder).",
        )
    is_causal = str(names[0]).endswith("ForCausalLM") and config.get("is_causal", True)
    return Feature(hidden_width(folder, config), pooling=(Pooling.LASTTOKEN if is_causal else Pooling.MEAN,))


def _read_sentence_bert_config(folder: Path, ignored: Collection[str], *, is_plain: bool) -> dict[str, Any]:
    """Read the sentence_bert_config.json of a transformer's folder, under any of its names; empty if there is none.

    Arguments get their new names: `processor_kwargs` for `tokenizer_args`, and so on.

    Raises:
        BundleInvalid: the file is broken.
        UnsupportedSetting: the file has a setting that may change vectors and is not applied.
    """
    file, sbert = folder / SENTENCE_BERT_CONFIG_FILES[0], {}
    for name in () if is_plain else SENTENCE_BERT_CONFIG_FILES:
        if found := read_optional_json(folder / name):
            file, sbert = folder / name, found
            break
    check_settings(file, sbert, "sentence_bert_config.json", ignored)
    old_names = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
    sbert = {key: value for key, value in sbert.items() if key not in old_names} | {
        new: sbert[old] for old, new in old_names.items() if old in sbert
    }
    if not isinstance(sbert.get("max_seq_length"), int | None):
        raise BundleInvalid(f"{file} has a setting of the wrong type: max_seq_length is not a number", COPY_AGAIN)
    for key in ("model_kwargs", "processor_kwargs", "config_kwargs", "processing_kwargs", "modality_config"):
        sbert[key] = sbert.get(key) or {}
        if not isinstance(sbert[key], dict):
            raise BundleInvalid(f"{file} has a setting of the wrong type: {key} is not an object", COPY_AGAIN)
    check_settings(file, sbert["model_kwargs"], "model_kwargs", ignored, "model_kwargs.")
    processing = sbert["processing_kwargs"]
    check_settings(file, processing, "processing_kwargs", ignored, "processing_kwargs.")
    for key in ("text", "common"):
        name = f"processing_kwargs.{key}"
        check_settings(file, processing.get(key) or {}, name, ignored, f"{name}.")
    _check_modality_config(file, sbert)
    return sbert


# Architectures whose last hidden state is the output of their last layer, unchanged.
_WITHOUT_FINAL_NORM = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet")


def _check_modality_config(file: Path, sbert: dict[str, Any]) -> None:
    """Check that the input of the network is plain text, and its output the last hidden state."""
    modality_config = sbert["modality_config"]
    if not modality_config:
        return
    text = modality_config.get("text")
    if not isinstance(text, dict | None):
        raise BundleInvalid(
            f"{file} has a setting of the wrong type: modality_config.text is not an object", COPY_AGAIN
        )
    if text is None or "message" in modality_config:
        what = "does not accept text" if text is None else "turns each text into a chat message"
        raise UnsupportedSetting(
            f"{file} {what} (modality_config)",
            "Choose a model for texts, or serve this one with sentence-transformers.",
        )
    method, output, remedy = text.get("method"), text.get("method_output_name"), "Serve it with sentence-transformers."
    if method == "forward" and output in ("last_hidden_state", ["last_hidden_state"]):
        return
    config = {**read_optional_json(file.parent / "config.json"), **sbert["config_kwargs"]}
    layers_key = "n_layers" if config.get("model_type") == "distilbert" else "num_hidden_layers"
    match output, config.get(layers_key):
        case ["hidden_states", int(state)], int(layers) if (
            method == "forward" and config.get("model_type") in _WITHOUT_FINAL_NORM and not isinstance(state, bool)
        ):
            number = state + layers + 1 if state < 0 else state
            if number == layers:
                return
            if 0 < number < layers:
                remedy = f'Save it with {layers_key} {number} and method_output_name "last_hidden_state".'
    raise UnsupportedSetting(
        f"{file} uses {output!r} of {method!r} as token vectors (modality_config); es-sbert uses the last hidden "
        "state of the network",
        remedy,
    )


def _read_transformer_config(folder: Path, sbert: dict[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """Read the config.json of a transformer's folder, with overrides from sentence_bert_config.json.

    Raises:
        BundleInvalid: the file is missing or broken.
        UnsupportedSetting: the file has a setting that may change vectors and is not applied.
    """
    path = folder / "config.json"
    config = read_json(path)
    # An architecture without a table is traced, so that the library applies all settings itself.
    if (kind := config.get("model_type")) in CONFIGS:
        check_settings(path, config, kind, ignored)
        check_settings(folder / SENTENCE_BERT_CONFIG_FILES[0], sbert["config_kwargs"], kind, ignored, "config_kwargs.")
    config = {**config, **sbert["config_kwargs"]}
    if not isinstance(config.get("model_type", ""), str):
        raise BundleInvalid(f"{path} has a setting of the wrong type: model_type is not a name", COPY_AGAIN)
    is_known = config.get("model_type") in CONFIGS + ROTARY_CONFIGS
    # For other architectures es-sbert itself reads only this setting.
    types = CONFIG_TYPES if is_known else {"max_position_embeddings": (int, type(None))}
    for key, allowed in types.items():
        value = config.get(key)
        # A bool is an int in Python, but not in a file.
        if key in config and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
            raise BundleInvalid(f"{path} has a setting of the wrong type: {key} is {value!r}", COPY_AGAIN)
    return config


def _read_tokenizer_settings(folder: Path, sbert: dict[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """Read the tokenizer_config.json of a transformer's folder, with overrides from sentence_bert_config.json.

    Raises:
        BundleInvalid: the file is broken.
        UnsupportedSetting: the file has a setting that may change vectors and is not applied.
    """
    path, options = folder / "tokenizer_config.json", sbert["processor_kwargs"]
    settings = read_optional_json(path)
    check_settings(path, settings, path.name, {*ignored, *(key for key in settings if key.endswith("_token"))})
    check_settings(folder / SENTENCE_BERT_CONFIG_FILES[0], options, path.name, ignored, "processor_kwargs.")
    # Refused, because the class is chosen before these arguments are read, and because their special tokens override
    # special_tokens_map.json.
    early = [key for key in options if key.startswith("tokenizer_") or key.endswith(("_token", "_tokens"))]
    if early:
        raise UnsupportedSetting(
            f"{folder / SENTENCE_BERT_CONFIG_FILES[0]} sets {early[0]} of the tokenizer, which es-sbert does not apply",
            "Save the tokenizer with it: AutoTokenizer.from_pretrained(MODEL, ...).save_pretrained(MODEL).",
        )
    return {**settings, **options}


def check_network_inputs(folder: Path, settings: dict[str, Any], tokenizer: dict[str, Any], config: Any) -> None:
    """Check that padding changes no vector and no score: that it is masked, and moves no position.

    Args:
        folder: Folder of the transformer.
        settings, tokenizer, config: Its tokenizer_config.json, tokenizer.json and config.json.

    Raises:
        UnsupportedSetting: it does.
    """
    path, names = folder / "tokenizer_config.json", settings.get("model_input_names")
    if names is not None and (not isinstance(names, list) or not {"input_ids", "attention_mask"} <= set(names)):
        raise UnsupportedSetting(
            f"{path} omits the attention mask (model_input_names: {names!r}): results would depend on the batch",
            "Add input_ids and attention_mask.",
        )
    if config.get("model_type") in ("bert", "distilbert") and _side("padding", settings, tokenizer) == "left":
        raise UnsupportedSetting(
            f"{path} pads on the left, which moves the positions of this architecture: results would depend on the "
            "batch",
            "Set padding_side to right.",
        )


def truncation_side(settings: dict[str, Any], tokenizer: dict[str, Any]) -> str:
    """Side at which long texts are truncated, from tokenizer_config.json, or else from tokenizer.json."""
    return _side("truncation", settings, tokenizer)


def _side(key: str, settings: dict[str, Any], tokenizer: dict[str, Any]) -> str:
    return str(settings.get(f"{key}_side") or (tokenizer.get(key) or {}).get("direction") or "right").lower()


def check_truncation(folder: Path, settings: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    """Check that long texts are truncated at their end, not at their beginning."""
    if (side := truncation_side(settings, tokenizer)) != "right":
        raise UnsupportedArchitecture(
            f"{folder} truncates long texts at their beginning (truncation_side {side})",
            "es-sbert truncates at the end: choose a model that does, or save this one with truncation_side right.",
        )


def _input_limits(
    folder: Path, config: dict[str, Any], sbert: dict[str, Any], tokenizer: dict[str, Any]
) -> tuple[int, dict[PromptKind, int]]:
    """Return the maximum input in tokens, and the maximum of queries and of documents if it differs."""
    options = sbert["processor_kwargs"]
    stated = {"max_seq_length": options["model_max_length"]} if "model_max_length" in options else {}
    max_tokens = max_input_tokens(folder, config, {**sbert, **stated}, tokenizer)
    positions = _positions(config) or _NO_LIMIT
    call_arguments = sbert["processing_kwargs"].get("text") or {}
    if "max_length" in call_arguments:
        # This overrides all other limits; null means the tokenizer's limit.
        length = call_arguments["max_length"]
        return max_tokens if length is None else min(_checked_length(folder, length), positions), {}
    by_kind: dict[PromptKind, int] = {}
    kinds: tuple[PromptKind, ...] = ("query", "document")
    for kind in kinds:
        if (length := sbert.get(f"{kind}_length")) is not None:
            by_kind[kind] = min(_checked_length(folder, length), positions)
    return max_tokens, {kind: length for kind, length in by_kind.items() if length != max_tokens}


def _checked_length(folder: Path, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BundleInvalid(
            f"{folder / SENTENCE_BERT_CONFIG_FILES[0]} has the length {value!r}, expected a positive number of tokens",
            COPY_AGAIN,
        )
    return value


def _positions(config: dict[str, Any]) -> int | None:
    """Number of positions for texts; None if there is no limit."""
    positions = config.get("max_position_embeddings")
    if positions is not None and config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        # Position ids start at pad_token_id + 1, so the first positions are never used.
        padding = config.get("pad_token_id", 1)
        # MPNet's code does not read the setting.
        positions -= (padding if isinstance(padding, int) and config.get("model_type") != "mpnet" else 1) + 1
    # XLNet writes -1 for unlimited positions.
    return positions if positions and positions > 0 else None


def max_input_tokens(folder: Path, config: dict[str, Any], sbert: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    """Find the maximum input in tokens: the model's setting, limited by its number of positions.

    Args:
        folder: Folder of the transformer.
        config, sbert, tokenizer: Its config.json, sentence_bert_config.json and tokenizer.json.

    Raises:
        BundleInvalid: no setting defines the maximum, or it is not a number.
    """
    positions = _positions(config)
    settings = read_optional_json(folder / "tokenizer_config.json")
    stated = sbert.get("max_seq_length") or settings.get("model_max_length") or settings.get("max_len")
    if not isinstance(stated, int | float | None):
        raise BundleInvalid(
            f"{folder} has a setting of the wrong type: the maximum length is {stated!r}, not a number", COPY_AGAIN
        )
    if not stated and not positions:
        # The truncation in tokenizer.json is left over from some run, so it is used only if there is no other setting.
        stated = (tokenizer.get("truncation") or {}).get("max_length")
    limits = [int(value) for value in (stated, positions) if value and 0 < value < _NO_LIMIT]
    if not limits:
        raise BundleInvalid(
            f"{folder} does not define a maximum input length", "Set max_seq_length in sentence_bert_config.json."
        )
    return min(limits)


# Keys of configurations for the width of a token vector.
_WIDTH_KEYS = ("hidden_size", "dim", "d_model", "n_embd", "emb_dim")


def hidden_width(folder: Path, config: dict[str, Any]) -> int:
    width = next((config[key] for key in _WIDTH_KEYS if isinstance(config.get(key), int)), None)
    if width is None and "model_type" not in config:
        raise UnsupportedArchitecture(
            f"{folder / 'config.json'} names no architecture of transformers (model_type)",
            "If sentence-transformers opens it, save it with its modules: SentenceTransformer(MODEL).save(FOLDER).",
        )
    if width is None:
        raise BundleInvalid(
            f"{folder / 'config.json'} does not contain the width of a token vector ({', '.join(_WIDTH_KEYS)})",
            "Use the folder of a transformer encoder.",
        )
    return int(width)
