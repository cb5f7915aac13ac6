"""The siamese encoder: one transformer with tied weights for every text column, then pooling, Dense layers and
normalization.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor, full_like, nn, where

from es_sbert.bundle.sentence_model import Activation, Dense, PromptKind, SentenceModel
from es_sbert.encoder.batching import pad, plan_batches
from es_sbert.encoder.tokenizer import SentenceTokenizer
from es_sbert.errors import BundleInvalid
from es_sbert.networks.pooling import pool


@dataclass(frozen=True)
class TokenTypes:
    """Token types of a single text by place: those of the special tokens around it and its own.

    XLNet gives its last token the type 2, by which attention knows it.
    """

    prefix: tuple[int, ...]
    body: int
    suffix: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> TokenTypes:
        """What the tokenizer's template says."""
        encoding = tokenizer.encode("a")
        own = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
        types = encoding.type_ids
        if not own:
            raise BundleInvalid("the tokenizer gives no token for the letter a", "Copy the model folder again.")
        return cls(tuple(types[: own[0]]), types[own[0]], tuple(types[own[-1] + 1 :]))

    def __call__(self, mask: Tensor) -> Tensor:
        """*Shape:* that of the attention mask, ``(batch, tokens)``, int64; padding on the right has type 0."""
        rank = mask.cumsum(1)  # (batch, tokens), from 1
        behind = mask.sum(1, keepdim=True) - rank  # (batch, tokens): tokens that follow
        types = full_like(mask, self.body)
        for place, kind in enumerate(self.prefix):
            types = where(rank == place + 1, kind, types)
        for place, kind in enumerate(reversed(self.suffix)):
            types = where(behind == place, kind, types)
        return types * mask


def takes_token_types(network: nn.Module, tokenizer: Any) -> bool:
    """Whether sentence-transformers hands a network the token types that its tokenizer gives."""
    declared = inspect.signature(network.forward).parameters
    return "token_type_ids" in tokenizer.model_input_names and "token_type_ids" in declared


_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    Activation.IDENTITY: nn.Identity,
    Activation.TANH: nn.Tanh,
    Activation.RELU: nn.ReLU,
    Activation.GELU: nn.GELU,
}

# Padded tokens of one batch without gradients.
_BATCH_TOKENS = {"cpu": 1024, "cuda": 32_768}


class DenseLayer(nn.Module):
    """y = activation(x Wᵀ + b); its tensors are named as sentence-transformers names them."""

    def __init__(self, settings: Dense) -> None:
        super().__init__()
        self.settings = settings
        self.linear = nn.Linear(settings.in_features, settings.out_features, bias=settings.bias)
        self.activation = _ACTIVATIONS[settings.activation]()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in_features) → (batch, out_features)."""
        y: Tensor = self.activation(self.linear(x))
        return y


class SiameseEncoder(nn.Module):
    """A sentence encoder in torch; `es_sbert.networks.siamese_encoder_folder` opens and saves one.

    An `Embedder` for evaluation as it stands.

    Args:
        model: Its settings; texts are tokenised by its folder's tokenizer.json, as the ONNX encoder does it.
        transformer: A transformers encoder whose output has `last_hidden_state`.
        dense: One layer for each of `model.dense`.
        token_types: For a transformer that wants them; others take type 0 by themselves.
    """

    def __init__(
        self,
        model: SentenceModel,
        transformer: nn.Module,
        dense: Sequence[DenseLayer],
        token_types: TokenTypes | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.transformer = transformer
        self.dense = nn.ModuleList(dense)
        self.token_types = token_types
        self._tokenizer = SentenceTokenizer(model)
        self._padding = int(model.transformer_config.get("pad_token_id") or 0)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def dimensions(self) -> int:
        return self.model.dimensions

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def tokenize(self, texts: Sequence[str], prompt: str = "") -> list[NDArray[np.int64]]:
        """Token ids, one array of *shape* ``(tokens,)`` a text, cut at the model's maximum.

        Args:
            texts: Any texts.
            prompt: Text put in front of each.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        return self._tokenizer([prompt + text for text in texts] if prompt else texts).ids

    def inputs(self, rows: Sequence[NDArray[np.int64]]) -> dict[str, Tensor | bool]:
        """Rows of token ids as the arguments of `forward`: `ids` and `mask` on the CPU, and `padded`."""
        ids, mask = self.pad(rows)
        return {"ids": ids, "mask": mask, "padded": min(map(len, rows)) < ids.shape[1]}

    def pad(self, rows: Sequence[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
        """Rows of token ids as one batch: ids and mask, both ``(rows, longest)`` int64, on the CPU."""
        ids, mask = pad(rows, self._padding)
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def forward(self, ids: Tensor, mask: Tensor, padded: bool = True) -> Tensor:
        """Sentence vectors of one batch.

        Args:
            ids, mask: *Shape:* ``(batch, tokens)``.
            padded: Whether a text is shorter than the longest. If not, attention needs no mask.

        Returns:
            *Shape:* ``(batch, dimensions)`` float32.
        """
        extra = {} if self.token_types is None else {"token_type_ids": self.token_types(mask)}
        tokens = self.transformer(input_ids=ids, attention_mask=mask if padded else None, **extra).last_hidden_state
        # tokens: (batch, tokens, width)
        # Sums over many tokens and squares lose too much in half precision.
        with torch.autocast(ids.device.type, enabled=False):
            vectors = pool(tokens.float(), mask, self.model.pooling)
            for layer in self.dense:
                vectors = layer(vectors)
            return nn.functional.normalize(vectors, dim=1) if self.model.normalize else vectors

    def embed(self, texts: Sequence[str], kind: PromptKind | None = None) -> NDArray[np.float32]:
        """Sentence vectors of any number of texts, ``(texts, dimensions)`` float32, in their order, without dropout.

        Args:
            texts: Any texts.
            kind: Which of the model's prompts to put in front.

        Raises:
            UsageError: a text is not valid Unicode.
        """
        rows = self._tokenizer(texts, kind).ids
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))  # (texts,)
        vectors = np.empty((len(rows), self.dimensions), dtype=np.float32)  # (texts, dimensions)
        with eval_mode(self):
            for members in plan_batches(lengths, _BATCH_TOKENS.get(self.device.type, _BATCH_TOKENS["cuda"])):
                ids, mask = self.pad([rows[member] for member in members])
                padded = bool(lengths[members].min() < ids.shape[1])
                vectors[members] = self(ids.to(self.device), mask.to(self.device), padded).cpu().numpy()
        return vectors


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Without dropout and gradients; the module's mode is restored."""
    training = module.training
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        module.train(training)
