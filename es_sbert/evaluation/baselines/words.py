"""How a text is cut into words for the baselines that rest on word vectors."""

from __future__ import annotations

import re

# The table of GloVe was made with the Penn Treebank's habits: clitics stand alone ("do n't", "man 's"), numbers keep
# their points and commas, every other sign is a word of its own. Hyphens part words, since few compounds have vectors.
_WORD = re.compile(
    r"\d+(?:[.,]\d+)*(?!\w)|\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+|[^\w\s]",
    re.IGNORECASE,
)


def tokenize(text: str) -> list[str]:
    """The words, numbers and signs of a text, in order, in its own case.

    >>> tokenize("The man's dog didn't cost $1,200.50.")
    ['The', 'man', "'s", 'dog', 'did', "n't", 'cost', '$', '1,200.50', '.']
    """
    words: list[str] = _WORD.findall(text.replace("’", "'"))  # typographic apostrophe
    return words
