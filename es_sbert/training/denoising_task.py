"""Train a bi-encoder to reconstruct texts with deleted words from their sentence vectors alone (TSDAE).

TSDAE, a transformer-based sequential denoising auto-encoder: Wang, Reimers and Gurevych 2021, arXiv 2104.06979. It
needs only texts. The decoder exists during training; it is not saved with the model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers.models import WordPiece
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from es_sbert.errors import RecipeInvalid
from es_sbert.networks.pair_scorer_folder import quiet_transformers
from es_sbert.networks.siamese_encoder import SiameseEncoder, load_pretrained
from es_sbert.runtime.tokenizer import load_sentence_tokenizer
from es_sbert.training.bi_encoder_task import Batch, BiEncoderTask, TokenColumn, Tokens
from es_sbert.training.objective_settings import DenoisingSpec
from es_sbert.training.training_device import gather
from es_sbert.training.training_examples import Examples

# Architectures whose decoder (XXXForCausalLM of transformers) has the encoder's layers and a cross-attention.
DECODER_ARCHITECTURES = ("bert", "roberta", "xlm-roberta")
# The label of padding, which the loss ignores.
_IGNORED = -100
# Prefix of all tokens of a word except the first, in WordPiece vocabularies.
_CONTINUATION = "##"


class WordDeletion:
    """Deletes random words of tokenized texts; special tokens and prompts stay, and at least one word does.

    In a WordPiece vocabulary, which marks the continuations of words, whole words are deleted. In other vocabularies,
    each token counts as a word, since some scripts have no spaces between words.

    Args:
        encoder: The encoder, whose tokenizer is used.
        ratio: Probability that a word is deleted.
        prompt: The prompt at the beginning of the texts.
    """

    def __init__(self, encoder: SiameseEncoder, ratio: float, prompt: str = "") -> None:
        self._ratio = ratio
        self._special: Tokens = encoder.tokenize([""])[0]
        empty, letter = (row.tolist() for row in encoder.tokenize(["", "a"], prompt))
        self._prefix = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(empty, letter, strict=False)))
        tokenizer = load_sentence_tokenizer(encoder.model)
        vocabulary = tokenizer.get_vocab()
        self._continues = np.zeros(max(vocabulary.values()) + 1, dtype=np.bool_)  # (vocabulary,)
        if isinstance(tokenizer.model, WordPiece):
            continuations = [number for token, number in vocabulary.items() if token.startswith(_CONTINUATION)]
            self._continues[continuations] = True

    def __call__(self, row: Tokens, random: np.random.Generator) -> Tokens:
        """Delete random words, and return the remaining token ids, *shape* ``(tokens,)``."""
        fixed = np.isin(row, self._special)  # (tokens,)
        fixed[: self._prefix] = True
        inner = np.flatnonzero(~fixed)  # (inner tokens,)
        if not len(inner):
            return row
        starts = ~self._continues[row[inner]]  # (inner tokens,)
        words = np.cumsum(starts) - starts[0]  # (inner tokens,): number of each token's word, from 0
        kept = random.random(words[-1] + 1) >= self._ratio  # (words,)
        if not kept.any():
            kept[random.integers(len(kept))] = True
        fixed[inner] = kept[words]
        return row[fixed]


class DenoisingDecoder(nn.Module):
    """Predicts each token of a text from the tokens before it and from the text's sentence vector.

    Its layers share the tensors of the encoder's layers, and each has a cross-attention whose only key is the sentence
    vector. Output and input embeddings are one table. Its `state_dict` holds only the tensors that the encoder does
    not have.

    Args:
        encoder: The encoder.

    Raises:
        RecipeInvalid: transformers has no such decoder for the encoder's architecture, or the sentence vectors do not
            have the transformer's width.
    """

    def __init__(self, encoder: SiameseEncoder) -> None:
        super().__init__()
        transformer: Any = encoder.transformer
        _check_encoder(encoder)
        config = copy.deepcopy(transformer.config)
        config.is_decoder = config.add_cross_attention = True
        config.use_cache = False
        with quiet_transformers():
            # If the folder has the head of the pre-training, it is kept; all other missing tensors are new.
            network, _ = load_pretrained(AutoModelForCausalLM, encoder.model.transformer_folder, config=config)
        self.network: Any = network.train()
        shared = {id(parameter) for parameter in transformer.parameters()}
        modules = dict(network.base_model.named_modules())
        for name, parameter in transformer.named_parameters():
            place, _, attribute = name.rpartition(".")
            if hasattr(modules.get(place), attribute):
                setattr(modules[place], attribute, parameter)
        network.tie_weights()
        self._tied = {
            name for name, parameter in network.named_parameters(remove_duplicate=False) if id(parameter) in shared
        }
        first: dict[int, str] = {}  # of tensors with several names, one is enough
        for name, parameter in network.named_parameters(remove_duplicate=False):
            if first.setdefault(id(parameter), name) != name:
                self._tied.add(name)
        self.register_state_dict_post_hook(_drop_tied)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_allow_tied)  # type: ignore[no-untyped-call]

    @property
    def tied_names(self) -> Iterator[str]:
        """Names, within this module, of the tensors that are stored elsewhere."""
        return (f"network.{name}" for name in self._tied)

    def forward(self, vectors: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        """Compute the sum of the token cross-entropies of each text.

        Args:
            vectors: Sentence vectors of the noisy texts, *shape* ``(texts, width)``.
            ids: The texts without noise and without their last token, *shape* ``(texts, tokens)``. Padding on the
                right needs no mask: no token sees a later one.
            labels: The token that follows each token of `ids`; −100 for padding. *Shape:* ``(texts, tokens)``.

        Returns:
            *Shape:* ``(texts,)`` float32.
        """
        logits = self.network(input_ids=ids, encoder_hidden_states=vectors[:, None], use_cache=False).logits
        with torch.autocast(ids.device.type, enabled=False):
            losses = cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=_IGNORED, reduction="none")
        return losses.sum(dim=1)


def _drop_tied(module: nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    assert isinstance(module, DenoisingDecoder)
    for name in module.tied_names:
        state.pop(prefix + name, None)


def _allow_tied(module: nn.Module, result: Any) -> None:
    assert isinstance(module, DenoisingDecoder)
    tied = tuple(module.tied_names)
    result.missing_keys[:] = [key for key in result.missing_keys if not key.endswith(tied)]


def _check_encoder(encoder: SiameseEncoder) -> None:
    architecture, name = encoder.model.architecture, encoder.model.name
    if architecture not in DECODER_ARCHITECTURES:
        raise RecipeInvalid(
            f"the objective denoising needs a decoder with the layers of the encoder, which {name} ({architecture}) "
            "cannot have",
            f"Use a base with one of these architectures: {', '.join(DECODER_ARCHITECTURES)}; or another objective.",
        )
    width = encoder.transformer.config.hidden_size  # type: ignore[union-attr]
    if encoder.dimensions != width:
        raise RecipeInvalid(
            f"the objective denoising needs sentence vectors of the transformer's width, {width}; those of {name} with "
            f"this recipe have {encoder.dimensions} dimensions",
            "Set a single pooling mode and leave out `dense`, or use a base without a Dense layer.",
        )


class DenoisingTask(BiEncoderTask):
    """A siamese encoder that is trained with a decoder.

    Args:
        encoder: The encoder.
        decoder: The decoder.
        specs: Data set → settings.
        seed: Seed of the deleted words, together with the data set, the epoch and the example: a resumed run, and any
            number of processes, delete the same words.
        prompts: Data set → the prompt of its one text column, if there is one.
        mini_batch: Texts whose activations are in memory at once; None: all texts of the batch.
    """

    def __init__(
        self,
        encoder: SiameseEncoder,
        decoder: DenoisingDecoder,
        specs: Mapping[str, DenoisingSpec],
        *,
        seed: int,
        prompts: Mapping[str, Sequence[str]] | None = None,
        mini_batch: int | None = None,
    ) -> None:
        super().__init__(encoder, {}, prompts=prompts, mini_batch=mini_batch)
        self.decoder = decoder
        self._seed = seed
        self._numbers = {name: number for number, name in enumerate(specs)}
        self._delete = {
            name: WordDeletion(encoder, spec.ratio, *(prompts or {}).get(name, ())) for name, spec in specs.items()
        }

    def lengths(self, examples: Examples) -> NDArray[np.int64]:
        return self._texts(examples).lengths

    def _texts(self, examples: Examples) -> TokenColumn:
        (column,) = self.tokenized(examples)
        assert isinstance(column, TokenColumn)
        return column

    def noisy(self, examples: Examples, rows: Sequence[int], epoch: int) -> list[Tokens]:
        """Delete random words of some rows, and return their token ids."""
        texts, number = self._texts(examples), self._numbers[examples.name]
        delete = self._delete[examples.name]
        return [delete(texts[row], np.random.default_rng([self._seed, number, epoch, row])) for row in rows]

    def collate(self, examples: Examples, rows: Sequence[int], epoch: int = 0) -> Batch:
        """Make a batch: `parts`, one per mini-batch. Each has `source`, the noisy texts as `SiameseEncoder.inputs`
        returns them, `ids` and `labels` for the decoder, and `counts`, the number of labels of each text, ``(texts,)``
        float32.
        """
        texts = [self._texts(examples)[row] for row in rows]
        noisy = self.noisy(examples, rows, epoch)
        size = self._mini_batch or len(texts)
        return {"parts": [self._part(noisy[n : n + size], texts[n : n + size]) for n in range(0, len(texts), size)]}

    def _part(self, noisy: Sequence[Tokens], texts: Sequence[Tokens]) -> dict[str, Any]:
        ids, mask = self.encoder.pad(texts)
        labels = ids[:, 1:].masked_fill(mask[:, 1:] == 0, _IGNORED)
        counts = mask[:, 1:].sum(dim=1).float()
        return {"source": self.encoder.inputs(noisy), "ids": ids[:, :-1], "labels": labels, "counts": counts}

    def forward(self, dataset: str, batch: Batch) -> Tensor:
        """Compute the mean cross-entropy of the tokens of the joint batch."""
        parts, sizes = batch["parts"], batch.get("sizes", ())
        if len(parts) == 1:
            losses = self._losses(parts[0])  # (texts,)
        else:
            losses = torch.cat([checkpoint(self._losses, part, use_reentrant=False) for part in parts])
        counts = torch.cat([part["counts"] for part in parts])  # (texts,)
        return gather(losses, sizes).sum() / gather(counts, sizes).sum()

    def _losses(self, part: Mapping[str, Any]) -> Tensor:
        vectors = self.encoder(**part["source"])  # (texts, width)
        losses: Tensor = self.decoder(vectors, part["ids"], part["labels"])
        return losses


def open_denoising_task(
    encoder: SiameseEncoder,
    specs: Mapping[str, DenoisingSpec],
    *,
    seed: int,
    dropout: float | None = None,
    prompts: Mapping[str, Sequence[str]] | None = None,
    mini_batch: int | None = None,
) -> DenoisingTask:
    """Add a decoder to an encoder; new weights are drawn from torch's random numbers.

    Args:
        encoder: The encoder.
        specs, seed, prompts, mini_batch: As for `DenoisingTask`.
        dropout: Dropout of the decoder; None keeps that of the base.

    Raises:
        RecipeInvalid: the encoder cannot have a decoder.
        BundleInvalid: transformers cannot open the folder of the encoder.
    """
    decoder = DenoisingDecoder(encoder)
    if dropout is not None:
        for module in decoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout
    return DenoisingTask(encoder, decoder, specs, seed=seed, prompts=prompts, mini_batch=mini_batch)
