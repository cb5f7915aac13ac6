"""Line-oriented sources: JSON Lines, CSV, TSV and plain text, compressed or not."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import orjson

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.records import Origin, Record, RejectedRecord
from es_sbert.ingest.sources.dead_letter_source import dead_letter_records, last_dead_letter_lines
from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    DocumentSource,
    FileFormat,
    FileSource,
    ReadContext,
    ReadSettings,
    RequiredColumns,
)
from es_sbert.ingest.sources.local_files import LocalFile, split_file
from es_sbert.io.compression import MAGIC_BYTES, Compression, decompress, detect_compression
from es_sbert.io.csv_tsv import DelimitedRow, csv_rows, dict_rows, parse_header, tsv_rows
from es_sbert.io.json_lines import LINE_WHITESPACE, depth_problem, parse_json_line, utf8_problem
from es_sbert.io.lines import (
    SAMPLE_BYTES,
    CorruptStream,
    Line,
    line_too_long_reason,
    split_lines,
    strip_byte_order_mark,
)


def jsonl_records(lines: Iterable[Line], source: str) -> Iterator[Record | RejectedRecord]:
    """One record a line; lines of nothing but white space are passed over."""
    for line in lines:
        origin = Origin(source, line.number)
        data = line.data.strip(LINE_WHITESPACE)
        if line.too_long:
            yield RejectedRecord(origin, line_too_long_reason(line), line.data, line.size)
        elif data:
            fields = parse_json_line(data)
            problem = fields if isinstance(fields, str) else depth_problem(fields, data)
            if isinstance(fields, str) or problem is not None:
                yield RejectedRecord(origin, str(problem), data[:SAMPLE_BYTES], len(data))
            else:
                yield Record(origin, fields, data)


def delimited_records(rows: Iterable[DelimitedRow], source: str) -> Iterator[Record | RejectedRecord]:
    """Rows as objects whose names come from the first row.

    Raises:
        StreamBroken: the first row is no header.
    """
    for number, raw, fields in dict_rows(rows):
        origin = Origin(source, number)
        if isinstance(fields, str):
            yield RejectedRecord(origin, fields, raw[:SAMPLE_BYTES], len(raw))
        else:
            yield Record(origin, fields, orjson.dumps(fields))


def plain_records(lines: Iterable[Line], source: str, field: str) -> Iterator[Record | RejectedRecord]:
    """`{field: line}` for each line, empty ones too (they are counted as documents without text)."""
    for line in lines:
        origin = Origin(source, line.number)
        if line.too_long:
            yield RejectedRecord(origin, line_too_long_reason(line), line.data, line.size)
            continue
        data = line.data.removesuffix(b"\r")
        problem = utf8_problem(data)
        if problem:
            yield RejectedRecord(origin, problem, data[:SAMPLE_BYTES], len(data))
        else:
            fields = {field: data.decode()}
            yield Record(origin, fields, orjson.dumps(fields))


@dataclass(frozen=True)
class TextSource(FileSource):
    """Lines of text.

    Attributes:
        format: Format of what is inside the compression.
        compression: What the file's name says; None where the name says nothing.
        first_line: Number of the first line, where the input is a later piece of a file; 1 where it is not.
    """

    format: FileFormat
    compression: Compression | None = None
    first_line: int = 1

    def records(self, reading: ReadContext) -> Iterator[Record | RejectedRecord]:
        chunks = self.input.chunks(reading)
        if self.first_line == 1:
            # What stands at the beginning of a file; the same bytes further down are a line's own.
            chunks = strip_byte_order_mark(decompress(chunks))
        return self.parsed(split_lines(chunks, reading.settings.max_bytes, self.first_line), reading.settings)

    def pieces(self, piece_bytes: int) -> Sequence[DocumentSource]:
        if not self.input.again:
            raise not_distributable_error(self.name)
        file = self.input
        if not isinstance(file, LocalFile) or file.size is None or file.size <= piece_bytes:
            return [self]
        # Of other formats, a line alone does not tell what it is: CSV has a header, and line feeds in quotes.
        if self.format not in (FileFormat.JSONL, FileFormat.LINES) or self._is_compressed():
            return [self]
        pieces = split_file(file.name, file.path, file.size, piece_bytes)
        return [replace(self, input=piece, first_line=piece.first_line) for piece in pieces]

    def _is_compressed(self) -> bool:
        with self.input.open(preview_context(0)) as file:
            return detect_compression(file.read(MAGIC_BYTES)) is not Compression.NONE

    def parsed(self, lines: Iterator[Line], settings: ReadSettings) -> Iterator[Record | RejectedRecord]:
        """Lines as records of the source's format.

        Raises:
            StreamBroken: the first line should be a header and is none.
        """
        match self.format:
            case FileFormat.JSONL:
                return jsonl_records(lines, self.name)
            case FileFormat.CSV:
                return delimited_records(csv_rows(lines, settings.max_bytes), self.name)
            case FileFormat.TSV:
                return delimited_records(tsv_rows(lines), self.name)
            case FileFormat.LETTERS:
                last = last_dead_letter_lines(self.path) if self.path is not None else {}
                return dead_letter_records(lines, self.name, settings.index, last)
            case FileFormat.LINES:
                return plain_records(lines, self.name, settings.plain_field)
            case _:
                raise ValueError(f"{self.format} is no format of lines")

    def check(self, max_bytes: int, wanted: RequiredColumns) -> None:
        if not self.input.again:
            return
        head = self._head(max_bytes)
        magic = next(head, b"")
        while 0 < len(magic) < MAGIC_BYTES and (more := next(head, b"")):
            magic += more
        if not magic:
            return
        check_compression(self.name, self.compression, magic)
        if self.format in (FileFormat.CSV, FileFormat.TSV):
            self._check_header(max_bytes, wanted)
            return
        try:
            first = next(self._text(max_bytes), b"")
        except CorruptStream:
            if detect_compression(magic) is Compression.NONE:
                raise
            # A truncated archive may still hold documents: the load reads them and reports the break.
            return
        if self.format is FileFormat.JSONL and first.lstrip().startswith(b"["):
            raise SourceError(
                f"{self.name} holds a JSON array, not one object a line",
                f"Turn it into JSON Lines: jq -c '.[]' {self.name}",
            )

    def _head(self, max_bytes: int) -> Iterator[bytes]:
        return self.input.chunks(preview_context(max_bytes))

    def _text(self, max_bytes: int) -> Iterator[bytes]:
        return strip_byte_order_mark(decompress(self._head(max_bytes)))

    def _check_header(self, max_bytes: int, wanted: RequiredColumns) -> None:
        lines = split_lines(self._text(max_bytes), max_bytes)
        rows = csv_rows(lines, max_bytes) if self.format is FileFormat.CSV else tsv_rows(lines)
        first = next(islice(rows, 1), None)
        if first is None:
            return
        columns = parse_header(first[2])
        if columns[0].lstrip().startswith("{"):
            raise SourceError(
                f"{self.name} looks like JSON Lines, not like {self.format.upper()}",
                "Add --format jsonl, or name the file .jsonl.",
            )
        wanted.check(self.name, columns)


def not_distributable_error(name: str) -> UsageError:
    """The error for a source that other processes cannot read."""
    return UsageError(
        f"{name} gives its bytes once, to this process, and not to the machines of a cluster",
        "Write it to a file that all machines can read, or load it without --ray.",
    )


def preview_context(max_bytes: int) -> ReadContext:
    """A pass of its own for a look at the beginning: not counted, and not waited for."""
    return ReadContext(ReadSettings(max_bytes, "", retry_seconds=0), ByteCounter(), threading.Event())


def check_compression(name: str, said: Compression | None, magic: bytes) -> None:
    """Make sure that a file is compressed as its name says.

    Args:
        said: By the name; None where it says nothing.
        magic: The file's first `MAGIC_BYTES`.

    Raises:
        SourceError: it is not.
    """
    if said is not None and detect_compression(magic) is not said:
        raise SourceError(f"{name} is called {said} but does not hold {said} data", "Rename it, or compress it again.")
