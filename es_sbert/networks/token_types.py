"""Token types of a single text, where a network knows its special tokens by them (XLNet)."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import tokenizers
from torch import Tensor, full_like, nn, where

from es_sbert.errors import BundleInvalid


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
