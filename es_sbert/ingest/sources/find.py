"""From the command line's FILE arguments to sources whose format is known."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.sources.addresses import is_address
from es_sbert.ingest.sources.columnar import ArrowSource, ParquetSource
from es_sbert.ingest.sources.find_remote import find_remote
from es_sbert.ingest.sources.formats import ASKED, Format, told_by_name
from es_sbert.ingest.sources.letters import taken_aside
from es_sbert.ingest.sources.local import STDIN, LocalFile, StandardInput
from es_sbert.ingest.sources.source import Input, Source
from es_sbert.ingest.sources.textual import TextSource
from es_sbert.printable import printable
from es_sbert.streams.compression import Compression


def find_sources(arguments: Sequence[str], given: Format | None) -> list[Source]:
    """The sources that the arguments name; patterns that the shell left alone are expanded here, sorted.

    Args:
        arguments: Paths, patterns, fsspec addresses or `-`.
        given: The format of all of them; None tells it from each file's name.

    Raises:
        SourceError: a file is missing, a folder, or of unknown format, or a pattern matches nothing.
        UsageError: standard input without a format, or named twice; a filesystem whose library is missing.
    """
    if list(arguments).count(STDIN) > 1:
        raise UsageError("standard input is named twice", "Write - once.")
    return [source for argument in arguments for source in _found(argument, given)]


def _found(argument: str, given: Format | None) -> list[Source]:
    if argument == STDIN:
        if given is None:
            raise UsageError("the format of standard input is not known", ASKED)
        return [_source(StandardInput(), STDIN, given)]
    if is_address(argument) and not os.path.lexists(argument):
        remote, local = find_remote(argument)
        return [*(_source(file, name, given) for file, name in remote), *(_local(name, given) for name in local)]
    return [_local(name, given) for name in _expanded(argument)]


def _source(file: Input, name: str, given: Format | None) -> Source:
    """The source that a file's name or the given format makes of it."""
    told, compression = told_by_name(name)
    form = given or told
    if form is None:
        raise SourceError(f"the name of {file.name} does not tell its format", ASKED)
    if form is Format.PARQUET:
        return ParquetSource(file, compression)
    if form is Format.ARROW:
        return ArrowSource(file, compression)
    return TextSource(file, form, compression)


def _expanded(argument: str) -> list[str]:
    if not glob.has_magic(argument) or os.path.lexists(argument):
        return [argument]
    names = sorted(name for name in glob.glob(argument, recursive=True) if not os.path.isdir(name))
    if not names:
        raise SourceError(
            f"no file matches {_printable(argument)}", "Check the pattern; ** stands for any folders in between."
        )
    return names


def _local(name: str, given: Format | None) -> Source:
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
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    return _source(LocalFile(shown, path, size), path.name, given)


def letters_source(file: Path) -> Source:
    """The letters that `--retry FILE` is to try: those taken aside by a retry that was stopped, else the file's.

    Raises:
        SourceError: there is neither.
    """
    size = waiting_letters(file).size
    return TextSource(LocalFile(str(file), taken_aside(file), size), Format.LETTERS, Compression.NONE)


def waiting_letters(file: Path) -> Source:
    """As `letters_source`, before they are taken aside: where they are now, to be looked at only.

    Raises:
        SourceError: there are none.
    """
    for path in (taken_aside(file), file):
        if path.is_file():
            letters = LocalFile(str(file), path, path.stat().st_size)
            return TextSource(letters, Format.LETTERS, Compression.NONE)
    raise SourceError(f"there are no dead letters in {file}", "Give --retry the dead-letter file of an earlier load.")


def _printable(name: str) -> str:
    """A file name as one line of valid Unicode: on Linux it may be any bytes."""
    return printable(os.fsencode(name).decode(errors="backslashreplace"))
