"""From the command line's FILE arguments to sources whose format is known."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from es_sbert.errors import SourceError, UsageError
from es_sbert.printable import printable
from es_sbert.streams.compression import SUFFIXES, Compression

STDIN = "-"


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    LINES = "lines"
    LETTERS = "letters"  # a dead-letter file, by --retry alone


_FORMATS = {
    ".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".json": Format.JSONL, ".csv": Format.CSV, ".tsv": Format.TSV,
    ".tab": Format.TSV, ".txt": Format.LINES,
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A file or standard input.

    Attributes:
        name: As it is called in messages: the path as given, or `-`.
        path: None for standard input.
        format: Format of what is inside the compression.
        compression: What the file's name says; None where the name says nothing.
        size: Bytes of a regular file; None for pipes, devices and standard input.
    """

    name: str
    path: Path | None
    format: Format
    compression: Compression | None
    size: int | None


def find_sources(arguments: Sequence[str], given: Format | None) -> list[Source]:
    """The sources that the arguments name; patterns that the shell left alone are expanded here, sorted.

    Args:
        given: The format of all of them; None tells it from each file's name.

    Raises:
        SourceError: a file is missing, a folder, or of unknown format, or a pattern matches nothing.
        UsageError: standard input without a format, or named twice.
    """
    sources: list[Source] = []
    for argument in arguments:
        if argument == STDIN:
            sources.append(_standard_input(given))
        else:
            sources.extend(_file(name, given) for name in _expanded(argument))
    if sum(source.path is None for source in sources) > 1:
        raise UsageError("standard input is named twice", "Write - once.")
    return sources


def _standard_input(given: Format | None) -> Source:
    if given is None:
        raise UsageError(
            "the format of standard input is not known",
            "Add --format jsonl, csv, tsv or lines.",
        )
    return Source(STDIN, None, given, None, None)


def _expanded(argument: str) -> list[str]:
    if not glob.has_magic(argument) or os.path.lexists(argument):
        return [argument]
    names = sorted(name for name in glob.glob(argument, recursive=True) if not os.path.isdir(name))
    if not names:
        raise SourceError(
            f"no file matches {_printable(argument)}", "Check the pattern; ** stands for any folders in between."
        )
    return names


def _file(name: str, given: Format | None) -> Source:
    path = Path(name)
    shown = _printable(name)
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(
            f"{shown} cannot be read: {error.strerror}", "Check the path, and that this user may read it."
        ) from error
    if stat.S_ISDIR(status.st_mode):
        raise SourceError(f"{shown} is a folder", f"Name the files in it, e.g. '{os.path.join(shown, '*.jsonl')}'.")
    compression = SUFFIXES.get(path.suffix.lower())
    inner = Path(path.stem) if compression else path
    found = given or _FORMATS.get(inner.suffix.lower())
    if found is None:
        raise SourceError(f"the name of {shown} does not tell its format", "Add --format jsonl, csv, tsv or lines.")
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    return Source(shown, path, found, compression, size)


def _printable(name: str) -> str:
    """A file name as one line of valid Unicode: on Linux it may be any bytes."""
    return printable(os.fsencode(name).decode(errors="backslashreplace"))
