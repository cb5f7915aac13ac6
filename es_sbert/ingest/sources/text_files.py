"""Line-oriented sources: JSON Lines, CSV, TSV and plain text, compressed or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import orjson

from es_sbert.errors import SourceError
from es_sbert.ingest.records import Origin, Record, RejectedRecord
from es_sbert.ingest.sources.document_source import (
    DocumentSource,
    FileSource,
    ReadContext,
    ReadSettings,
    RequiredColumns,
    preview_context,
)
from es_sbert.io.file_formats import Compression, FileFormat, decompress, detect_compression
from es_sbert.io.text_formats import (
    SAMPLE_BYTES,
    CorruptStream,
    DelimitedRow,
    Line,
    ParsedRow,
    csv_rows,
    dict_rows,
    jsonl_rows,
    parse_header,
    plain_rows,
    split_lines,
    strip_byte_order_mark,
    tsv_rows,
)


@dataclass(frozen=True)
class TextSource(FileSource):
    """A text file with one document per line or row.

    Attributes:
        format: Format inside the compression.
        compression: By the file's name; None if the name does not tell.
    """

    format: FileFormat
    compression: Compression | None = None

    def check(self, max_bytes: int, required: RequiredColumns) -> None:
        if not self.input.is_rereadable:
            return
        magic = self._check_compression(self.compression, max_bytes)
        if not magic:
            return
        text = strip_byte_order_mark(decompress(self.input.chunks(preview_context(max_bytes))))
        if self.format in (FileFormat.CSV, FileFormat.TSV):
            self._check_header(split_lines(text, max_bytes), max_bytes, required)
            return
        try:
            first = next(text, b"")
        except CorruptStream:
            if detect_compression(magic) is Compression.NONE:
                raise
            # A truncated archive may still hold documents: the load reads them and reports the rest.
            return
        if self._is_jsonl and first.lstrip().startswith(b"["):
            raise SourceError(
                f"{self.name} holds a JSON array, not one object per line",
                f"Convert it to JSON Lines: jq -c '.[]' {self.name}",
            )

    def _check_header(self, lines: Iterator[Line], max_bytes: int, required: RequiredColumns) -> None:
        first = next(islice(self._rows(lines, max_bytes), 1), None)
        if first is None:
            return
        columns = parse_header(first[2])
        if columns[0].lstrip().startswith("{"):
            raise SourceError(
                f"{self.name} looks like JSON Lines, not like {self.format.upper()}",
                "Add --format jsonl, or name the file .jsonl.",
            )
        required.check(self.name, columns)

    def _partitions(self, partition_bytes: int) -> Sequence[DocumentSource]:
        # In other formats a line depends on those before it: CSV has a header, and line feeds in quotes.
        if self.format not in (FileFormat.JSONL, FileFormat.LINES):
            return [self]
        return [replace(self, input=part) for part in self.input.split_at_lines(partition_bytes)]

    def records(self, context: ReadContext) -> Iterator[Record | RejectedRecord]:
        chunks = self.input.chunks(context)
        first_line = self.input.first_line
        if first_line == 1:
            # Only the beginning of a file has a byte order mark or tells the compression.
            chunks = strip_byte_order_mark(decompress(chunks))
        return self.parse_lines(split_lines(chunks, context.settings.max_bytes, first_line), context.settings)

    def parse_lines(self, lines: Iterable[Line], settings: ReadSettings) -> Iterator[Record | RejectedRecord]:
        """Records of uncompressed lines.

        Raises:
            CorruptStream: the first line should be a header but is not.
        """
        for row in self._parsed_rows(lines, settings):
            origin = Origin(self.name, row.number)
            if isinstance(row.fields, str):
                yield RejectedRecord(origin, row.fields, row.raw[:SAMPLE_BYTES], row.size or len(row.raw))
            else:
                yield Record(origin, row.fields, row.raw if self._is_jsonl else orjson.dumps(row.fields))

    def _parsed_rows(self, lines: Iterable[Line], settings: ReadSettings) -> Iterator[ParsedRow]:
        if self._is_jsonl:
            return jsonl_rows(lines)
        if self.format is FileFormat.LINES:
            return plain_rows(lines, settings.plain_text_field)
        return dict_rows(self._rows(lines, settings.max_bytes))

    @property
    def _is_jsonl(self) -> bool:
        return self.format is FileFormat.JSONL

    def _rows(self, lines: Iterable[Line], max_bytes: int) -> Iterator[DelimitedRow]:
        return csv_rows(lines, max_bytes) if self.format is FileFormat.CSV else tsv_rows(lines)
