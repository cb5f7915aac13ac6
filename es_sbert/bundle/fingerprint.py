"""The fingerprint: equal ones mean vectors that may stand in one field and be compared."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

# Padding and truncation are settings of a run, not of the tokenizer; exporters rewrite them.
_TOKENIZER_RUN_SETTINGS = ("padding", "truncation")


def fingerprint(weights: str, tokenizer: dict[str, Any], settings: dict[str, Any]) -> str:
    """Hash of everything that decides a vector, as 32 hex digits (128 bits).

    Args:
        weights: Hash of the transformer's and the Dense modules' tensors.
        tokenizer: Parsed tokenizer.json.
        settings: Transformer configuration that changes the result, pooling, Dense modules, normalisation,
            maximum tokens, prompts.
    """
    stable = {key: value for key, value in tokenizer.items() if key not in _TOKENIZER_RUN_SETTINGS}
    parts = json.dumps([weights, stable, settings], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def is_fingerprint(text: str) -> bool:
    """Whether a text from outside has the form of a fingerprint, and so is nothing else (a path, say)."""
    return re.fullmatch("[0-9a-f]{32}", text) is not None
