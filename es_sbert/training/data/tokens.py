"""A column of tokenised texts in little memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

# Texts tokenised at a time: the tokenizer's own objects are many times as large as their ids.
_SLICE = 16_384


class TokenColumn:
    """Token ids of many texts in one flat array.

    Args:
        texts: The texts.
        tokenize: Texts → one int64 array of token ids each.
    """

    def __init__(self, texts: Sequence[str], tokenize: Callable[[Sequence[str]], list[NDArray[np.int64]]]) -> None:
        flat, lengths = [], []
        for start in range(0, len(texts), _SLICE):
            rows = tokenize(texts[start : start + _SLICE])
            flat.append(np.concatenate(rows).astype(np.int32))  # (tokens of the slice,)
            lengths += [len(row) for row in rows]
        self._ids = np.concatenate(flat) if flat else np.empty(0, dtype=np.int32)  # (tokens,)
        self.lengths = np.array(lengths, dtype=np.int64)
        """Tokens of each text, *shape* ``(texts,)``."""
        self._ends = np.cumsum(self.lengths)  # (texts,)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, text: int) -> NDArray[np.int64]:
        """Token ids of one text, *shape* ``(tokens,)``."""
        end = self._ends[text]
        return self._ids[end - self.lengths[text] : end].astype(np.int64)
