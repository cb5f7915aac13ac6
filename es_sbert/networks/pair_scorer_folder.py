"""Open and save the folders of cross-encoders and poly-encoders.

A cross-encoder folder is a transformers folder for sequence classification. A poly-encoder folder is the
sentence-transformers folder of its encoder with two more files: `poly_encoder.safetensors` with the codes ``(m,
width)``, and `poly_encoder.json`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.utils import logging

from es_sbert.bundle.bundle import PairFormat
from es_sbert.bundle.cross_encoder_model import CrossEncoderModel, ScoreActivation, is_cross_encoder, read_cross_encoder
from es_sbert.bundle.model_files import read_json
from es_sbert.bundle.sentence_model import read_plain_transformer, read_sentence_model
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting
from es_sbert.networks.cross_encoder import CrossEncoder, set_labels
from es_sbert.networks.poly_encoder import PolyEncoder
from es_sbert.networks.siamese_encoder import (
    SiameseEncoder,
    load_pretrained,
    open_error,
    open_siamese_encoder,
    qualified_name,
    save_siamese_encoder,
    save_transformer,
)
from es_sbert.runtime.tokenizer import load_tokenizer

_ACTIVATIONS = {
    ScoreActivation.SIGMOID: torch.nn.Sigmoid,
    ScoreActivation.IDENTITY: torch.nn.Identity,
    ScoreActivation.SOFTMAX: torch.nn.Softmax,
    ScoreActivation.TANH: torch.nn.Tanh,
}
_Side = Literal["left", "right"]


def open_cross_encoder(folder: Path, *, name: str | None = None) -> CrossEncoder:
    """Open a trained cross-encoder, in float32, on the CPU: one saved here, by sentence-transformers or from the hub.

    Args:
        folder: Its folder.
        name: Name for messages.

    Raises:
        BundleInvalid: a file is missing or broken, weights are pickled, or there is no head.
        UnsupportedArchitecture: the network is not a single transformer with a classification head.
    """
    model = read_cross_encoder(folder, name)
    transformer = _load_cross_encoder(model, new_head=False)
    return CrossEncoder(model, _pair_format(model, transformer, trained=True), transformer)


def start_cross_encoder(
    folder: Path, labels: tuple[str, ...], *, name: str | None = None, max_tokens: int | None = None
) -> CrossEncoder:
    """Create a cross-encoder to be trained, in float32, on the CPU.

    The head of the checkpoint is kept if it has the same labels (the name of a single label does not matter); any other
    head starts from torch's random weights.

    Args:
        folder: A transformers folder, a sentence-transformers folder or a cross-encoder.
        labels: Names of the classes; one for a score.
        name: Name for messages.
        max_tokens: Maximum tokens of a pair; never more than the base reads.

    Raises:
        BundleInvalid: a file is missing or broken, weights are pickled, or the tokenizer does not separate two texts.
        UnsupportedArchitecture: transformers has no sequence classification for the architecture, or the model has
            modules that es-sbert does not support.
        UnsupportedSetting: the cross-encoder puts a prompt in front of each pair.
    """
    trained = is_cross_encoder(folder)
    model = read_cross_encoder(folder, name) if trained else _read_base(folder, name, labels)
    if load_tokenizer(model.tokenizer_file).num_special_tokens_to_add(is_pair=True) == 0:
        raise BundleInvalid(
            f"{model.tokenizer_file} puts nothing between the two texts of a pair",
            "Add a template for pairs to its post_processor, e.g. [CLS] $A [SEP] $B:1 [SEP]:1.",
        )
    if model.prompt:
        raise UnsupportedSetting(
            f"{folder} puts the prompt {model.prompt!r} in front of each pair, which a trained model would lose",
            "Set default_prompt_name in config_sentence_transformers.json to null, and put the prompt into the data.",
        )
    # Texts are not lower-cased first, because the format of transformers has no setting for it. An uncased tokenizer
    # does it itself.
    changes = {"max_tokens": min(max_tokens or model.max_tokens, model.max_tokens), "lowercase": False}
    model = model.model_copy(update=changes)
    transformer = _load_cross_encoder(model, new_head=not trained).train()
    return CrossEncoder(model, _pair_format(model, transformer, trained=trained), transformer).with_head(labels)


def save_cross_encoder(network: CrossEncoder, folder: Path) -> None:
    """Write a transformers folder with which sentence-transformers' CrossEncoder computes the same scores.

    Args:
        network: The cross-encoder; updates by LoRA are merged into the written weights.
        folder: A new or empty folder.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = network.model
    # Written although it is the default: the base may have had another one.
    activation = qualified_name(_ACTIVATIONS[model.activation])
    transformer: Any = network.transformer
    transformer.config.sentence_transformers = {"activation_fn": activation}
    options = {"model_input_names": list(network.pairs.inputs), "model_max_length": model.max_tokens}
    with quiet_transformers():
        save_transformer(transformer, folder, model.folder, **options)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and reports: a new head is intended, other missing tensors are errors."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _read_base(folder: Path, name: str | None, labels: tuple[str, ...]) -> CrossEncoderModel:
    """Describe a model without a head as a cross-encoder with one."""
    name = name or folder.resolve().name
    has_modules = (folder / "modules.json").exists()
    base = read_sentence_model(folder, name) if has_modules else read_plain_transformer(folder, name)
    return CrossEncoderModel(
        folder=base.transformer_folder,
        name=name,
        architecture=base.architecture,
        config=base.transformer_config,
        labels=labels,
        activation=ScoreActivation.SIGMOID,
        max_tokens=base.max_tokens,
        lowercase=False,
        tokenizer_changes=base.tokenizer_changes,
        fingerprint="",
    )


def _load_cross_encoder(model: CrossEncoderModel, *, new_head: bool) -> Any:
    """Load the network with the checkpoint's weights, which may lack tensors only for a new head."""
    try:
        config = AutoConfig.from_pretrained(str(model.folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise open_error(model.folder, error) from error
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise UnsupportedArchitecture(
            f"transformers has no sequence classification for {model.architecture} ({model.folder})",
            "Choose another base, e.g. a BERT, RoBERTa, MPNet or DeBERTa.",
        )
    set_labels(config, model.labels)
    with quiet_transformers():
        transformer, absent = load_pretrained(AutoModelForSequenceClassification, model.folder, config=config)
    if new_head:
        # BERT's pooler is below the head and not in every encoder's checkpoint; it is trained with the head.
        below = f"{transformer.base_model_prefix}."
        absent = {key for key in absent if key.startswith(below) and ".pooler." not in key}
    if absent:
        raise BundleInvalid(
            f"{model.folder} lacks {len(absent)} tensors of the network, for example {min(absent)}",
            "Copy or download the model folder again." if new_head else "Use the folder of a trained cross-encoder.",
        )
    return transformer.eval()


def _pair_format(model: CrossEncoderModel, transformer: Any, *, trained: bool) -> PairFormat:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model.folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare Exception for every kind of broken file
        raise open_error(model.folder, error) from error
    types = "token_type_ids" in inspect.signature(transformer.forward).parameters
    types = types and getattr(transformer.config, "type_vocab_size", 2) > 1
    if trained:
        # A head was trained with the inputs that the checkpoint's own tokenizer gives, types or not.
        types = types and "token_type_ids" in tokenizer.model_input_names
    return PairFormat(
        inputs=("input_ids", "attention_mask", *(["token_type_ids"] if types else [])),
        padding_id=tokenizer.pad_token_id or 0,
        padding_side=cast(_Side, tokenizer.padding_side),
        truncation_side=cast(_Side, tokenizer.truncation_side),
    )


_POLY_SETTINGS_FILE = "poly_encoder.json"
_POLY_CODES_FILE = "poly_encoder.safetensors"
_POLY_FORMAT = 1
_POLY_REMEDY = "Copy the model folder again, or train it again."


def is_pair_scorer(folder: Path) -> bool:
    """Whether a folder holds a model that scores pairs, not a sentence encoder.

    Raises:
        BundleInvalid: the configuration of the model is broken.
    """
    return is_poly_encoder(folder) or is_cross_encoder(folder)


def is_poly_encoder(folder: Path) -> bool:
    """Whether a folder holds a poly-encoder."""
    return (folder / _POLY_SETTINGS_FILE).exists()


def open_pair_scorer(folder: Path, *, name: str | None = None) -> CrossEncoder | PolyEncoder:
    """Open a cross-encoder or a poly-encoder in torch, in float32, on the CPU.

    Args:
        folder: Its folder.
        name: Name for messages; the folder's own by default.

    Raises:
        BundleInvalid: the folder is not such a model, a file is missing or broken, or weights are pickled.
        UnsupportedArchitecture: a network or score that es-sbert does not support.
    """
    if is_poly_encoder(folder):
        return open_poly_encoder(folder, name=name)
    if is_cross_encoder(folder):
        return open_cross_encoder(folder, name=name)
    raise BundleInvalid(
        f"{folder} holds neither a cross-encoder nor a poly-encoder",
        "Use a transformers folder for sequence classification, or the output of a recipe whose model has the kind "
        "cross-encoder or poly-encoder.",
    )


def open_poly_encoder(folder: Path, *, name: str | None = None) -> PolyEncoder:
    """Open a folder that `save_poly_encoder` wrote.

    Raises:
        BundleInvalid: a file is missing or broken, the codes do not fit the encoder, or the format is a newer one.
        UnsupportedArchitecture: a module that es-sbert does not support.
    """
    encoder = open_siamese_encoder(folder, name=name or folder.resolve().name)
    network = PolyEncoder(encoder, read_poly_codes(folder, encoder))
    network.eval()
    return network


def read_poly_codes(folder: Path, encoder: SiameseEncoder) -> torch.Tensor:
    """Read the codes, ``(m, width)`` float32, of a poly-encoder's folder, and check that they fit its encoder.

    Raises:
        BundleInvalid: a file is missing or broken, the codes do not fit the encoder, or the format is a newer one.
    """
    settings = read_json(folder / _POLY_SETTINGS_FILE)
    if settings.get("format") != _POLY_FORMAT:
        raise BundleInvalid(
            f"{folder / _POLY_SETTINGS_FILE} has the format {settings.get('format')!r}, not {_POLY_FORMAT}",
            "Use the version of es-sbert that wrote it, or train it again.",
        )
    try:
        codes = load_file(folder / _POLY_CODES_FILE)["codes"].float()
    except FileNotFoundError as error:
        raise BundleInvalid(f"{folder / _POLY_CODES_FILE} is missing", _POLY_REMEDY) from error
    except (OSError, SafetensorError, KeyError) as error:
        raise BundleInvalid(f"{folder / _POLY_CODES_FILE} cannot be read: {error}", _POLY_REMEDY) from error
    if codes.ndim != 2 or codes.shape[1] != encoder.dimensions or encoder.model.dense:
        raise BundleInvalid(
            f"{folder / _POLY_CODES_FILE} holds codes of shape {tuple(codes.shape)} for vectors of "
            f"{encoder.dimensions} values",
            _POLY_REMEDY,
        )
    return codes


def save_poly_encoder(network: PolyEncoder, folder: Path) -> None:
    """Write a folder that `open_poly_encoder` opens.

    Args:
        network: The network; updates by LoRA are merged into the written weights.
        folder: A new or empty folder.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    codes = network.codes.detach().to("cpu", torch.float32).contiguous()
    with quiet_transformers():
        save_siamese_encoder(network.encoder, folder)
    try:
        save_file({"codes": codes}, folder / _POLY_CODES_FILE, metadata={"format": "pt"})
    except SafetensorError as error:  # not an OSError, even for disk errors
        raise OSError(f"{folder}: {error}") from error
    settings = {"format": _POLY_FORMAT, "name": network.name, "codes": len(codes)}
    (folder / _POLY_SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
