"""Wrap messages at words to the width of the terminal; commands and paths stay in one piece."""

from __future__ import annotations

import os
import re
from typing import TextIO

_MIN_WIDTH = 40
# A command in a message, with or without backticks, is one word: a line end in it would end the command when pasted.
# So are paths and addresses, which have no blanks.
_WORD = re.compile(r"`[^`]*`[^\s`]*|(?:[A-Z_]+=\S+ )?\bes-sbert [a-z]+(?: [^\s,;]*[^\s,;.:])+|\S+")


def wrap_for(stream: TextIO, text: str) -> str:
    """Format a text for a stream: wrapped for a terminal, unchanged for files and pipes."""
    width = _terminal_width(stream)
    return text if width is None else wrap(text, width)


def wrap(text: str, width: int) -> str:
    """Wrap each line that is longer than the width. The rest of a line is indented like its beginning."""
    return "\n".join(_wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    rows, end = [indent], len(indent)
    for word in _WORD.finditer(line, len(indent)):
        blank = line[end : word.start()]  # columns of a table may be several blanks apart
        if rows[-1].strip() and len(rows[-1]) + len(blank) + len(word[0]) > width:
            rows.append(indent + word[0])
        else:
            rows[-1] += blank + word[0]
        end = word.end()
    return "\n".join(rows)


def _terminal_width(stream: TextIO) -> int | None:
    """Columns of a terminal; None for anything else, and where its width is not known."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return None
    return columns if columns >= _MIN_WIDTH else None
