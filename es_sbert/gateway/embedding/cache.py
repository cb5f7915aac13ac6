"""Vectors of texts that were embedded before, the least recently used of them forgotten."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cachetools import LRUCache

from es_sbert.bundle.model import PromptKind
from es_sbert.encoder.types import Vectors

# Fingerprint of the model, kind of the prompt, and a hash of caller and text: an entry's size does not depend on these.
Key = tuple[str, PromptKind | None, bytes]


@dataclass(frozen=True)
class CachedVector:
    """One text's vector.

    Attributes:
        vector: *Shape:* ``(dimensions,)`` float32, read-only.
        tokens: Tokens of the text before any cut.
        truncated: Whether the text was longer than the model reads.
    """

    vector: Vectors
    tokens: int
    truncated: bool


class VectorCache:
    """Vectors by model, kind and text; shared by all models. To be used by one thread.

    Args:
        entries: How many vectors are kept; 0 keeps none.
    """

    def __init__(self, entries: int) -> None:
        self._entries: LRUCache[Key, CachedVector] = LRUCache(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> CachedVector | None:
        """The vector of that key, which then counts as just used."""
        return self._entries.get(key)

    def put(self, key: Key, found: CachedVector) -> None:
        """Keep a vector, a copy of it: a row of a batch would keep the whole batch in memory."""
        if self._entries.maxsize:
            vector = found.vector.copy()  # (dimensions,)
            vector.flags.writeable = False
            self._entries[key] = CachedVector(vector, found.tokens, found.truncated)


def cache_key(fingerprint: str, kind: PromptKind | None, text: str, caller: bytes = b"") -> Key:
    """Key of a text.

    Args:
        caller: Who asks: another caller's vector is not found, so that the time of an answer does not tell what others
            have searched for.

    Raises:
        UnicodeEncodeError: the text holds lone surrogates.
    """
    return fingerprint, kind, hashlib.blake2b(text.encode(), key=caller, digest_size=16).digest()
