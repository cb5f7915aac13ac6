"""File formats and compression: told by a file's name or its first bytes, and streaming decompression.

Gzip and zstd are unpacked with bounded memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

import zstandard

from es_sbert.io.text_formats import CorruptStream, read_head


class FileFormat(StrEnum):
    """Format of a file inside its compression."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    LINES = "lines"
    PARQUET = "parquet"
    ARROW = "arrow"


FORMAT_HINT = "Add --format jsonl, csv, tsv, lines, parquet or arrow."

_FORMATS_BY_SUFFIX = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".json": FileFormat.JSONL,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.TSV,
    ".tab": FileFormat.TSV,
    ".txt": FileFormat.LINES,
    ".parquet": FileFormat.PARQUET,
    ".pq": FileFormat.PARQUET,
    ".arrow": FileFormat.ARROW,
    ".arrows": FileFormat.ARROW,
    ".feather": FileFormat.ARROW,
    ".ipc": FileFormat.ARROW,
}


def guess_format(name: str) -> tuple[FileFormat | None, Compression | None]:
    """Format and compression by a file's name; None if the name does not tell."""
    path = PurePosixPath(name)
    compression = _COMPRESSION_SUFFIXES.get(path.suffix.lower())
    inner = PurePosixPath(path.stem) if compression else path
    return _FORMATS_BY_SUFFIX.get(inner.suffix.lower()), compression


_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Skippable frames, of sixteen kinds: pzstd writes one before every frame (RFC 8878, 3.1.2).
_ZSTD_SKIPPABLE = tuple(bytes([kind]) + b"\x2a\x4d\x18" for kind in range(0x50, 0x60))
MAGIC_BYTES = 4

# So many bytes are unpacked at a time, to at most 16 MiB of gzip and 32 MiB of zstd.
_GZIP_MAX_INPUT = 1 << 14
_ZSTD_MAX_INPUT = 1 << 10


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


_COMPRESSION_SUFFIXES = {".gz": Compression.GZIP, ".zst": Compression.ZSTD, ".zstd": Compression.ZSTD}


def detect_compression(head: bytes) -> Compression:
    """The compression that a file's first bytes tell."""
    if head.startswith(_GZIP_MAGIC):
        return Compression.GZIP
    return Compression.ZSTD if head.startswith((_ZSTD_MAGIC, *_ZSTD_SKIPPABLE)) else Compression.NONE


def decompress(chunks: Iterable[bytes], compression: Compression | None = None) -> Iterator[bytes]:
    """Decompress a stream, as far as possible.

    Args:
        chunks: Raw bytes.
        compression: None detects it from the first bytes.

    Raises:
        CorruptStream: the data is damaged or truncated; the data before the damage has been yielded.
    """
    source: Iterable[bytes] = chunks
    if compression is None:
        head, rest = read_head(chunks, MAGIC_BYTES)
        compression = detect_compression(head)
        source = chain([head] if head else [], rest)
    if compression is Compression.NONE:
        yield from source
    else:
        yield from _decompress(source, compression)


def _decompress(source: Iterable[bytes], compression: Compression) -> Iterator[bytes]:
    # Both formats allow several members (frames) one after another, as `cat a.gz b.gz` makes them.
    is_gzip = compression is Compression.GZIP
    max_input = _GZIP_MAX_INPUT if is_gzip else _ZSTD_MAX_INPUT
    decoder: Any = None
    try:
        for chunk in source:
            data = chunk
            while data:
                if decoder is None:
                    # Tapes and some tools pad gzip files with zeros.
                    data = data.lstrip(b"\0") if is_gzip else data
                    if not data:
                        break
                    decoder = zlib.decompressobj(wbits=31) if is_gzip else zstandard.ZstdDecompressor().decompressobj()
                out, data = decoder.decompress(data[:max_input]), data[max_input:]
                if out:
                    yield out
                if decoder.eof:
                    data = decoder.unused_data + data
                    decoder = None
        if decoder is not None:
            raise CorruptStream(f"the {compression} data ends early: the file was cut off")
    except (zlib.error, zstandard.ZstdError) as error:
        raise CorruptStream(f"the {compression} data is damaged ({error})") from error
