"""The cross-encoder: both texts in one input, with a classification head on the transformer's output."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from es_sbert.bundle.bundle import PairFormat
from es_sbert.bundle.cross_encoder_model import CrossEncoderModel, ScoreActivation
from es_sbert.errors import UsageError
from es_sbert.networks.siamese_encoder import eval_mode, inference_batches
from es_sbert.runtime.tokenizer import PairTokenizer, TokenizedPairs, check_pairs

# Applied to logits ``(pairs, labels)``.
_ACTIVATIONS: dict[ScoreActivation, Callable[[Tensor], Tensor]] = {
    ScoreActivation.IDENTITY: lambda logits: logits,
    ScoreActivation.SIGMOID: torch.sigmoid,
    ScoreActivation.SOFTMAX: lambda logits: logits.softmax(dim=1),
    ScoreActivation.TANH: torch.tanh,
}

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
    """A cross-encoder in torch; `es_sbert.networks.pair_scorer_folder` opens, starts and saves one.

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

    @property
    def head(self) -> list[str]:
        """Names of the transformer's modules above the encoder, which LoRA must not freeze: a new head is random."""
        network: Any = self.transformer
        below = network.base_model_prefix
        return [
            name for name, child in network.named_children() if name != below and any(True for _ in child.parameters())
        ]

    def tokenize(self, first: Sequence[str], second: Sequence[str]) -> TokenizedPairs:
        """Tokenize pairs of texts as the network reads them, truncated to the model's maximum.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        return self._tokenizer(first, second)

    def inputs(self, pairs: TokenizedPairs) -> dict[str, Tensor]:
        """Build the network's inputs for one batch of pairs, each tensor ``(pairs, longest)`` int64, on the CPU.

        There is no attention mask if it would hide nothing.
        """
        return _without_full_mask(self._tokenizer.feed(pairs, np.arange(len(pairs.ids))))

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
            inputs = _without_full_mask(self._tokenizer.feed(tokenized, members))
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


def _without_full_mask(arrays: Mapping[str, NDArray[np.int64]]) -> dict[str, Tensor]:
    """Convert arrays to tensors, without an attention mask that hides nothing.

    This is checked here, because on a GPU the check would make the host wait.
    """
    return {
        name: torch.from_numpy(array) for name, array in arrays.items() if name != "attention_mask" or not array.all()
    }


def set_labels(config: Any, labels: tuple[str, ...]) -> None:
    """Write the head's size and the names of its labels into a transformers configuration, in place."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {name: number for number, name in enumerate(labels)}
