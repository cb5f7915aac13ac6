"""Cache the token ids of words, for tokenizers that read each word alone.

BERT's tokenizers take 50 µs of a core for a short text, more than a static model needs for its vector.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

_MAX_WORDS = 200_000  # words that are kept, about 40 MB
_MAX_CHARACTERS = 32  # characters of a word that is kept


def reads_words_alone(tokenizer: Tokenizer) -> bool:
    """Whether a text can be tokenized word by word: its tokens are those of its space-separated parts, in order.

    This is true for BERT: its normalizer maps single characters, and no word of its pre-tokenizer contains a space.
    """
    settings = json.loads(tokenizer.to_str())
    normalizer = settings["normalizer"] or {"type": "Sequence", "normalizers": []}
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    return (
        all(step["type"] in ("BertNormalizer", "Lowercase") for step in steps)
        and (settings["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and settings["model"]["type"] == "WordPiece"
        and all(_is_plain(token) for token in settings["added_tokens"])
    )


def _is_plain(token: dict[str, Any]) -> bool:
    """Whether an added token is recognized next to any characters, and contains no space."""
    return not (token["single_word"] or token["lstrip"] or token["rstrip"] or " " in token["content"])


class WordCache:
    """Token ids of words, without special tokens. Thread-safe.

    Args:
        tokenizer: A tokenizer for which `reads_words_alone` is true.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Stored as bytes of int64 numbers: joining them is much faster than making an array from a list of numbers.
        self._known: dict[str, bytes] = {}

    def __call__(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the token ids of each text, as the tokenizer would: *shape* ``(tokens,)`` each.

        Raises:
            TypeError, UnicodeEncodeError: a text is not valid Unicode.
        """
        split = [text.split(" ") for text in texts]
        words_of_all = set().union(*split)
        cached = self._known
        rare: dict[str, bytes] = {}
        missing = list(words_of_all.difference(cached))
        if missing:
            encodings = self._tokenizer.encode_batch_fast(missing, add_special_tokens=False)
            found = {
                word: np.array(encoding.ids, dtype=np.int64).tobytes()
                for word, encoding in zip(missing, encodings, strict=True)
            }
            if len(cached) + len(found) > _MAX_WORDS:
                # Start a new cache with the words of these texts. Other threads continue with the old one.
                cached = self._known = {word: cached[word] for word in words_of_all if word in cached}
            cached.update((word, ids) for word, ids in found.items() if len(word) <= _MAX_CHARACTERS)
            rare = {word: ids for word, ids in found.items() if len(word) > _MAX_CHARACTERS}

        def join(words: list[str]) -> bytes:
            try:
                return b"".join(map(cached.__getitem__, words))
            except KeyError:  # a word that is not kept
                return b"".join(map(ChainMap(cached, rare).__getitem__, words))

        return [np.frombuffer(join(words), dtype=np.int64) for words in split]
