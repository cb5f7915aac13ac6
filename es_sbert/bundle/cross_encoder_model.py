"""Read a cross-encoder folder: one transformer with a sequence classification head.

Both layouts are supported: transformers' `save_pretrained` and sentence-transformers' `CrossEncoder.save`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from es_sbert.bundle.fingerprint import compute_fingerprint, fingerprint_settings, hash_tensors
from es_sbert.bundle.model_files import COPY_AGAIN, find_weight_files, read_json, read_module_list, read_optional_json
from es_sbert.bundle.transformer_settings import max_input_tokens
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture

_HEAD = "ForSequenceClassification"


class ScoreActivation(StrEnum):
    """What turns a cross-encoder's output into a score."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"


_ACTIVATIONS = {"Identity": ScoreActivation.IDENTITY, "Sigmoid": ScoreActivation.SIGMOID}


class CrossEncoderModel(BaseModel, frozen=True):
    """A cross-encoder's folder, read and validated.

    Attributes:
        folder: The model folder.
        name: Name for people.
        architecture: `model_type` of config.json.
        config: config.json.
        labels: Names of the outputs in their order; one for a reranker.
        activation: Applied to each output.
        max_tokens: Longest pair in tokens, special tokens included; longer ones lose tokens of the longer text.
        lowercase: Whether the tokenizer lower-cases texts before all else (`do_lower_case`).
        fingerprint: Hash of weights, tokenizer and everything else that decides a score.
    """

    folder: Path
    name: str
    architecture: str
    config: dict[str, Any]
    labels: tuple[str, ...]
    activation: ScoreActivation
    max_tokens: int
    lowercase: bool
    fingerprint: str

    @property
    def tokenizer_file(self) -> Path:
        return self.folder / "tokenizer.json"


def is_cross_encoder(folder: Path) -> bool:
    """Whether a folder holds a cross-encoder: by the class that sentence-transformers notes, else by its network.

    A sentence encoder may have been cut out of a classifier and still name it in config.json; its modules.json
    has a Pooling.

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
        name: Name for people; the folder's own name by default.

    Raises:
        BundleInvalid: a file is missing or broken, or weights are pickled.
        UnsupportedArchitecture: another network than one transformer with a classification head.
    """
    config = read_json(folder / "config.json")
    settings = read_optional_json(folder / "config_sentence_transformers.json")
    _check_shape(folder, config, settings)
    tokenizer = read_json(folder / "tokenizer.json")
    sbert = read_optional_json(folder / "sentence_bert_config.json")
    files = find_weight_files(folder)
    # transformers leaves out its default, two labels without names.
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    try:
        labels = tuple(str(label) for _, label in sorted(names.items(), key=lambda item: int(item[0])))
        model = CrossEncoderModel(
            folder=folder,
            name=name or folder.resolve().name,
            architecture=str(config.get("model_type", "unknown")),
            config=config,
            labels=labels,
            activation=_activation(folder, config, settings, len(labels)),
            max_tokens=max_input_tokens(folder, config, sbert, tokenizer),
            lowercase=sbert.get("do_lower_case", False),
            fingerprint="",
        )
    except (ValueError, TypeError, AttributeError) as error:  # pydantic's ValidationError is a ValueError
        raise BundleInvalid(f"{folder} has a setting of the wrong type: {error}", COPY_AGAIN) from error
    decisive = model.model_dump(mode="json", include={"labels", "activation", "max_tokens", "lowercase"})
    decisive["config"] = fingerprint_settings(config, files)
    return model.model_copy(update={"fingerprint": compute_fingerprint(hash_tensors(files), tokenizer, decisive)})


def _check_shape(folder: Path, config: dict[str, Any], settings: dict[str, Any]) -> None:
    architectures = [str(architecture) for architecture in config.get("architectures") or []]
    modules = read_module_list(folder) if (folder / "modules.json").exists() else [("Transformer", "")]
    if modules != [("Transformer", "")] or not any(name.endswith(_HEAD) for name in architectures):
        raise UnsupportedArchitecture(
            f"{folder} holds {', '.join(kind for kind, _ in modules)} with {', '.join(architectures) or 'no network'}; "
            f"es-sbert reads cross-encoders of one transformer with a classification head (…{_HEAD})",
            "Choose a model of that shape.",
        )
    if settings.get("default_prompt_name"):
        raise UnsupportedArchitecture(
            f"{folder} puts a prompt in front of each pair (default_prompt_name)",
            "es-sbert's reranker knows no prompts; choose a model without.",
        )


def _activation(folder: Path, config: dict[str, Any], settings: dict[str, Any], labels: int) -> ScoreActivation:
    """What sentence-transformers would apply: as noted, else the sigmoid for one label and nothing for several."""
    noted = settings.get("activation_fn") or (config.get("sentence_transformers") or {}).get("activation_fn")
    noted = noted or config.get("sbert_ce_default_activation_function")
    if noted is None:
        return ScoreActivation.SIGMOID if labels == 1 else ScoreActivation.IDENTITY
    activation = _ACTIVATIONS.get(str(noted).rpartition(".")[2])
    if activation is None or not str(noted).startswith("torch."):
        raise UnsupportedArchitecture(
            f"{folder} turns its outputs into scores by {noted}",
            f"es-sbert knows torch's {' and '.join(_ACTIVATIONS)}; save the model with one of them.",
        )
    return activation
