"""Pairs of texts to token ids with a cross-encoder's own tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from es_sbert.bundle.cross_encoder import CrossEncoderModel
from es_sbert.bundle.reranker import PairFormat
from es_sbert.encoder.packing import pad
from es_sbert.encoder.tokenizer import load_tokenizer
from es_sbert.errors import BundleInvalid, UsageError

Ids = NDArray[np.int64]

# CUDA's memory-efficient attention takes masks of rows whose length is a multiple of this, and leaves others to slower
# kernels.
CUDA_MULTIPLE = 8


@dataclass(frozen=True)
class TokenizedPairs:
    """Pairs as token ids, ready for the model.

    Attributes:
        ids, types: One int64 array of *shape* ``(tokens,)`` a pair: token ids with special tokens, and which text of
            the pair each belongs to.
        truncated: *Shape:* ``(pairs,)``, True where the pair was longer than the model reads.
    """

    ids: list[Ids]
    types: list[Ids]
    truncated: NDArray[np.bool_]

    @property
    def lengths(self) -> Ids:
        """*Shape:* ``(pairs,)``, tokens of each pair."""
        return np.fromiter(map(len, self.ids), dtype=np.int64, count=len(self.ids))


class PairTokenizer:
    """The tokenizer of one cross-encoder. Thread-safe: a call changes nothing.

    Args:
        model: The model.
        pairs: How its network takes pairs.

    Raises:
        BundleInvalid: tokenizer.json is broken, or leaves no room beside the special tokens.
    """

    def __init__(self, model: CrossEncoderModel, pairs: PairFormat) -> None:
        self._pairs = pairs
        self._max_tokens = model.max_tokens
        self._tokenizer = load_tokenizer(model.tokenizer_file, lowercase=model.lowercase)
        if model.max_tokens <= self._tokenizer.num_special_tokens_to_add(is_pair=True):
            raise BundleInvalid(
                f"{model.folder} reads {model.max_tokens} tokens, which the special tokens of a pair already fill",
                "Set model_max_length in tokenizer_config.json to what the model was trained with.",
            )
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(
            model.max_tokens, strategy="longest_first", direction=pairs.truncation_side
        )  # the longer text loses its end first, as in transformers

    def __call__(self, first: Sequence[str], second: Sequence[str]) -> TokenizedPairs:
        """Tokenise pairs.

        Raises:
            UsageError: a text is not valid Unicode (lone surrogates).
        """
        pairs = list(zip(first, second, strict=True))
        try:
            encodings = self._tokenizer.encode_batch_fast(pairs)
        except (TypeError, UnicodeEncodeError) as error:
            raise UsageError(f"a text cannot be tokenised: {error}", "Give valid Unicode strings.") from error
        return TokenizedPairs(
            [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings],
            [np.asarray(encoding.type_ids, dtype=np.int64) for encoding in encodings],
            np.fromiter((bool(encoding.overflowing) for encoding in encodings), dtype=np.bool_, count=len(pairs)),
        )

    def feed(self, tokenized: TokenizedPairs, members: Ids, *, multiple: int = 1) -> dict[str, Ids]:
        """The graph's inputs for some pairs, each of *shape* ``(members, length)``.

        Args:
            multiple: The length is a multiple of this, or the most that the model reads.
        """
        longest = max(len(tokenized.ids[member]) for member in members)
        length = min(-(-longest // multiple) * multiple, max(longest, self._max_tokens))
        ids, mask = self._pad([tokenized.ids[member] for member in members], length, self._pairs.padding_id)
        types, _ = self._pad([tokenized.types[member] for member in members], length, 0)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return {name: inputs[name] for name in self._pairs.inputs}

    def _pad(self, rows: list[Ids], length: int, padding: int) -> tuple[Ids, Ids]:
        if self._pairs.padding_side == "left":
            rows = [row[::-1] for row in rows]
        values, mask = pad(rows, padding)
        more = ((0, 0), (0, length - values.shape[1]))
        values, mask = np.pad(values, more, constant_values=padding), np.pad(mask, more)
        if self._pairs.padding_side == "left":
            values, mask = np.ascontiguousarray(values[:, ::-1]), np.ascontiguousarray(mask[:, ::-1])
        return values, mask
