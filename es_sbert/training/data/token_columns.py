"""Tokenised texts and pairs of texts, stored in flat arrays to save memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from es_sbert.encoder.tokenizer import TokenizedPairs

# Texts tokenised at a time: the tokenizer's own objects are many times as large as their ids.
_SLICE = 16_384

TokenArrays = list[NDArray[np.int64]]


class TokenRows:
    """Rows of numbers, one a text or a pair, in one flat array.

    Args:
        parts: The rows in order; each part as a flat array, *shape* ``(numbers of the part,)``.
        lengths: *Shape:* ``(rows,)``.
    """

    def __init__(self, parts: Sequence[NDArray[np.integer]], lengths: Sequence[int]) -> None:
        self._flat = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)  # (numbers,)
        self.lengths = np.array(lengths, dtype=np.int64)
        """Numbers of each row, *shape* ``(rows,)``."""
        self._ends = np.cumsum(self.lengths)  # (rows,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        """One row, *shape* ``(numbers,)``."""
        end = self._ends[row]
        return self._flat[end - self.lengths[row] : end].astype(np.int64)


class TokenColumn(TokenRows):
    """Token ids of many texts.

    Args:
        texts: The texts.
        tokenize: Texts → one int64 array of token ids each.
    """

    def __init__(self, texts: Sequence[str], tokenize: Callable[[Sequence[str]], TokenArrays]) -> None:
        parts, lengths = [], []
        for start in range(0, len(texts), _SLICE):
            rows = tokenize(texts[start : start + _SLICE])
            parts.append(np.concatenate(rows).astype(np.int32))  # (tokens of the slice,)
            lengths += [len(row) for row in rows]
        super().__init__(parts, lengths)


class PairColumn:
    """Token ids of many pairs of texts, and which text each token belongs to.

    Args:
        first, second: The texts.
        tokenize: Pairs of texts, as two columns → their tokens.
    """

    def __init__(
        self,
        first: Sequence[str],
        second: Sequence[str],
        tokenize: Callable[[Sequence[str], Sequence[str]], TokenizedPairs],
    ) -> None:
        ids, types, lengths = [], [], []
        for start in range(0, len(first), _SLICE):
            part = slice(start, start + _SLICE)
            tokenized = tokenize(first[part], second[part])
            ids.append(np.concatenate(tokenized.ids).astype(np.int32))  # (tokens of the slice,)
            types.append(np.concatenate(tokenized.types).astype(np.int8))  # (tokens of the slice,)
            lengths += tokenized.lengths.tolist()
        self._ids, self._types = TokenRows(ids, lengths), TokenRows(types, lengths)
        self.lengths = self._ids.lengths
        """Tokens of each pair, *shape* ``(pairs,)``."""

    def pairs(self, rows: Sequence[int]) -> TokenizedPairs:
        """Some pairs; that they were truncated is not known any more."""
        return TokenizedPairs(
            [self._ids[row] for row in rows], [self._types[row] for row in rows], np.zeros(len(rows), dtype=np.bool_)
        )
