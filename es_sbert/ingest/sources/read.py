"""All sources of a load as one stream of records."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from es_sbert.ingest.records import Origin, Record, Reject
from es_sbert.ingest.sources.delimited import delimited_records
from es_sbert.ingest.sources.find import Format, Source
from es_sbert.ingest.sources.jsonl import jsonl_records
from es_sbert.ingest.sources.letters import last_letters, letter_records
from es_sbert.ingest.sources.plain import plain_records
from es_sbert.ingest.sources.raw import ByteCounter, ReadingStopped, raw_chunks
from es_sbert.streams.compression import decompressed
from es_sbert.streams.delimited import csv_rows, tsv_rows
from es_sbert.streams.lines import Line, StreamBroken, split_lines, without_byte_order_mark


@dataclass(frozen=True)
class ReadSettings:
    """How sources are read.

    Attributes:
        max_bytes: Longest record in bytes; longer ones become dead letters without being held in memory.
        plain_field: Field that takes the line where a source is plain text.
        index: The index that is loaded.
    """

    max_bytes: int
    plain_field: str
    index: str = ""


def read_records(
    sources: Sequence[Source], settings: ReadSettings, counter: ByteCounter, stop: threading.Event
) -> Iterator[Record | Reject]:
    """Records of all sources, one after another, with bounded memory.

    A source that breaks off gives its records up to the break and then one reject that says so. Setting `stop`
    ends the stream at the next chunk.
    """
    try:
        for source in sources:
            yield from _read_source(source, settings, counter, stop)
    except ReadingStopped:
        return


def _read_source(
    source: Source, settings: ReadSettings, counter: ByteCounter, stop: threading.Event
) -> Iterator[Record | Reject]:
    last = 0
    try:
        chunks = without_byte_order_mark(decompressed(raw_chunks(source, counter, stop)))
        for record in parse_lines(split_lines(chunks, settings.max_bytes), source, settings):
            last = record.origin.line
            yield record
    except StreamBroken as broken:
        where = f"after the record of line {last}" if last else "before its first record"
        yield Reject(Origin(source.name), f"the source breaks off {where}: {broken}")
    except OSError as error:
        # It could be opened when the load began: removed or replaced since.
        yield Reject(Origin(source.name), f"the file cannot be opened: {error.strerror}")


def parse_lines(lines: Iterator[Line], source: Source, settings: ReadSettings) -> Iterator[Record | Reject]:
    """Lines as records of the source's format."""
    match source.format:
        case Format.JSONL:
            return jsonl_records(lines, source.name)
        case Format.CSV:
            return delimited_records(csv_rows(lines, settings.max_bytes), source.name)
        case Format.TSV:
            return delimited_records(tsv_rows(lines), source.name)
        case Format.LETTERS:
            last = last_letters(source.path) if source.path is not None else {}
            return letter_records(lines, source.name, settings.index, last)
        case Format.LINES:
            return plain_records(lines, source.name, settings.plain_field)
