"""File formats, recognized by a file's name; decompression and Parquet, with bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import zstandard

from es_sbert.errors import error_summary, require_extra
from es_sbert.io.text_formats import (
    UTF8,
    CorruptStream,
    WrongFormat,
    byte_order_mark,
    check_delimiter,
    check_encoding,
    checked_utf8,
    encoding_remedy,
    read_head,
    to_utf8,
)
from es_sbert.messages import setting


class FileFormat(StrEnum):
    """Format of a file inside its compression."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    LINES = "lines"
    PARQUET = "parquet"


@dataclass(frozen=True)
class FileOptions:
    """Options for reading files.

    Attributes:
        format: Format of the files after decompression; auto: by each file's name.
        delimiter: Delimiter of CSV files, or tab. [default: comma, semicolon, tab or |, by each file's first rows]
        encoding: Encoding of text files, such as windows-1252. [default: UTF-8, or that of the byte order mark]

    Raises:
        UsageError: the delimiter is not a single character, or the encoding does not exist.
    """

    format: FileFormat | None = None
    delimiter: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", check_delimiter(self.delimiter))
        if self.encoding is not None:
            object.__setattr__(self, "encoding", check_encoding(self.encoding))


def format_hint() -> str:
    """Advice for a file whose format is not known."""
    named = setting("format", "jsonl")
    return f"Add {named}, csv, tsv, lines or parquet. Excel, Arrow, PDF and other files: docs/sources.md."


_SUFFIXES = {
    FileFormat.JSONL: (".jsonl", ".ndjson", ".json"),
    FileFormat.CSV: (".csv",),
    FileFormat.TSV: (".tsv", ".tab"),
    FileFormat.LINES: (".txt",),
    FileFormat.PARQUET: (".parquet", ".pq"),
}
_FORMATS_BY_SUFFIX = {suffix: form for form, suffixes in _SUFFIXES.items() for suffix in suffixes}
_COMPRESSION_SUFFIXES = (".gz", ".zst", ".zstd")


def guess_format(name: str) -> FileFormat | None:
    """Guess the format inside the compression from a file's name; None if the name does not indicate it."""
    path = PurePosixPath(name.lower())
    inner = PurePosixPath(path.stem) if path.suffix in _COMPRESSION_SUFFIXES else path
    return _FORMATS_BY_SUFFIX.get(inner.suffix)


_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Sixteen kinds of skippable frames: pzstd writes one before every frame (RFC 8878, 3.1.2).
_ZSTD_SKIPPABLE = tuple(bytes([kind]) + b"\x2a\x4d\x18" for kind in range(0x50, 0x60))
MAGIC_BYTES = 4

# Bytes that are unpacked at a time, to at most 16 MiB for gzip and 32 MiB for zstd, and bytes that are yielded at a
# time: short lines take twenty times their size.
_GZIP_MAX_INPUT = 1 << 14
_ZSTD_MAX_INPUT = 1 << 10
_MAX_OUTPUT = 1 << 20


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


def detect_compression(head: bytes) -> Compression:
    """Recognize the compression from a file's first bytes."""
    if head.startswith(_GZIP_MAGIC):
        return Compression.GZIP
    return Compression.ZSTD if head.startswith((_ZSTD_MAGIC, *_ZSTD_SKIPPABLE)) else Compression.NONE


def decompress(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress a stream, as far as possible; the first bytes tell its compression.

    Raises:
        CorruptStream: the data is damaged or truncated; everything before the damage has been yielded.
    """
    head, rest = read_head(chunks, MAGIC_BYTES)
    compression = detect_compression(head)
    source = chain([head] if head else [], rest)
    if compression is Compression.NONE:
        yield from source
        return
    # Both formats allow several members (frames) in a row, such as from `cat a.gz b.gz`.
    is_gzip = compression is Compression.GZIP
    max_input = _GZIP_MAX_INPUT if is_gzip else _ZSTD_MAX_INPUT
    decoder: Any = None
    try:
        for chunk in source:
            data = chunk
            while data:
                if decoder is None:
                    # Tape archives and some tools pad gzip files with zeros.
                    data = data.lstrip(b"\0") if is_gzip else data
                    if not data:
                        break
                    decoder = zlib.decompressobj(wbits=31) if is_gzip else zstandard.ZstdDecompressor().decompressobj()
                out, data = decoder.decompress(data[:max_input]), data[max_input:]
                for start in range(0, len(out), _MAX_OUTPUT):
                    yield out[start : start + _MAX_OUTPUT]
                if decoder.eof:
                    data = decoder.unused_data + data
                    decoder = None
        if decoder is not None:
            raise CorruptStream(f"the {compression} data ends early: the file is truncated")
    except (zlib.error, zstandard.ZstdError) as error:
        raise CorruptStream(f"the {compression} data is damaged ({error})") from error


# Bytes from the beginning of a text that are examined.
_HEAD_BYTES = 1 << 13


def text_chunks(chunks: Iterable[bytes], encoding: str | None = None) -> Iterator[bytes]:
    """Yield the text of a file in UTF-8, decompressed, without a byte order mark.

    Args:
        chunks: The bytes of the file.
        encoding: Its encoding; None for UTF-8. A byte order mark takes precedence.

    Raises:
        WrongFormat: the file is not a text in this encoding.
        CorruptStream: the compression is damaged, or the file is truncated.
    """
    # No more bytes are awaited, because a pipe may deliver a single short line.
    head, rest = read_head(decompress(chunks), MAGIC_BYTES)
    mark, marked = byte_order_mark(head)
    encoding = marked or encoding or UTF8
    text = chain([head.removeprefix(mark)], rest)
    if encoding != UTF8:
        yield from to_utf8(text, encoding)
        return
    # In UTF-16 without a byte order mark, which is valid UTF-8, every other byte of Western text is zero.
    if 3 * head[:_HEAD_BYTES].count(0) > len(head[:_HEAD_BYTES]):
        raise WrongFormat("a third of its first bytes are zeros: it is UTF-16 or not a text", encoding_remedy())
    yield from checked_utf8(text)


# Bytes of a column that are read at a time, and bytes and number of rows that are decoded at a time. The size of a row
# group is stated before decoding: with a dictionary or run lengths, a few bytes can be the same long text or list in
# every row. Therefore batches are small; larger ones are hardly faster.
_READ_BYTES = 1 << 20
_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 1 << 6


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file, read its footer, and yield a `pyarrow.parquet.ParquetFile`.

    Raises:
        OSError: the file does not exist, or cannot be opened.
        CorruptStream: the file is not a Parquet file, or its data is damaged.
        UsageError: pyarrow is not installed.
    """
    require_extra("parquet", "pyarrow")
    import pyarrow
    from pyarrow.parquet import ParquetFile

    with open(path, "rb"):  # to get the system's error rather than Arrow's
        pass
    try:
        # Read page by page: `pre_buffer` would fetch whole row groups.
        with ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as opened:
            yield opened
    # Names may not be UTF-8, and a length may be more than the memory.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise CorruptStream(f"the Parquet data is damaged ({error_summary(error)})") from error


def parquet_batches(
    file: Any, columns: Sequence[str] | None = None, groups: Iterable[int] | None = None
) -> Iterator[Any]:
    """Yield record batches in the order of the file, with memory for one batch.

    Args:
        file: The result of `open_parquet`.
        columns: Names of the columns to read; None reads all.
        groups: Row groups to read; None reads all.
    """
    for group in range(file.num_row_groups) if groups is None else groups:
        meta = file.metadata.row_group(group)
        a_row = max(1, meta.total_byte_size // max(1, meta.num_rows))
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // a_row))
        # Read group by group, so that data fetched ahead for a group is released with it.
        yield from file.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False)
