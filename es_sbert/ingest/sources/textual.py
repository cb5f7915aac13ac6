"""JSON Lines, CSV, TSV, plain lines and dead letters: sources that are read line by line."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.records import Record, Reject
from es_sbert.ingest.sources.delimited import delimited_records
from es_sbert.ingest.sources.formats import Format
from es_sbert.ingest.sources.jsonl import jsonl_records
from es_sbert.ingest.sources.letters import last_letters, letter_records
from es_sbert.ingest.sources.local import LocalFile
from es_sbert.ingest.sources.pieces import file_pieces
from es_sbert.ingest.sources.plain import plain_records
from es_sbert.ingest.sources.source import ByteCounter, FileSource, Reading, ReadSettings, Source, WantedColumns
from es_sbert.streams.compression import MAGIC_BYTES, Compression, decompressed, detect
from es_sbert.streams.delimited import csv_rows, header, tsv_rows
from es_sbert.streams.lines import Line, StreamBroken, split_lines, without_byte_order_mark


@dataclass(frozen=True)
class TextSource(FileSource):
    """Lines of text.

    Attributes:
        format: Format of what is inside the compression.
        compression: What the file's name says; None where the name says nothing.
        first_line: Number of the first line, where the input is a later piece of a file; 1 where it is not.
    """

    format: Format
    compression: Compression | None = None
    first_line: int = 1

    def records(self, reading: Reading) -> Iterator[Record | Reject]:
        chunks = self.input.chunks(reading)
        if self.first_line == 1:
            # What stands at the beginning of a file; the same bytes further down are a line's own.
            chunks = without_byte_order_mark(decompressed(chunks))
        return self.parsed(split_lines(chunks, reading.settings.max_bytes, self.first_line), reading.settings)

    def pieces(self, piece_bytes: int) -> Sequence[Source]:
        if not self.input.again:
            raise only_here(self.name)
        file = self.input
        if not isinstance(file, LocalFile) or file.size is None or file.size <= piece_bytes:
            return [self]
        # Of other formats, a line alone does not tell what it is: CSV has a header, and line feeds in quotes.
        if self.format not in (Format.JSONL, Format.LINES) or self._is_compressed():
            return [self]
        pieces = file_pieces(file.name, file.path, file.size, piece_bytes)
        return [replace(self, input=piece, first_line=piece.first_line) for piece in pieces]

    def _is_compressed(self) -> bool:
        with self.input.open(first_look(0)) as file:
            return detect(file.read(MAGIC_BYTES)) is not Compression.NONE

    def parsed(self, lines: Iterator[Line], settings: ReadSettings) -> Iterator[Record | Reject]:
        """Lines as records of the source's format.

        Raises:
            StreamBroken: the first line should be a header and is none.
        """
        match self.format:
            case Format.JSONL:
                return jsonl_records(lines, self.name)
            case Format.CSV:
                return delimited_records(csv_rows(lines, settings.max_bytes), self.name)
            case Format.TSV:
                return delimited_records(tsv_rows(lines), self.name)
            case Format.LETTERS:
                last = last_letters(self.path) if self.path is not None else {}
                return letter_records(lines, self.name, settings.index, last)
            case Format.LINES:
                return plain_records(lines, self.name, settings.plain_field)
            case _:
                raise ValueError(f"{self.format} is no format of lines")

    def check(self, max_bytes: int, wanted: WantedColumns) -> None:
        if not self.input.again:
            return
        head = self._head(max_bytes)
        magic = next(head, b"")
        while 0 < len(magic) < MAGIC_BYTES and (more := next(head, b"")):
            magic += more
        if not magic:
            return
        check_compression(self.name, self.compression, magic)
        if self.format in (Format.CSV, Format.TSV):
            self._check_header(max_bytes, wanted)
            return
        try:
            first = next(self._text(max_bytes), b"")
        except StreamBroken:
            if detect(magic) is Compression.NONE:
                raise
            # A truncated archive may still hold documents: the load reads them and reports the break.
            return
        if self.format is Format.JSONL and first.lstrip().startswith(b"["):
            raise SourceError(
                f"{self.name} holds a JSON array, not one object a line",
                f"Turn it into JSON Lines: jq -c '.[]' {self.name}",
            )

    def _head(self, max_bytes: int) -> Iterator[bytes]:
        return self.input.chunks(first_look(max_bytes))

    def _text(self, max_bytes: int) -> Iterator[bytes]:
        return without_byte_order_mark(decompressed(self._head(max_bytes)))

    def _check_header(self, max_bytes: int, wanted: WantedColumns) -> None:
        lines = split_lines(self._text(max_bytes), max_bytes)
        rows = csv_rows(lines, max_bytes) if self.format is Format.CSV else tsv_rows(lines)
        first = next(islice(rows, 1), None)
        if first is None:
            return
        columns = header(first[2])
        if columns[0].lstrip().startswith("{"):
            raise SourceError(
                f"{self.name} looks like JSON Lines, not like {self.format.upper()}",
                "Add --format jsonl, or name the file .jsonl.",
            )
        wanted.check(self.name, columns)


def only_here(name: str) -> UsageError:
    """The error for a source that other processes cannot read."""
    return UsageError(
        f"{name} gives its bytes once, to this process, and not to the machines of a cluster",
        "Write it to a file that all machines can read, or load it without --ray.",
    )


def first_look(max_bytes: int) -> Reading:
    """A pass of its own for a look at the beginning: not counted, and not waited for."""
    return Reading(ReadSettings(max_bytes, "", retry_seconds=0), ByteCounter(), threading.Event())


def check_compression(name: str, said: Compression | None, magic: bytes) -> None:
    """Make sure that a file is compressed as its name says.

    Args:
        said: By the name; None where it says nothing.
        magic: The file's first `MAGIC_BYTES`.

    Raises:
        SourceError: it is not.
    """
    if said is not None and detect(magic) is not said:
        raise SourceError(f"{name} is called {said} but does not hold {said} data", "Rename it, or compress it again.")
