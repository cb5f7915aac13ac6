"""Turn FILE arguments into document sources of known format; local files and standard input as byte streams."""

from __future__ import annotations

import glob
import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.sources.column_types import parse_types
from es_sbert.ingest.sources.document_source import (
    ByteInput,
    DocumentSource,
    ReadCancelled,
    ReadContext,
    SourceUnavailable,
    preview_context,
)
from es_sbert.ingest.sources.file_sources import ParquetSource, TextSource
from es_sbert.ingest.sources.remote_files import find_remote, is_url
from es_sbert.io.file_formats import (
    FORMAT_HINT,
    MAGIC_BYTES,
    SIGNATURE_BYTES,
    Compression,
    FileFormat,
    detect_compression,
    guess_format,
    recognize_file,
    recognize_markup,
    recognize_name,
)
from es_sbert.io.text_formats import CorruptStream, check_delimiter, check_encoding
from es_sbert.messages import be, escape_unprintable, pluralize

STDIN = "-"
_CHUNK = 1 << 16
_STOP_POLL_SECONDS = 0.2
_SCAN_CHUNK = 1 << 20
_O_BINARY = getattr(os, "O_BINARY", 0)
# Elsewhere, a pipe without a writer looks as if it had ended.
_O_NONBLOCK = 0
if sys.platform == "linux":
    _O_NONBLOCK = os.O_NONBLOCK


@dataclass(frozen=True)
class LocalFile(ByteInput):
    """A file, pipe or device on this machine, or a range of a file.

    Attributes:
        name: The path as given, in valid Unicode.
        path: Path of the file, or of the file that contains the range.
        size: Bytes of a regular file or a range; None for pipes and devices.
        start: Offset of the first byte of a range; None for a whole file.
        first_line: Line number in the file at which the range begins.
    """

    name: str
    path: Path
    size: int | None
    start: int | None = None
    first_line: int = 1

    @property
    def is_rereadable(self) -> bool:
        return self.size is not None

    def chunks(self, context: ReadContext) -> Iterator[bytes]:
        # Opening a named pipe would block until someone writes to it; the loop waits for that and can be stopped.
        descriptor = os.open(self.path, os.O_RDONLY | _O_BINARY | (_O_NONBLOCK if self.size is None else 0))
        try:
            if self.start is None:
                yield from _read_descriptor(descriptor, context, may_block=self.size is None)
            else:
                os.lseek(descriptor, self.start, os.SEEK_SET)
                yield from _read_descriptor(descriptor, context, count=self.size)
        finally:
            os.close(descriptor)

    def open(self, context: ReadContext) -> AbstractContextManager[BinaryIO]:
        return open(self.path, "rb")

    def split_at_lines(self, partition_bytes: int) -> Sequence[ByteInput]:
        if self.size is None or self.size <= partition_bytes:
            return [self]
        with open(self.path, "rb") as file:
            if detect_compression(file.read(MAGIC_BYTES)) is not Compression.NONE:
                return [self]
        return split_file(self.name, self.path, partition_bytes)


@dataclass(frozen=True)
class StandardInput(ByteInput):
    """The standard input of this process."""

    name: str = STDIN
    path: None = None
    size: None = None

    @property
    def is_rereadable(self) -> bool:
        return False

    def chunks(self, context: ReadContext) -> Iterator[bytes]:
        return _read_descriptor(sys.stdin.fileno(), context, may_block=True)

    def open(self, context: ReadContext) -> AbstractContextManager[BinaryIO]:
        raise CorruptStream("standard input can only be read from its beginning to its end")


def _read_descriptor(
    descriptor: int, context: ReadContext, *, may_block: bool = False, count: int | None = None
) -> Iterator[bytes]:
    """Read the bytes of an open file: all until its end, or exactly `count`."""
    # A pipe may stay silent for hours. Windows cannot wait for a pipe with a timeout, so a stop takes effect there only
    # when the next bytes arrive.
    polls = may_block and os.name == "posix"
    while count is None or count > 0:
        if context.stop.is_set():
            raise ReadCancelled
        if polls and not select.select([descriptor], [], [], _STOP_POLL_SECONDS)[0]:
            continue
        try:
            chunk = os.read(descriptor, _CHUNK if count is None else min(_CHUNK, count))
        except OSError as error:
            raise CorruptStream(f"reading failed: {error.strerror}") from error
        if not chunk:
            if count is None:
                return
            raise CorruptStream(
                f"the file was truncated while it was read: {pluralize(count, 'byte')} {be(count)} missing"
            )
        if count is not None:
            count -= len(chunk)
        context.counter.bytes += len(chunk)
        yield chunk


def split_file(name: str, path: Path, partition_bytes: int) -> list[LocalFile]:
    """Split a file into ranges of about this many bytes, each of whole lines; reads the file once to count them.

    Args:
        name: Name of the file in messages.
        partition_bytes: Bytes of a range; a longer line is one range.

    Raises:
        OSError: the file cannot be read.
    """
    ranges: list[LocalFile] = []
    start, first_line, line, offset = 0, 1, 1, 0
    with open(path, "rb") as file:
        while chunk := file.read(_SCAN_CHUNK):
            position = 0
            # The end of the first line that ends at the partition size or later.
            while (end := chunk.find(b"\n", max(position, start + partition_bytes - offset - 1)) + 1) > 0:
                line += chunk.count(b"\n", position, end)
                ranges.append(LocalFile(name, path, offset + end - start, start, first_line))
                start, first_line, position = offset + end, line, end
            line += chunk.count(b"\n", position)
            offset += len(chunk)
    if offset > start or not ranges:
        ranges.append(LocalFile(name, path, offset - start, start, first_line))
    return ranges


@dataclass(frozen=True)
class FileOptions:
    """Options for reading files.

    Attributes:
        format: The format of all files; None recognizes it by each file's name.
        delimiter: Delimiter of CSV files; None recognizes it in each file.
        encoding: Encoding of text files; None for UTF-8, or UTF-16 with a byte order mark.
        types: Columns of CSV and TSV files and their types, each as `COLUMN=TYPE`, sorted.

    Raises:
        UsageError: the encoding, the delimiter or a type does not exist.
    """

    format: FileFormat | None = None
    delimiter: str | None = None
    encoding: str | None = None
    types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Types get one notation, because a load resumes another one only if both have the same options.
        types = sorted(f"{name}={kind}" for name, kind in parse_types(self.types).items())
        object.__setattr__(self, "types", tuple(types))
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", check_delimiter(self.delimiter))
        if self.encoding is not None:
            object.__setattr__(self, "encoding", check_encoding(self.encoding))


def find_sources(arguments: Sequence[str], options: FileOptions | FileFormat | None) -> list[DocumentSource]:
    """Find the sources that the arguments name; patterns that the shell did not expand are expanded here, sorted.

    Args:
        arguments: Paths, glob patterns, fsspec addresses or `-`.
        options: Options for reading them; a format alone is enough.

    Raises:
        SourceError: a file is missing, a folder, or of unknown format, or a pattern matches nothing.
        UsageError: standard input has no format or is named twice, the library of a filesystem is missing, or an
            option applies to none of the files.
    """
    if list(arguments).count(STDIN) > 1:
        raise UsageError("standard input is named twice", "Use - only once.")
    file_options = options if isinstance(options, FileOptions) else FileOptions(options)
    sources = [source for argument in arguments for source in _sources_for_argument(argument, file_options)]
    texts = {source.format for source in sources if isinstance(source, TextSource)}
    has_tables = not texts.isdisjoint((FileFormat.CSV, FileFormat.TSV))
    for setting, value, applies, file_kinds in (
        ("delimiter", file_options.delimiter, FileFormat.CSV in texts, "CSV files"),
        ("types", file_options.types or None, has_tables, "CSV and TSV files"),
        ("encoding", file_options.encoding, bool(texts), "text files"),
    ):
        if value is not None and not applies:
            hint = ' With a delimiter, .tsv and .txt files need `format="csv"` too.' if setting == "delimiter" else ""
            raise UsageError(f"`{setting}` applies only to {file_kinds}", f"Leave it out, or add such a file.{hint}")
    return sources


def _sources_for_argument(argument: str, options: FileOptions) -> list[DocumentSource]:
    if argument == STDIN:
        if options.format is None:
            raise UsageError("the format of standard input is not known", FORMAT_HINT)
        return [_file_source(StandardInput(), STDIN, options)]
    if is_url(argument) and not os.path.lexists(argument):
        return [
            _local_source(file, options) if isinstance(file, str) else _file_source(file, file.file_name, options)
            for file in find_remote(argument)
        ]
    return [_local_source(name, options) for name in _expand_pattern(argument)]


def _file_source(file: ByteInput, name: str, options: FileOptions) -> DocumentSource:
    """Create the source for a file of the given format, or of the format that its name indicates."""
    named_format, compression = guess_format(name)
    form = options.format or named_format
    if form is None:
        _raise_unknown_format(file, name)
    if form is FileFormat.PARQUET:
        return ParquetSource(file, compression)
    delimiter = options.delimiter if form is FileFormat.CSV else None
    return TextSource(file, form, compression, delimiter, options.encoding)


def _raise_unknown_format(file: ByteInput, name: str) -> NoReturn:
    """Refuse a file whose name does not indicate a format; the message says what it is by its name or first bytes.

    Raises:
        SourceError: in any case.
    """
    head, signature = b"", recognize_name(name)
    if signature is None and file.is_rereadable:
        with suppress(OSError, CorruptStream, SourceUnavailable):  # the refusal does without the first bytes
            head = next(iter(file.chunks(preview_context())), b"")[:SIGNATURE_BYTES]
    signature = signature or recognize_file(head) or recognize_markup(head)
    # A compressed file only needs a proper name; it need not be unpacked.
    if signature is not None and detect_compression(head) is Compression.NONE:
        raise SourceError(f"{file.name} cannot be loaded: it is {signature.kind}", signature.remedy)
    raise SourceError(f"the name of {file.name} does not indicate its format", FORMAT_HINT)


def _expand_pattern(argument: str) -> list[str]:
    if not glob.has_magic(argument) or os.path.lexists(argument):
        return [argument]
    names = sorted(name for name in glob.glob(argument, recursive=True) if not os.path.isdir(name))
    if not names:
        raise SourceError(
            f"no file matches {_printable_name(argument)}", "Check the pattern; ** matches any folders in between."
        )
    return names


def _local_source(name: str, options: FileOptions) -> DocumentSource:
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
    is_file, is_pipe = stat.S_ISREG(status.st_mode), stat.S_ISFIFO(status.st_mode)
    if not is_file and not is_pipe and not os.path.samefile(path, os.devnull):
        raise SourceError(f"{shown} is a device or a socket", "Name a file or a pipe, or - for standard input.")
    size = status.st_size if is_file else None
    return _file_source(LocalFile(shown, path, size), path.name, options)


def _printable_name(name: str) -> str:
    """A file name as one line of valid Unicode: on Linux it may be any bytes."""
    return escape_unprintable(os.fsencode(name).decode(errors="backslashreplace"))
