"""Tokenize texts by their words, each of which is tokenized once.

Hugging Face's tokenizer takes 30 to 50 µs for a sentence; looking up its words takes a fifth of that.

Tokenizers whose words hold their spaces are read whole: those of Unigram normalize by grapheme (Precompiled), where a
character may join a space, and BPE of bytes gains little for texts with new words.
"""

from __future__ import annotations

import json
import threading
from collections import ChainMap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_sbert.runtime.tokenizers_package import Tokenizer

_MAX_BYTES = 20 << 20  # of the words of one of two generations
_WORD_BYTES = 200  # of an entry, apart from its characters and ids: two objects and a slot of a dict
_MAX_CHARACTERS = 32  # of a word that is kept


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


class WordCounts(NamedTuple):
    """The words of texts that were tokenized word by word.

    Attributes:
        words: All of them.
        new: Of these, those that the tokenizer had to read.
    """

    words: int = 0
    new: int = 0


class WordCache:
    """Token ids of texts, from those of their words. Thread-safe.

    The words are in two generations. When the younger one is full, it becomes the older one, whose words move to the
    new younger one when they occur again. So words that occur often are never tokenized twice.

    Args:
        tokenizer: A tokenizer for which `reads_words_alone` is true.
        before, after: Special tokens around each text.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = (), after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # Stored as bytes of int64 numbers: joining them is much faster than making an array from a list of numbers.
        self._before, self._after = _as_bytes(before), _as_bytes(after)
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}
        self._bytes = 0  # of the younger generation
        self._changing = threading.Lock()

    def __call__(self, texts: Sequence[str]) -> tuple[list[NDArray[np.int64]], WordCounts]:
        """Tokenize texts.

        Returns:
            The token ids of each text, as the tokenizer would return them: *shape* ``(tokens,)`` each; the words.

        Raises:
            TypeError, UnicodeEncodeError: a text is not valid Unicode.
        """
        split = [text.split(" ") for text in texts]
        known, old = self._young, self._old
        missing = set().union(*split).difference(known)
        found = {word: old[word] for word in missing if word in old}
        unknown = list(missing.difference(found))
        if unknown:
            encodings = self._tokenizer.encode_batch_fast(unknown, add_special_tokens=False)
            found |= {word: _as_bytes(each.ids) for word, each in zip(unknown, encodings, strict=True)}
        before, after = self._before, self._after

        def join(words: list[str]) -> bytes:
            try:
                return before + b"".join(map(known.__getitem__, words)) + after
            except KeyError:  # a new word
                return before + b"".join(map(ChainMap(known, found).__getitem__, words)) + after

        if found:
            self._keep(known, found)
        rows = [np.frombuffer(join(words), dtype=np.int64) for words in split]
        return rows, WordCounts(sum(map(len, split)), len(unknown))

    def _keep(self, known: dict[str, bytes], found: dict[str, bytes]) -> None:
        """Add words to the younger generation, unless another thread has replaced it."""
        kept = {word: ids for word, ids in found.items() if len(word) <= _MAX_CHARACTERS}
        with self._changing:
            if self._young is not known:
                return
            known.update(kept)
            self._bytes += sum(_WORD_BYTES + len(word) + len(ids) for word, ids in kept.items())
            if self._bytes > _MAX_BYTES:
                self._young, self._old, self._bytes = {}, known, 0


def _as_bytes(ids: Sequence[int]) -> bytes:
    return np.array(ids, dtype=np.int64).tobytes()
