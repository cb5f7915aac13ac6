"""Sources that read files: JSON Lines, CSV, TSV and plain text, which may be compressed, and Parquet."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.sources.document_source import (
    DocumentSource,
    FileSource,
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
    SIGNATURE_BYTES,
    Compression,
    FileFormat,
    decompress,
    detect_compression,
    open_parquet,
    parquet_batches,
    recognize_file,
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
    csv_rows,
    delimiter_hint,
    dict_rows,
    find_delimiter,
    is_utf8,
    jsonl_rows,
    needs_whole_text,
    parse_header,
    plain_rows,
    read_head,
    split_lines,
    to_utf8,
    tsv_rows,
)


@dataclass(frozen=True)
class TextSource(FileSource):
    """A text file with one document per line or row.

    Attributes:
        format: Format inside the compression.
        compression: The compression that the file's name indicates; None if it indicates none.
        delimiter: Delimiter of CSV; None detects it.
        encoding: None for UTF-8, or UTF-16 with a byte order mark.
    """

    format: FileFormat
    compression: Compression | None = None
    delimiter: str | None = None
    encoding: str | None = None

    def check(self, max_bytes: int, required: RequiredColumns) -> None:
        if not self.input.is_rereadable:
            return
        magic = self._check_compression()
        if not magic:
            return
        has_header = self.format in (FileFormat.CSV, FileFormat.TSV)
        text = text_chunks(self.input.chunks(preview_context()), self.format, self.encoding)
        try:
            if has_header:
                self._check_header(split_lines(text, max_bytes), max_bytes, required)
            elif next(text, b"").lstrip().startswith(b"[") and self.format is FileFormat.JSONL:
                remedy = f"Convert it to JSON Lines: jq -c '.[]' {self.name}"
                raise SourceError(f"{self.name} holds a JSON array, not one object per line", remedy)
        except WrongFormat:
            raise
        except CorruptStream:
            # A truncated archive may still hold documents: the load reads them and reports the rest.
            if has_header or detect_compression(magic) is Compression.NONE:
                raise
        self._check_encoding()

    def _check_compression(self) -> bytes:
        """Check the compression against the one that the name declares; return the first bytes, none of an empty file.

        Raises:
            SourceError: the file is not compressed as its name says.
        """
        magic, _ = read_head(self.input.chunks(preview_context()), MAGIC_BYTES)
        if magic and self.compression is not None and (found := detect_compression(magic)) is not self.compression:
            problem = f"{self.name} is named as {self.compression} but does not hold {self.compression} data"
            signature = recognize_file(magic[:SIGNATURE_BYTES]) if found is Compression.NONE else None
            if signature is not None:
                raise SourceError(f"{problem}: it is {signature.kind}", signature.remedy)
            raise SourceError(problem, "Rename it, or compress it again.")
        return magic

    def _check_header(self, lines: Iterator[Line], max_bytes: int, required: RequiredColumns) -> None:
        first = next(self._rows(lines, max_bytes), None)
        if first is None:
            return
        columns = parse_header(first[2])
        if columns[0].lstrip().startswith("{"):
            remedy = 'Add `format="jsonl"`, or name the file .jsonl.'
            raise SourceError(f"{self.name} looks like JSON Lines, not like {self.format.upper()}", remedy)
        required.column_types.check_columns(self.name, columns)
        hint = delimiter_hint(columns, is_tsv=self.format is FileFormat.TSV)
        required.check(self.name, columns, nested=False, hint=hint)

    def _check_encoding(self) -> None:
        """Read a local file to its end, to check its encoding before the load. Others would have to be fetched twice.

        Raises:
            WrongFormat: the file is not UTF-8, and no other encoding is given.
            SourceError: the file is UTF-8, and another encoding is given.
        """
        if self.path is None or self.encoding == UTF8:
            return
        chunks = self.input.chunks(preview_context())
        try:
            if self.encoding is None:
                for _ in text_chunks(chunks, self.format):
                    pass
            elif is_utf8(decompress(chunks)):
                remedy = "Leave out `encoding`, and load files of different encodings by separate commands."
                raise SourceError(f"{self.name} is UTF-8, not {self.encoding}", remedy)
        except WrongFormat:
            raise
        except CorruptStream:  # the load finds the damage again
            pass

    def partitions(self, partition_bytes: int) -> Sequence[DocumentSource]:
        whole = super().partitions(partition_bytes)
        # In other formats a line depends on those before it: CSV has a header, and line feeds in quotes.
        if self.format not in (FileFormat.JSONL, FileFormat.LINES):
            return whole
        head, _ = read_head(self.input.chunks(preview_context()), MAGIC_BYTES)
        # Not split either if only the first part would have the byte order mark.
        if needs_whole_text(head, self.encoding):
            return whole
        return [replace(self, input=part) for part in self.input.split_at_lines(partition_bytes)]

    def records(self, context: ReadContext) -> Iterator[Record | RejectedRecord]:
        chunks = self.input.chunks(context)
        first_line = self.input.first_line
        if first_line == 1:
            # Only the beginning of a file has a byte order mark or shows the compression.
            chunks = text_chunks(chunks, self.format, self.encoding)
        elif self.encoding is not None:
            chunks = to_utf8(chunks, self.encoding)
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
                yield RejectedRecord(origin, self._reason(row.fields), row.raw[:SAMPLE_BYTES], row.size or len(row.raw))
            else:
                yield Record(origin, row.fields, row.raw if is_jsonl else orjson.dumps(row.fields))

    def _reason(self, reason: str) -> str:
        """Express a reason in terms of the file's encoding, whose invalid bytes were decoded to invalid UTF-8."""
        return reason if self.encoding is None else reason.replace("invalid UTF-8", f"invalid {self.encoding}", 1)

    def _parsed_rows(self, lines: Iterable[Line], settings: ReadSettings) -> Iterator[ParsedRow]:
        if self.format is FileFormat.JSONL:
            return jsonl_rows(lines)
        if self.format is FileFormat.LINES:
            return plain_rows(lines, settings.plain_text_field)
        return settings.column_types.convert(dict_rows(self._rows(lines, settings.max_bytes)), self.name)

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
        compression: Compression of the whole file, by its name. There should be none, since Parquet compresses its
            columns.
        row_groups: First row group to read, and the one after the last; None reads all.
    """

    compression: Compression | None = None
    row_groups: tuple[int, int] | None = None

    def check(self, max_bytes: int, required: RequiredColumns) -> None:
        if not self.input.is_rereadable:
            raise UsageError(
                f"{self.name} cannot be read as Parquet: the index of a Parquet file is at its end", "Name a file."
            )
        if self.compression is not None:
            raise SourceError(f"{self.name} is a Parquet file inside {self.compression}", "Unpack it first.")
        if self.size == 0:
            raise CorruptStream("the file is empty, so it is not a Parquet file")
        with self._opened(preview_context()) as file:
            required.check(self.name, file.schema_arrow.names)

    def partitions(self, partition_bytes: int) -> Sequence[DocumentSource]:
        whole = super().partitions(partition_bytes)
        partitions: list[DocumentSource] = []
        with self._opened(preview_context()) as file:
            first, held = 0, 0
            for group in range(file.num_row_groups):
                held += file.metadata.row_group(group).total_byte_size
                if held >= partition_bytes or group == file.num_row_groups - 1:
                    partitions.append(replace(self, row_groups=(first, group + 1)))
                    first, held = group + 1, 0
        return partitions or whole

    def records(self, context: ReadContext) -> Iterator[Record | RejectedRecord]:
        with self._opened(context) as file:
            groups = range(*(self.row_groups or (0, file.num_row_groups)))
            row = sum(file.metadata.row_group(group).num_rows for group in range(groups.start))
            rows = max(1, file.metadata.num_rows)
            counted = (self.size or 0) * row // rows
            for batch in parquet_batches(file, groups=groups):
                yield from _batch_records(batch, row, self.name, context)
                row += batch.num_rows
                # Estimated by rows: the bytes that were read for them are not known.
                part = (self.size or 0) * row // rows - counted
                counted += part
                context.counter.bytes += part

    @contextmanager
    def _opened(self, context: ReadContext) -> Iterator[Any]:
        if self.path is not None:
            with open_parquet(self.path) as file:
                yield file
            return
        with self.input.open(context) as opened, open_parquet(opened) as file:
            yield file


def _batch_records(batch: Any, before: int, source: str, context: ReadContext) -> Iterator[Record | RejectedRecord]:
    """Convert the rows of a batch to records, numbered from `before` + 1 on."""
    names = batch.schema.names
    if not names:
        return
    columns = [column_to_json(column) for column in batch.columns]
    for number, values in enumerate(zip(*columns, strict=True), before + 1):
        if context.stop.is_set():
            raise ReadCancelled
        yield row_record(dict(zip(names, values, strict=True)), Origin(source, number), context.settings, PARQUET_ROWS)
