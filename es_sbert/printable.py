"""Text for people. What comes from outside may not move the cursor of a terminal, hide, or look like a line of ours."""

from __future__ import annotations

import unicodedata

# Marks that turn the direction of what follows: a name shown backwards reads as another one.
_TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSEEN = frozenset({"Cc", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    r"""The text with control characters, line ends and lone surrogates as escapes: `\x1b`, `\n`, `\udcff`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def printable_lines(text: str) -> str:
    """As `printable`, with the text's own line feeds kept."""
    return "\n".join(printable(line) for line in text.split("\n"))


def counted(count: int, noun: str) -> str:
    """`1 hit`, `1,200 hits`."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def _escaped(character: str) -> str:
    if character in _TURNS or unicodedata.category(character) in _UNSEEN:
        return character.encode("unicode_escape").decode()
    return character
