"""Which words of two texts differ."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import NamedTuple

# Scripts without spaces between words are compared by character.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
# Marks that belong to a letter, which `\w` leaves out: accents, Hebrew and Arabic points, vowels of Indic scripts.
_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff\u200c\u200d"
_WORD = re.compile(rf"[{_UNSPACED}]|(?:[^\W{_UNSPACED}]|[{_MARKS}])+|[^\w\s]")

Span = tuple[int, int]


class WordDiff(NamedTuple):
    """Where two texts differ.

    Attributes:
        first, second: Start and end of each part that the other text does not have, in characters, ascending.
        differences: How many there are. One that replaces words has a part in each text.
    """

    first: list[Span]
    second: list[Span]
    differences: int


def differing_words(first: str, second: str) -> WordDiff:
    """The parts of each of two texts that the other does not have, by whole words and signs; white space is ignored."""
    words, others = ([(match.start(), match.end()) for match in _WORD.finditer(text)] for text in (first, second))
    matcher = SequenceMatcher(
        None, [first[start:end] for start, end in words], [second[start:end] for start, end in others], autojunk=False
    )
    only_first: list[Span] = []
    only_second: list[Span] = []
    differences = 0
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        if kind == "equal":
            continue
        differences += 1
        if end > start:
            only_first.append((words[start][0], words[end - 1][1]))
        if other_end > other_start:
            only_second.append((others[other_start][0], others[other_end - 1][1]))
    return WordDiff(only_first, only_second, differences)
