"""The delimiter of a CSV file: given by the user, by Excel's `sep=` line, or recognized from the first rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain

from es_sbert.errors import UsageError
from es_sbert.io.text_formats import Line
from es_sbert.messages import setting_text

COMMA = ","
# Other delimiters, in the order of preference.
_OTHERS = (";", "\t", "|")
_NAMES = {"\t": "a tab", ";": "a semicolon", "|": "a vertical bar", COMMA: "a comma"}
_SEP_LINE = re.compile(rb'"?sep=([^\r\n"])"?\r?')

_SAMPLE_LINES = 20
_SAMPLE_BYTES = 1 << 18


def check_delimiter(text: str) -> str:
    r"""Parse a delimiter: a single character, or `tab` or `\t` for a tab.

    Raises:
        UsageError: the delimiter is not a single character, or is a quote or a line break.
    """
    delimiter = "\t" if text in ("tab", "\\t") else text
    if len(delimiter) != 1 or delimiter in '"\r\n\0':
        raise UsageError(
            f"the delimiter {text!r} must be a single character, and not a quote or a line break",
            'Use e.g. `delimiter=";"` or `delimiter="tab"`.',
        )
    return delimiter


def find_delimiter(lines: Iterable[Line], chosen: str | None = None) -> tuple[str, Iterator[Line]]:
    """Find the delimiter of a CSV file, and return it with the lines, without a `sep=` line.

    The comma is used unless it is implausible: if it splits the header into a single column, or most of the first rows
    into a different number of columns than the header. Then, the delimiter is used that splits the largest share of
    rows, at least half of them, into as many columns as the header, and the header into at least two.

    Args:
        lines: The lines; only as many as necessary are read in advance.
        chosen: The delimiter, if the user has set it.
    """
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        return chosen or COMMA, rest
    if first.number == 1 and (named := _SEP_LINE.fullmatch(first.data)):
        return chosen or named[1].decode(errors="replace"), rest
    if chosen is not None:
        return chosen, chain([first], rest)
    held = [first]
    candidates = [delimiter for delimiter in _OTHERS if delimiter.encode() in first.data]
    # One line is enough for most files, and the lines of a pipe may arrive one by one.
    if not first.is_too_long and candidates:
        size = first.size
        for line in rest:
            held.append(line)
            size += line.size
            if len(held) > _SAMPLE_LINES or size > _SAMPLE_BYTES:
                break
    sample = [line.data.decode(errors="replace") + "\n" for line in held if not line.is_too_long]
    return _most_plausible(sample, candidates), chain(held, rest)


def _most_plausible(sample: list[str], candidates: list[str]) -> str:
    best, best_share = COMMA, _regular_share(sample, COMMA)
    if best_share >= 0.5:
        return COMMA
    for delimiter in candidates:
        share = _regular_share(sample, delimiter)
        if share >= 0.5 and share > best_share:
            best, best_share = delimiter, share
    return best


def _regular_share(sample: list[str], delimiter: str) -> float:
    """Share of rows with as many columns as the header; 0 if the header has only one."""
    rows: list[list[str]] = []
    # Errors are ignored, because the last row may continue after the sample.
    with suppress(csv.Error):
        rows.extend(row for row in csv.reader(sample, delimiter=delimiter, strict=True) if row)
    if not rows:
        return 0.0
    header, *counts = map(len, rows)
    # Columns without names at the end of the header may be missing in the rows.
    named = next((number for number in range(header, 0, -1) if rows[0][number - 1]), 0)
    if named < 2:
        return 0.0
    return 1.0 if not counts else sum(count in (named, header) for count in counts) / len(counts)


def delimiter_hint(columns: list[str], is_tsv: bool = False) -> str:
    """Advice if the column names look as if a different delimiter separated them; else empty."""
    joined = " ".join(columns)
    for delimiter in (*((COMMA,) if is_tsv else ()), *_OTHERS):
        if delimiter in joined:
            shown = setting_text("delimiter", "tab" if delimiter == "\t" else delimiter)
            with_format = setting_text("format", "csv") + " and " if is_tsv else ""
            return f"If {_NAMES[delimiter]} separates its columns, add {with_format}{shown}. "
    return ""
