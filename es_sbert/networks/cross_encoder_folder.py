"""Open, start and save cross-encoders as plain transformers folders for sequence classification."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from es_sbert.bundle.bare import read_bare_transformer
from es_sbert.bundle.checkpoint import read_model
from es_sbert.bundle.cross_encoder import CrossEncoderModel, ScoreActivation, is_cross_encoder, read_cross_encoder
from es_sbert.bundle.reranker import PairFormat
from es_sbert.encoder.tokenizer import load_tokenizer
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, first_line
from es_sbert.networks.cross_encoder import CrossEncoder, set_labels
from es_sbert.networks.folder import merged

_ACTIVATION_NAMES = {
    ScoreActivation.SIGMOID: "torch.nn.modules.activation.Sigmoid",
    ScoreActivation.IDENTITY: "torch.nn.modules.linear.Identity",
}


def open_cross_encoder(folder: Path, *, name: str | None = None) -> CrossEncoder:
    """Open a trained cross-encoder, in float32, on the CPU: one saved here, by sentence-transformers or from the hub.

    Args:
        folder: Its folder.
        name: Name for people.

    Raises:
        BundleInvalid: a file is missing or broken, weights are pickled, or there is no head.
        UnsupportedArchitecture: another network than one transformer with a classification head.
    """
    model = read_cross_encoder(folder, name)
    transformer = _load(model, new_head=False)
    return CrossEncoder(model, _pair_format(model, transformer, trained=True), transformer)


def start_cross_encoder(
    folder: Path, labels: tuple[str, ...], *, name: str | None = None, max_tokens: int | None = None
) -> CrossEncoder:
    """A cross-encoder to be trained, in float32, on the CPU.

    A head that the checkpoint has is kept if it has the same labels (any name will do for one); any other starts from
    torch's random weights.

    Args:
        folder: A transformers folder, a sentence-transformers folder or a cross-encoder.
        labels: Names of the classes; one for a score.
        name: Name for people.
        max_tokens: Most tokens of a pair; never more than the base reads.

    Raises:
        BundleInvalid: a file is missing or broken, weights are pickled, or the tokenizer does not part two texts.
        UnsupportedArchitecture: transformers has no sequence classification for it, or it has modules that es-sbert
            does not honour.
    """
    trained = is_cross_encoder(folder)
    model = read_cross_encoder(folder, name) if trained else _read_base(folder, name, labels)
    if load_tokenizer(model.tokenizer_file).num_special_tokens_to_add(is_pair=True) == 0:
        raise BundleInvalid(
            f"{model.tokenizer_file} puts nothing between the two texts of a pair",
            "Give its post_processor a template for pairs, e.g. [CLS] $A [SEP] $B:1 [SEP]:1.",
        )
    # The format of transformers has no place to say that texts are lower-cased first; an uncased tokenizer does it.
    changes = {"max_tokens": min(max_tokens or model.max_tokens, model.max_tokens), "lowercase": False}
    model = model.model_copy(update=changes)
    transformer = _load(model, new_head=not trained).train()
    return CrossEncoder(model, _pair_format(model, transformer, trained=trained), transformer).with_head(labels)


def save_cross_encoder(network: CrossEncoder, folder: Path) -> None:
    """Write a transformers folder that sentence-transformers' CrossEncoder gives the same scores with.

    Args:
        network: The cross-encoder; updates by LoRA are merged into the written weights.
        folder: A new or empty folder.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = network.model
    transformer: Any = merged(network.transformer)
    # Said aloud, although it is the default: the base may have said otherwise.
    transformer.config.sentence_transformers = {"activation_fn": _ACTIVATION_NAMES[model.activation]}
    tokenizer = AutoTokenizer.from_pretrained(
        str(model.folder), local_files_only=True, trust_remote_code=False,
        model_input_names=list(network.pairs.inputs), model_max_length=model.max_tokens,
    )  # fmt: skip
    try:
        with quiet():
            transformer.save_pretrained(str(folder))
    except SafetensorError as error:  # not an OSError, whatever the disk's complaint
        raise OSError(f"{folder}: {error}") from error
    tokenizer.save_pretrained(str(folder))
    # The tokenizer as it was: transformers may write it in another form, and its file is part of the fingerprint.
    (folder / "tokenizer.json").write_bytes(model.tokenizer_file.read_bytes())


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' bars and reports: that a head is new is meant, and anything else missing is an error."""
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
    """A model without a head as a cross-encoder that has one already."""
    name = name or folder.resolve().name
    has_modules = (folder / "modules.json").exists()
    base = read_model(folder, name) if has_modules else read_bare_transformer(folder, name)
    return CrossEncoderModel(
        folder=base.transformer_folder,
        name=name,
        architecture=base.architecture,
        config=base.transformer_config,
        labels=labels,
        activation=ScoreActivation.SIGMOID,
        max_tokens=base.max_tokens,
        lowercase=False,
        fingerprint="",
    )


def _load(model: CrossEncoderModel, *, new_head: bool) -> Any:
    """The network with the checkpoint's weights; anything but the head must be in it."""
    try:
        config = AutoConfig.from_pretrained(str(model.folder), local_files_only=True, trust_remote_code=False)
        set_labels(config, model.labels)
        with quiet():
            transformer, report = AutoModelForSequenceClassification.from_pretrained(
                str(model.folder), config=config, use_safetensors=True, local_files_only=True, dtype=torch.float32,
                trust_remote_code=False, output_loading_info=True,
            )  # fmt: skip
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise _unopened(model, error) from error
        raise UnsupportedArchitecture(
            f"transformers has no sequence classification for {model.architecture} ({model.folder})",
            "Choose another base, e.g. a BERT, RoBERTa, MPNet or DeBERTa.",
        ) from error
    except (OSError, KeyError, RuntimeError, SafetensorError) as error:
        raise _unopened(model, error) from error
    absent = set(report["missing_keys"])
    if new_head:
        # BERT's pooler stands below the head and is not in every encoder's checkpoint; it is trained with the head.
        below = f"{transformer.base_model_prefix}."
        absent = {key for key in absent if key.startswith(below) and ".pooler." not in key}
    if absent:
        raise BundleInvalid(
            f"{model.folder} lacks {len(absent)} tensors of the network, {min(absent)} among them",
            "Copy or download the model folder again." if new_head else "Give the folder of a trained cross-encoder.",
        )
    return transformer.eval()


def _pair_format(model: CrossEncoderModel, transformer: Any, *, trained: bool) -> PairFormat:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model.folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare Exception for every kind of broken file
        raise _unopened(model, error) from error
    types = "token_type_ids" in inspect.signature(transformer.forward).parameters
    types = types and getattr(transformer.config, "type_vocab_size", 2) > 1
    if trained:
        # A head was trained with the inputs that the checkpoint's own tokenizer gives, types or not.
        types = types and "token_type_ids" in tokenizer.model_input_names
    return PairFormat(
        inputs=("input_ids", "attention_mask", *(["token_type_ids"] if types else [])),
        padding_id=tokenizer.pad_token_id or 0,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
    )


def _unopened(model: CrossEncoderModel, error: Exception) -> BundleInvalid:
    return BundleInvalid(
        f"transformers cannot open {model.folder}: {first_line(error)}",
        "Give the folder of a transformers encoder with its config.json and model.safetensors.",
    )
