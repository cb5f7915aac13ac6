"""Files and standard input as sources: JSON Lines, CSV, TSV and plain text, which may be compressed, and Parquet.

`find_sources` turns FILE arguments into sources of known format.
"""

from __future__ import annotations

import glob
import os
import re
import select
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.sources.column_types import convert_cells
from es_sbert.ingest.sources.document_source import (
    DocumentSource,
    Origin,
    ReadCancelled,
    ReadContext,
    ReadSettings,
    Record,
    RejectedRecord,
    RequiredColumns,
    preview_context,
)
from es_sbert.ingest.sources.table_rows import PARQUET_ROWS, column_to_json, row_record
from es_sbert.io.file_formats import (
    MAGIC_BYTES,
    Compression,
    FileFormat,
    FileOptions,
    decompress,
    detect_compression,
    format_hint,
    guess_format,
    open_parquet,
    parquet_batches,
    text_chunks,
)
from es_sbert.io.text_formats import (
    SAMPLE_BYTES,
    UTF8,
    CorruptStream,
    DelimitedRow,
    Line,
    ParsedRow,
    WrongFormat,
    byte_order_mark,
    checked_utf8,
    csv_rows,
    dict_rows,
    find_delimiter,
    is_utf8,
    jsonl_rows,
    parse_header,
    plain_rows,
    read_head,
    split_lines,
    tsv_rows,
)
from es_sbert.messages import be, escape_unprintable, pluralize, setting

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
class FileInput:
    """Bytes of a file, pipe or device on this machine, of a range of a file, or of standard input.

    Attributes:
        name: The path as given, in valid Unicode; `-` for standard input.
        path: Path of the file, or of the file that contains the range; None for standard input.
        size: Bytes of a regular file or a range; None for what can be read only once.
        start: Offset of the first byte of a range; None for a whole file.
        first_line: Line number in the file at which the range begins.
    """

    name: str = STDIN
    path: Path | None = None
    size: int | None = None
    start: int | None = None
    first_line: int = 1

    @property
    def is_rereadable(self) -> bool:
        """Whether it can be read more than once."""
        return self.size is not None

    def chunks(self, context: ReadContext) -> Iterator[bytes]:
        """Yield the raw bytes, and count them.

        Raises:
            OSError, CorruptStream, ReadCancelled: see `DocumentSource.records`.
        """
        if self.path is None:
            yield from _read_descriptor(sys.stdin.fileno(), context, may_block=True)
            return
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


def split_file(name: str, path: Path, partition_bytes: int) -> list[FileInput]:
    """Split a file into ranges of about this many bytes, each of whole lines; reads the file once to count them.

    Args:
        name: Name of the file in messages.
        partition_bytes: Bytes of a range; a longer line is one range.

    Raises:
        OSError: the file cannot be read.
    """
    ranges: list[FileInput] = []
    start, first_line, line, offset = 0, 1, 1, 0
    with open(path, "rb") as file:
        while chunk := file.read(_SCAN_CHUNK):
            position = 0
            # The end of the first line that ends at the partition size or later.
            while (end := chunk.find(b"\n", max(position, start + partition_bytes - offset - 1)) + 1) > 0:
                line += chunk.count(b"\n", position, end)
                ranges.append(FileInput(name, path, offset + end - start, start, first_line))
                start, first_line, position = offset + end, line, end
            line += chunk.count(b"\n", position)
            offset += len(chunk)
    if offset > start or not ranges:
        ranges.append(FileInput(name, path, offset - start, start, first_line))
    return ranges


@dataclass(frozen=True)
class FileSource(DocumentSource):
    """Base of the sources that read files.

    Attributes:
        input: Source of the bytes.
    """

    input: FileInput

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.input.name

    @property
    def path(self) -> Path | None:  # type: ignore[override]
        return self.input.path

    @property
    def size(self) -> int | None:  # type: ignore[override]
        return self.input.size

    def partitions(self, partition_bytes: int) -> Sequence[DocumentSource]:
        if not self.input.is_rereadable:
            reason = f"{self.name} can be read only once and only by this process, so a cluster cannot load it"
            raise UsageError(reason, f"Write it to a file for all machines, or omit {setting('ray')}.")
        return super().partitions(partition_bytes)


@dataclass(frozen=True)
class TextSource(FileSource):
    """A text file with one document per line or row, which may be compressed.

    Attributes:
        format: Format inside the compression.
        delimiter: Delimiter of CSV; None detects it.
        encoding: Encoding of a text without a byte order mark; None for UTF-8.
    """

    format: FileFormat
    delimiter: str | None = None
    encoding: str | None = None

    def check(self, max_bytes: int, required: RequiredColumns) -> None:
        if not self.input.is_rereadable:
            return
        head, _ = read_head(self.input.chunks(preview_context()), MAGIC_BYTES)
        has_header = self.format in (FileFormat.CSV, FileFormat.TSV)
        # A truncated archive may still hold documents: the load reads them and reports the rest.
        is_refused = has_header or detect_compression(head) is Compression.NONE
        text = text_chunks(self.input.chunks(preview_context()), self.encoding)
        try:
            if has_header:
                header = next(self._rows(split_lines(text, max_bytes), max_bytes), None)
                if header is not None:
                    required.check(self.name, parse_header(header[2]), nested=False)
            elif (begin := next(text, b"").lstrip().lower()).startswith(b"[") and self.format is FileFormat.JSONL:
                remedy = f"Convert it to JSON Lines: jq -c '.[]' {self.name}"
                raise SourceError(f"{self.name} holds a JSON array, not one object per line", remedy)
            elif begin.startswith((b"<!doctype html", b"<html")) and self.format is FileFormat.LINES:
                remedy = f"Put each page into a JSON object, and set {setting('strip_html')}: docs/sources.md#html."
                raise SourceError(f"{self.name} is a page of HTML, of which each line would be a document", remedy)
            is_refused = False
            for _ in text:  # to the end, to find bytes that are not of the encoding before the load
                pass
            # Almost any bytes are text in windows-1252, so UTF-8 would be loaded with wrong letters.
            given = self.encoding not in (None, UTF8)
            if given and is_utf8(decompress(self.input.chunks(preview_context()))):
                remedy = f"Leave out {setting('encoding')}, and load files of different encodings by separate commands."
                raise SourceError(f"{self.name} is UTF-8, not {self.encoding}", remedy)
        except WrongFormat:
            raise
        except CorruptStream:  # the load finds the damage again
            if is_refused:
                raise

    def partitions(self, partition_bytes: int) -> Sequence[DocumentSource]:
        whole = super().partitions(partition_bytes)
        # In other formats a line depends on those before it: CSV has a header, and line feeds in quotes.
        if self.format not in (FileFormat.JSONL, FileFormat.LINES):
            return whole
        head, _ = read_head(self.input.chunks(preview_context()), MAGIC_BYTES)
        # Other encodings have line feeds inside characters, and only the first part would have the byte order mark.
        is_utf8_text = (byte_order_mark(head)[1] or self.encoding or UTF8) == UTF8
        if not is_utf8_text or detect_compression(head) is not Compression.NONE or (self.size or 0) <= partition_bytes:
            return whole
        assert self.path is not None, "checked by the base class"
        return [replace(self, input=part) for part in split_file(self.name, self.path, partition_bytes)]

    def records(self, context: ReadContext) -> Iterator[Record | RejectedRecord]:
        chunks = self.input.chunks(context)
        first_line = self.input.first_line
        # Only the beginning of a file has a byte order mark or shows the compression.
        chunks = text_chunks(chunks, self.encoding) if first_line == 1 else checked_utf8(chunks)
        # A compressed file may expand to hours of blank lines, without a record at which the load could stop.
        chunks = _until_stopped(chunks, context.stop)
        lines = split_lines(chunks, context.settings.max_bytes, first_line)
        return self.parse_lines(lines, context.settings)

    def parse_lines(self, lines: Iterable[Line], settings: ReadSettings) -> Iterator[Record | RejectedRecord]:
        """Parse uncompressed lines of UTF-8 into records.

        Raises:
            CorruptStream: the first line should be a header but is not.
        """
        is_jsonl = self.format is FileFormat.JSONL
        for row in self._parsed_rows(lines, settings):
            origin = Origin(self.name, row.number)
            if isinstance(row.fields, str):
                yield RejectedRecord(origin, row.fields, row.raw[:SAMPLE_BYTES], row.size or len(row.raw))
            else:
                yield Record(origin, row.fields, row.raw if is_jsonl else orjson.dumps(row.fields))

    def _parsed_rows(self, lines: Iterable[Line], settings: ReadSettings) -> Iterator[ParsedRow]:
        if self.format is FileFormat.JSONL:
            return jsonl_rows(lines)
        if self.format is FileFormat.LINES:
            return plain_rows(lines, settings.plain_text_field)
        return convert_cells(dict_rows(self._rows(lines, settings.max_bytes)), settings.column_types)

    def _rows(self, lines: Iterable[Line], max_bytes: int) -> Iterator[DelimitedRow]:
        if self.format is FileFormat.TSV:
            return tsv_rows(lines)
        delimiter, lines = find_delimiter(lines, self.delimiter)
        # Spreadsheets write emptied rows as lines that consist of delimiters only.
        return (row for row in csv_rows(lines, max_bytes, delimiter) if any(row[2]) or b'"' in row[1])


def _until_stopped(chunks: Iterator[bytes], stop: threading.Event) -> Iterator[bytes]:
    for chunk in chunks:
        if stop.is_set():
            raise ReadCancelled
        yield chunk


@dataclass(frozen=True)
class ParquetSource(FileSource):
    """A Parquet file.

    Attributes:
        row_groups: First row group to read, and the one after the last; None reads all.
    """

    row_groups: tuple[int, int] | None = None

    def check(self, max_bytes: int, required: RequiredColumns) -> None:
        if not self.input.is_rereadable:
            raise UsageError(
                f"{self.name} cannot be read as Parquet: the index of a Parquet file is at its end", "Name a file."
            ).about("files", self.name)
        if self.size == 0:
            raise CorruptStream("the file is empty, so it is not a Parquet file")
        with self._opened() as file:
            required.check(self.name, file.schema_arrow.names)

    def partitions(self, partition_bytes: int) -> Sequence[DocumentSource]:
        whole = super().partitions(partition_bytes)
        partitions: list[DocumentSource] = []
        with self._opened() as file:
            first, held = 0, 0
            for group in range(file.num_row_groups):
                held += file.metadata.row_group(group).total_byte_size
                if held >= partition_bytes or group == file.num_row_groups - 1:
                    partitions.append(replace(self, row_groups=(first, group + 1)))
                    first, held = group + 1, 0
        return partitions or whole

    def records(self, context: ReadContext) -> Iterator[Record | RejectedRecord]:
        with self._opened() as file:
            groups = range(*(self.row_groups or (0, file.num_row_groups)))
            row = sum(file.metadata.row_group(group).num_rows for group in range(groups.start))
            rows = max(1, file.metadata.num_rows)
            counted = (self.size or 0) * row // rows
            for batch in parquet_batches(file, groups=groups):
                names, columns = batch.schema.names, [column_to_json(column) for column in batch.columns]
                for number, values in enumerate(zip(*columns, strict=True), row + 1):
                    fields = dict(zip(names, values, strict=True))
                    yield row_record(fields, Origin(self.name, number), context.settings, PARQUET_ROWS)
                row += batch.num_rows
                # Estimated by rows: the bytes that were read for them are not known.
                part = (self.size or 0) * row // rows - counted
                counted += part
                context.counter.bytes += part

    def _opened(self) -> AbstractContextManager[Any]:
        assert self.path is not None, "refused by check"
        return open_parquet(self.path)


# `s3://…`, or several filesystems one inside the other: `zip://inner.csv::s3://…`. One letter is a Windows drive.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_ADDRESS_REMEDY = (
    "Download it first, or pipe it: `es-sbert ingest … --format jsonl -` loads what `curl -f URL` or `aws s3 cp URL -` "
    "writes. The client of a database writes the rows of a query to a file (docs/sources.md)."
)


def find_sources(arguments: Sequence[str], options: FileOptions | FileFormat | None) -> list[DocumentSource]:
    """Find the sources that the arguments name; patterns that the shell did not expand are expanded here, sorted.

    Args:
        arguments: Paths, glob patterns or `-`.
        options: Options for reading them; a format alone is enough.

    Raises:
        SourceError: a file is missing, a folder, or of unknown format, or a pattern matches nothing.
        UsageError: standard input has no format or is named twice, an option applies to none of the files, or an
            argument is an address.
    """
    if list(arguments).count(STDIN) > 1:
        raise UsageError("standard input is named twice", "Use - only once.").about("files", tuple(arguments))
    file_options = options if isinstance(options, FileOptions) else FileOptions(options)
    sources = [source for argument in arguments for source in _sources_for_argument(argument, file_options)]
    texts = {source.format for source in sources if isinstance(source, TextSource)}
    if file_options.encoding is not None and not texts:
        raise UsageError(f"{setting('encoding')} applies only to text files", "Leave it out.").about(
            "encoding", file_options.encoding
        )
    if file_options.delimiter is not None and FileFormat.CSV not in texts:
        raise UsageError(
            f"{setting('delimiter')} applies only to CSV files",
            f"Omit it, or add such a file. .tsv and .txt files with a delimiter need {setting('format', 'csv')}.",
        ).about("delimiter", file_options.delimiter)
    return sources


def _sources_for_argument(argument: str, options: FileOptions) -> list[DocumentSource]:
    if argument == STDIN:
        if options.format is None:
            raise UsageError("the format of standard input is not known", format_hint()).about("format")
        return [_file_source(FileInput(), STDIN, options)]
    if (address := _ADDRESS.match(argument)) and not os.path.lexists(argument):
        # The rest of the address may hold a password.
        raise UsageError(f"{address[0]}… is an address, and FILE is a file on this machine", _ADDRESS_REMEDY).about(
            "files"
        )
    return [_local_source(name, options) for name in _expand_pattern(argument)]


def _file_source(file: FileInput, name: str, options: FileOptions) -> DocumentSource:
    """Create the source for a file of the given format, or of the format that its name indicates."""
    form = options.format or guess_format(name)
    if form is None:
        raise SourceError(f"the name of {file.name} does not indicate its format", format_hint())
    if form is FileFormat.PARQUET:
        return ParquetSource(file)
    return TextSource(file, form, options.delimiter if form is FileFormat.CSV else None, options.encoding)


def _expand_pattern(argument: str) -> list[str]:
    if not glob.has_magic(argument) or os.path.lexists(argument):
        return [argument]
    names = sorted(name for name in glob.glob(argument, recursive=True) if not os.path.isdir(name))
    if not names:
        raise SourceError(
            f"no file matches {_printable_name(argument)}", "Check the pattern; ** matches any folders in between."
        ).about("files", argument)
    return names


def _local_source(name: str, options: FileOptions) -> DocumentSource:
    path = Path(name)
    shown = _printable_name(name)
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(
            f"{shown} cannot be read: {error.strerror}", "Check the path, and that this user may read it."
        ).about("files", name) from error
    if stat.S_ISDIR(status.st_mode):
        raise SourceError(f"{shown} is a folder", f"Name the files in it, e.g. '{os.path.join(shown, '*.jsonl')}'.")
    is_file, is_pipe = stat.S_ISREG(status.st_mode), stat.S_ISFIFO(status.st_mode)
    if not is_file and not is_pipe and not os.path.samefile(path, os.devnull):
        raise SourceError(f"{shown} is a device or a socket", "Name a file or a pipe, or - for standard input.")
    size = status.st_size if is_file else None
    return _file_source(FileInput(shown, path, size), path.name, options)


def _printable_name(name: str) -> str:
    """A file name as one line of valid Unicode: on Linux it may be any bytes."""
    return escape_unprintable(os.fsencode(name).decode(errors="backslashreplace"))
