"""Turn the FILE arguments of the command line into document sources of known format."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.sources.columnar_files import ArrowSource, ParquetSource
from es_sbert.ingest.sources.dead_letter_source import quarantine_path
from es_sbert.ingest.sources.document_source import FORMAT_HINT, ByteInput, DocumentSource, FileFormat, guess_format
from es_sbert.ingest.sources.local_files import STDIN, LocalFile, StandardInput
from es_sbert.ingest.sources.remote_files import find_remote, is_url
from es_sbert.ingest.sources.text_files import TextSource
from es_sbert.io.compression import Compression
from es_sbert.messages import escape_unprintable


def find_sources(arguments: Sequence[str], given: FileFormat | None) -> list[DocumentSource]:
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
    return [source for argument in arguments for source in _sources_for_argument(argument, given)]


def _sources_for_argument(argument: str, given: FileFormat | None) -> list[DocumentSource]:
    if argument == STDIN:
        if given is None:
            raise UsageError("the format of standard input is not known", FORMAT_HINT)
        return [_file_source(StandardInput(), STDIN, given)]
    if is_url(argument) and not os.path.lexists(argument):
        remote, local = find_remote(argument)
        return [
            *(_file_source(file, name, given) for file, name in remote),
            *(_local_source(name, given) for name in local),
        ]
    return [_local_source(name, given) for name in _expand_pattern(argument)]


def _file_source(file: ByteInput, name: str, given: FileFormat | None) -> DocumentSource:
    """The source that a file's name or the given format makes of it."""
    told, compression = guess_format(name)
    form = given or told
    if form is None:
        raise SourceError(f"the name of {file.name} does not tell its format", FORMAT_HINT)
    if form is FileFormat.PARQUET:
        return ParquetSource(file, compression)
    if form is FileFormat.ARROW:
        return ArrowSource(file, compression)
    return TextSource(file, form, compression)


def _expand_pattern(argument: str) -> list[str]:
    if not glob.has_magic(argument) or os.path.lexists(argument):
        return [argument]
    names = sorted(name for name in glob.glob(argument, recursive=True) if not os.path.isdir(name))
    if not names:
        raise SourceError(
            f"no file matches {_printable_name(argument)}", "Check the pattern; ** stands for any folders in between."
        )
    return names


def _local_source(name: str, given: FileFormat | None) -> DocumentSource:
    path = Path(name)
    shown = _printable_name(name)
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(
            f"{shown} cannot be read: {error.strerror}", "Check the path, and that this user may read it."
        ) from error
    if stat.S_ISDIR(status.st_mode):
        raise SourceError(f"{shown} is a folder", f"Name the files in it, e.g. '{os.path.join(shown, '*.jsonl')}'.")
    size = status.st_size if stat.S_ISREG(status.st_mode) else None
    return _file_source(LocalFile(shown, path, size), path.name, given)


def find_dead_letters(file: Path) -> DocumentSource:
    """The letters that `--retry FILE` is to try: those taken aside by a retry that was stopped, else the file's.

    Raises:
        SourceError: there is neither.
    """
    size = pending_dead_letters(file).size
    return TextSource(LocalFile(str(file), quarantine_path(file), size), FileFormat.LETTERS, Compression.NONE)


def pending_dead_letters(file: Path) -> DocumentSource:
    """As `find_dead_letters`, before they are taken aside: where they are now, to be looked at only.

    Raises:
        SourceError: there are none.
    """
    for path in (quarantine_path(file), file):
        if path.is_file():
            letters = LocalFile(str(file), path, path.stat().st_size)
            return TextSource(letters, FileFormat.LETTERS, Compression.NONE)
    raise SourceError(f"there are no dead letters in {file}", "Give --retry the dead-letter file of an earlier load.")


def _printable_name(name: str) -> str:
    """A file name as one line of valid Unicode: on Linux it may be any bytes."""
    return escape_unprintable(os.fsencode(name).decode(errors="backslashreplace"))
