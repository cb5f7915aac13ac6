"""Read a cross-encoder folder: one transformer with a sequence classification head.

Both layouts are supported: transformers' `save_pretrained` and sentence-transformers' `CrossEncoder.save`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from es_sbert.bundle.fingerprint import compute_fingerprint, fingerprint_settings, hash_tensors
from es_sbert.bundle.known_settings import check_settings
from es_sbert.bundle.model_files import (
    COPY_AGAIN,
    find_weight_files,
    read_json,
    read_module_list,
    read_optional_json,
    refuse_adapter,
)
from es_sbert.bundle.tokenizer_settings import read_tokenizer_json, resolve_tokenizer
from es_sbert.bundle.transformer_module import TextModel, check_network_inputs, max_input_tokens, truncation_side
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting, error_summary

_HEAD = "ForSequenceClassification"
_SENTENCE_TRANSFORMERS_FILE = "config_sentence_transformers.json"
_TRANSFORMER_FILE = "sentence_bert_config.json"


class ScoreActivation(StrEnum):
    """Activation that turns a cross-encoder's output into a score."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"
    TANH = "tanh"


_ACTIVATIONS = {
    "Identity": ScoreActivation.IDENTITY,
    "Sigmoid": ScoreActivation.SIGMOID,
    "Softmax": ScoreActivation.SOFTMAX,
    "Tanh": ScoreActivation.TANH,
}


class CrossEncoderModel(TextModel, frozen=True):
    """A cross-encoder's folder, read and validated.

    Attributes: As in `TextModel`, and:
        labels: Names of the outputs in their order; one for a reranker.
        activation: Applied to each output.
        prompt: Text in front of the first text of each pair.
    """

    reads_pairs: ClassVar = True

    labels: tuple[str, ...]
    activation: ScoreActivation
    prompt: str = ""


def is_cross_encoder(folder: Path) -> bool:
    """Whether a folder holds a cross-encoder, by the class that sentence-transformers records or else by its network.

    A sentence encoder that was made from a classifier may still name the classifier in config.json, but it has a
    modules.json.

    Raises:
        BundleInvalid: a file is broken.
    """
    kind = read_optional_json(folder / "config_sentence_transformers.json").get("model_type")
    if kind is not None:
        return bool(kind == "CrossEncoder")
    if (folder / "modules.json").exists():
        return False
    architectures = read_optional_json(folder / "config.json").get("architectures") or []
    return any(str(architecture).endswith(_HEAD) for architecture in architectures)


def read_cross_encoder(folder: Path, name: str | None = None) -> CrossEncoderModel:
    """Read and check a cross-encoder's folder.

    Args:
        folder: The folder with config.json.
        name: Name in messages; by default the name of the folder.

    Raises:
        BundleInvalid: a file is missing or broken, or weights are pickled.
        UnsupportedArchitecture: the network is not a single transformer with a classification head.
        UnsupportedSetting: a setting that may change scores and that es-sbert does not apply.
    """
    refuse_adapter(folder, "CrossEncoder")
    config = read_json(folder / "config.json")
    # Like sentence-transformers, read its own files only if modules.json exists.
    is_plain = not (folder / "modules.json").exists()
    settings = {} if is_plain else read_optional_json(folder / _SENTENCE_TRANSFORMERS_FILE)
    sbert = {} if is_plain else read_optional_json(folder / _TRANSFORMER_FILE)
    _check_shape(folder, config)
    tokenizer_settings = read_optional_json(folder / "tokenizer_config.json")
    tokenizer = read_tokenizer_json(folder, tokenizer_settings, config, pairs=True)
    _check_settings(folder, settings, sbert, tokenizer_settings)
    check_network_inputs(folder, tokenizer_settings, tokenizer, config)
    _check_chat_template(folder, sbert, tokenizer_settings)
    files = find_weight_files(folder, "CrossEncoder")
    try:
        labels = _labels(config)
        model = CrossEncoderModel(
            folder=folder,
            name=name or folder.resolve().name,
            architecture=str(config.get("model_type", "unknown")),
            transformer_config=config,
            labels=labels,
            activation=_activation(folder, config, settings, len(labels)),
            max_tokens=max_input_tokens(folder, config, _length_settings(sbert), tokenizer),
            lowercase=sbert.get("do_lower_case", False),
            prompt=_default_prompt(folder, settings),
            tokenizer_changes=resolve_tokenizer(folder, tokenizer, tokenizer_settings, config, pairs=True).changes,
        )
    except (ValueError, TypeError, AttributeError) as error:  # pydantic's ValidationError is a ValueError
        raise BundleInvalid(f"{folder} has a setting of the wrong type: {error_summary(error)}", COPY_AGAIN) from error
    decisive = model.model_dump(mode="json", include={"labels", "activation", "max_tokens", "lowercase"})
    # Add these settings only for models that have them, so that all others keep the fingerprints of earlier releases.
    decisive |= {key: value for key in ("prompt", "tokenizer_changes") if (value := getattr(model, key))}
    if (side := truncation_side(tokenizer_settings, tokenizer)) != "right":
        decisive["truncation_side"] = side
    decisive["config"] = fingerprint_settings(config, files)
    fingerprint = compute_fingerprint(hash_tensors(files), model.tokenizer_file, model.tokenizer_json, decisive)
    return model.model_copy(update={"fingerprint": fingerprint})


def _check_shape(folder: Path, config: dict[str, Any]) -> None:
    architectures = [str(architecture) for architecture in config.get("architectures") or []]
    modules = read_module_list(folder) if (folder / "modules.json").exists() else [("Transformer", "")]
    if modules != [("Transformer", "")] or not any(name.endswith(_HEAD) for name in architectures):
        raise UnsupportedArchitecture(
            f"{folder} holds {', '.join(kind for kind, _ in modules)} with {', '.join(architectures) or 'no network'}; "
            f"es-sbert reads cross-encoders that are one transformer with a classification head (…{_HEAD})",
            "Choose such a model.",
        )


def _check_settings(
    folder: Path, settings: dict[str, Any], sbert: dict[str, Any], tokenizer_settings: dict[str, Any]
) -> None:
    """Refuse settings of sentence-transformers and the tokenizer that may change scores and are not applied."""
    file = folder / _TRANSFORMER_FILE
    processing = sbert.get("processing_kwargs") or {}
    tokens = [key for key in tokenizer_settings if key.endswith("_token")]
    try:
        check_settings(folder / "tokenizer_config.json", tokenizer_settings, "tokenizer_config.json", tokens)
        check_settings(folder / _SENTENCE_TRANSFORMERS_FILE, settings, f"cross-encoder {_SENTENCE_TRANSFORMERS_FILE}")
        check_settings(file, sbert, f"cross-encoder {_TRANSFORMER_FILE}")
        for key, table in (
            ("model_kwargs", "model_kwargs"), ("model_args", "model_kwargs"),
            ("processor_kwargs", "cross-encoder processor_kwargs"),
            ("tokenizer_args", "cross-encoder processor_kwargs"),
        ):  # fmt: skip
            check_settings(file, sbert.get(key) or {}, table, prefix=f"{key}.")
        check_settings(file, processing, "processing_kwargs", prefix="processing_kwargs.")
        for key, table in (("text", "cross-encoder processing_kwargs.text"), ("common", "processing_kwargs.common")):
            check_settings(file, processing.get(key) or {}, table, prefix=f"processing_kwargs.{key}.")
    except UnsupportedSetting as error:
        raise UnsupportedSetting(
            error.message.replace("may change vectors", "may change scores"),
            "Remove the setting if it does not change scores; otherwise score pairs with sentence-transformers.",
        ) from error
    modalities = sbert.get("modality_config") or {"text": {"method_output_name": "logits"}}
    if not isinstance(modalities, dict):
        raise BundleInvalid(f"{file} has a setting of the wrong type: modality_config is not an object", COPY_AGAIN)
    text = modalities.get("text")
    if not isinstance(text, dict) or text.get("method", "forward") != "forward":
        raise UnsupportedSetting(f"{file} does not pass texts to the network (modality_config)", _OTHER_CROSS_ENCODER)
    if text.get("method_output_name") not in ("logits", ["logits"]):
        raise UnsupportedSetting(
            f"{file} uses {text.get('method_output_name')!r} as scores (modality_config); es-sbert uses the logits",
            _OTHER_CROSS_ENCODER,
        )


_OTHER_CROSS_ENCODER = "Choose another cross-encoder, or score pairs with sentence-transformers."


def _check_chat_template(folder: Path, sbert: dict[str, Any], tokenizer_settings: dict[str, Any]) -> None:
    """Refuse models that format a pair as a chat, which sentence-transformers does for every model with a template."""
    modalities = sbert.get("modality_config")
    has_template = bool(tokenizer_settings.get("chat_template")) or (folder / "chat_template.jinja").exists()
    if "message" in modalities if modalities else has_template:
        raise UnsupportedSetting(
            f"{folder} turns each pair into a chat message (chat_template), which es-sbert does not support",
            "If the model was trained without it, remove chat_template.jinja, and chat_template in "
            "tokenizer_config.json; otherwise score pairs with sentence-transformers.",
        )


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    """Names of the outputs, in order; transformers generates names that config.json lacks."""
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels")
        return tuple(f"LABEL_{number}" for number in range(2 if count is None else count))
    return tuple(str(label) for _, label in sorted(names.items(), key=lambda item: int(item[0])))


def _length_settings(sbert: dict[str, Any]) -> dict[str, Any]:
    """Return the settings for `max_input_tokens`, after applying the settings that override them."""
    arguments = sbert.get("processor_kwargs") or sbert.get("tokenizer_args") or {}
    text = (sbert.get("processing_kwargs") or {}).get("text") or {}
    stated = text.get("max_length") or arguments.get("model_max_length") or sbert.get("max_seq_length")
    return {**sbert, "max_seq_length": stated}


def _default_prompt(folder: Path, settings: dict[str, Any]) -> str:
    """The text that sentence-transformers puts in front of the first text of each pair."""
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if name is None:
        return ""
    if name not in prompts:
        raise BundleInvalid(
            f"{folder / _SENTENCE_TRANSFORMERS_FILE} has the default prompt {name!r}, but no prompt with that name",
            "Add it to prompts, or set default_prompt_name to null.",
        )
    return prompts[name] or ""


def _activation(folder: Path, config: dict[str, Any], settings: dict[str, Any], labels: int) -> ScoreActivation:
    """Find the activation that sentence-transformers applies; by default sigmoid for one label, none for several."""
    noted = settings.get("activation_fn")
    if noted is None:
        older = config.get("sbert_ce_default_activation_function")
        noted = (config.get("sentence_transformers") or {}).get("activation_fn", older)
    if noted is None:
        return ScoreActivation.SIGMOID if labels == 1 else ScoreActivation.IDENTITY
    activation = _ACTIVATIONS.get(str(noted).rpartition(".")[2])
    if activation is None or not str(noted).startswith("torch."):
        *most, last = _ACTIVATIONS
        raise UnsupportedArchitecture(
            f"{folder} uses the activation function {noted}",
            f"es-sbert supports torch's {', '.join(most)} and {last}; save the model with one of them.",
        )
    return activation
