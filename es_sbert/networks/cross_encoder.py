"""The cross-encoder in torch: both texts in one input, with a classification head on the transformer's output.

It is opened from and saved as a transformers folder for sequence classification.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from es_sbert.bundle.bundle import PairFormat
from es_sbert.bundle.cross_encoder_model import CrossEncoderModel, ScoreActivation, is_cross_encoder, read_cross_encoder
from es_sbert.bundle.sentence_model import read_plain_transformer, read_sentence_model
from es_sbert.errors import BundleInvalid, UnsupportedArchitecture, UnsupportedSetting, UsageError
from es_sbert.networks.siamese_encoder import (
    eval_mode,
    inference_batches,
    load_pretrained,
    open_error,
    qualified_name,
    quiet_transformers,
    save_transformer,
)
from es_sbert.runtime.tokenizer import PairTokenizer, TokenizedPairs, check_pairs, load_tokenizer

# Applied to logits ``(pairs, labels)``; sentence-transformers writes the names of these classes.
_ACTIVATIONS: dict[ScoreActivation, Callable[[Tensor], Tensor]] = {
    ScoreActivation.IDENTITY: nn.Identity(),
    ScoreActivation.SIGMOID: nn.Sigmoid(),
    ScoreActivation.SOFTMAX: nn.Softmax(dim=1),
    ScoreActivation.TANH: nn.Tanh(),
}
_Side = Literal["left", "right"]

# Names of the class of similar pairs, in data sets and on the hub.
_SIMILAR_CLASS_NAMES = (
    "entailment", "duplicate", "is_duplicate", "paraphrase", "equivalent", "similar", "relevant", "1", "true", "yes",
)  # fmt: skip


def pair_scores(logits: Tensor, model: CrossEncoderModel) -> Tensor:
    """Compute one score per pair from the logits.

    The score of a single logit is its sigmoid, in [0, 1], or the logit itself if the model was trained that way. With
    several logits it is the probability of the class of similar pairs: entailment, duplicate, paraphrase, …

    Args:
        logits: *Shape:* ``(pairs, labels)`` float32.
        model: The model that gave the logits.

    Returns:
        *Shape:* ``(pairs,)``.

    Raises:
        UsageError: no class, or more than one, has a name that means similarity.
    """
    if len(model.labels) > 1:
        return torch.softmax(logits, dim=1)[:, similar_class_index(model.labels)]
    return _ACTIVATIONS[model.activation](logits)[:, 0]


def similar_class_index(classes: Sequence[str]) -> int:
    """Find the number of the class of similar pairs.

    Raises:
        UsageError: no class, or more than one, has a name that means similarity.
    """
    found = [number for number, name in enumerate(classes) if name.lower() in _SIMILAR_CLASS_NAMES]
    if len(found) != 1:
        raise UsageError(
            f"it is not clear which of the classes {', '.join(classes)} is the class of similar texts",
            f"Rename exactly one of them to {', '.join(_SIMILAR_CLASS_NAMES[:-1])} or {_SIMILAR_CLASS_NAMES[-1]}, or "
            "train with the objective regression, which has one score.",
        )
    return found[0]


# The name of transformers for the single label of a regression.
REGRESSION_LABELS = ("LABEL_0",)

# Pairs tokenized at a time: of a large set only the scores are kept, not the tokens.
_TOKENIZE_WINDOW = 16_384


class CrossEncoder(nn.Module):
    """A cross-encoder in torch.

    It is a `PairScorer` for evaluation.

    Args:
        model: Settings of the model; pairs are tokenized with the tokenizer.json in its folder, as in `Reranker`.
        pairs: Format of pairs for the network.
        transformer: A transformers network for sequence classification.
    """

    def __init__(self, model: CrossEncoderModel, pairs: PairFormat, transformer: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.pairs = pairs
        self.transformer = transformer
        self._tokenizer = PairTokenizer(model, pairs)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def tokenize(self, first: Sequence[str], second: Sequence[str]) -> TokenizedPairs:
        """Tokenize pairs of texts as the network reads them, truncated to the model's maximum.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        return self._tokenizer(first, second)

    def inputs(self, pairs: TokenizedPairs) -> dict[str, Tensor]:
        """Build the network's inputs for one batch of pairs, each tensor ``(pairs, longest)`` int64, on the CPU."""
        return self._tensors(pairs, np.arange(len(pairs.ids)))

    def _tensors(self, pairs: TokenizedPairs, members: NDArray[np.int64]) -> dict[str, Tensor]:
        return {name: torch.from_numpy(array) for name, array in self._tokenizer.feed(pairs, members).items()}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Compute the logits, ``(pairs, labels)`` float32, of a batch that `inputs` made."""
        logits: Tensor = self.transformer(**inputs).logits
        return logits.float()

    def score(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Score pairs, without dropout: *shape* ``(pairs,)``, in the order of the pairs.

        Raises:
            UsageError: the columns differ in length, a text is not valid Unicode, or not exactly one class name means
                similarity.
        """
        check_pairs(first, second)
        scores = np.empty(len(first), dtype=np.float32)  # (pairs,)
        with eval_mode(self):
            for start in range(0, len(first), _TOKENIZE_WINDOW):
                window = slice(start, start + _TOKENIZE_WINDOW)
                self._score(first[window], second[window], scores[window])
        return scores

    def _score(self, first: Sequence[str], second: Sequence[str], scores: NDArray[np.float32]) -> None:
        """Score one window of pairs and write the result to `scores`, *shape* ``(pairs,)``."""
        tokenized = self._tokenizer(first, second)
        for members in inference_batches(tokenized.lengths, self.device):
            inputs = self._tensors(tokenized, members)
            logits = self({name: tensor.to(self.device) for name, tensor in inputs.items()})
            scores[members] = pair_scores(logits, self.model).cpu().numpy()

    def with_head(self, labels: tuple[str, ...]) -> CrossEncoder:
        """Return the same transformer with a new, random head, or with its own head if that has these labels.

        The score of a head with one logit becomes its sigmoid, as training defines it.

        Args:
            labels: Names of the classes; one for a score.
        """
        activation = ScoreActivation.SIGMOID if len(labels) == 1 else ScoreActivation.IDENTITY
        model = self.model.model_copy(update={"labels": labels, "activation": activation, "fingerprint": ""})
        transformer: Any = self.transformer
        encoder = transformer.base_model
        if labels != self.model.labels and not len(labels) == len(self.model.labels) == 1:
            config = copy.deepcopy(transformer.config)
            set_labels(config, labels)
            transformer = type(transformer)(config).to(self.device).train(self.training)
            transformer.base_model.load_state_dict(encoder.state_dict())
        set_labels(transformer.config, labels)
        return CrossEncoder(model, self.pairs, transformer)


def set_labels(config: Any, labels: tuple[str, ...]) -> None:
    """Write the head's size and the names of its labels into a transformers configuration, in place."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {name: number for number, name in enumerate(labels)}


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
        network: The cross-encoder.
        folder: A new or empty folder.

    Raises:
        OSError: the disk is full, or the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = network.model
    # Written although it is the default: the base may have had another one.
    activation = qualified_name(type(_ACTIVATIONS[model.activation]))
    transformer: Any = network.transformer
    transformer.config.sentence_transformers = {"activation_fn": activation}
    options = {"model_input_names": list(network.pairs.inputs), "model_max_length": model.max_tokens}
    with quiet_transformers():
        save_transformer(transformer, folder, model.folder, **options)


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
