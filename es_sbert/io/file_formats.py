"""File formats and compression: told by a file's name or its first bytes, and streaming decompression.

Gzip and zstd are unpacked with bounded memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Protocol

import zstandard

from es_sbert.io.text_formats import CorruptStream


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
    compression = COMPRESSION_SUFFIXES.get(path.suffix.lower())
    inner = PurePosixPath(path.stem) if compression else path
    return _FORMATS_BY_SUFFIX.get(inner.suffix.lower()), compression


_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Skippable frames, of sixteen kinds: pzstd writes one before every frame (RFC 8878, 3.1.2).
_ZSTD_SKIPPABLE = tuple(bytes([kind]) + b"\x2a\x4d\x18" for kind in range(0x50, 0x60))
MAGIC_BYTES = 4

_GZIP_MAX_OUTPUT = 1 << 20
# zstd's decoder takes no bound on its output. A kilobyte unpacks to at most 32 MiB.
_ZSTD_MAX_INPUT = 1 << 10


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


COMPRESSION_SUFFIXES = {".gz": Compression.GZIP, ".zst": Compression.ZSTD, ".zstd": Compression.ZSTD}


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
    source = iter(chunks)
    if compression is None:
        head = b""
        for chunk in source:
            head += chunk
            if len(head) >= MAGIC_BYTES:
                break
        compression = detect_compression(head)
        source = _prepend(head, source)
    if compression is Compression.NONE:
        yield from source
    else:
        yield from _decompress(source, compression)


def _prepend(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest


class _Decoder(Protocol):
    """One gzip member or zstd frame."""

    @property
    def eof(self) -> bool: ...

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        """Unpack some of the data; returns (unpacked, data left over)."""


class _GzipMember:
    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        out = self._zlib.decompress(data, _GZIP_MAX_OUTPUT)
        return out, self._zlib.unused_data if self._zlib.eof else self._zlib.unconsumed_tail


class _ZstdFrame:
    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor().decompressobj()

    @property
    def eof(self) -> bool:
        return bool(self._zstd.eof)

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        out = self._zstd.decompress(data[:_ZSTD_MAX_INPUT])
        rest = data[_ZSTD_MAX_INPUT:]
        return out, self._zstd.unused_data + rest if self._zstd.eof else rest


def _decompress(source: Iterator[bytes], compression: Compression) -> Iterator[bytes]:
    # Both formats allow several members (frames) one after another, as `cat a.gz b.gz` makes them.
    new = _GzipMember if compression is Compression.GZIP else _ZstdFrame
    decoder: _Decoder | None = None
    try:
        for chunk in source:
            data = chunk
            while data:
                if decoder is None:
                    # Tapes and some tools pad gzip files with zeros.
                    data = data.lstrip(b"\0") if compression is Compression.GZIP else data
                    if not data:
                        break
                    decoder = new()
                out, data = decoder.step(data)
                if out:
                    yield out
                if decoder.eof:
                    decoder = None
        while decoder is not None:
            # All input is consumed, but the decoder may still hold output because of the bound.
            out, _ = decoder.step(b"")
            if out:
                yield out
            if decoder.eof:
                decoder = None
            elif not out:
                raise CorruptStream(f"the {compression} data ends early: the file was cut off")
    except (zlib.error, zstandard.ZstdError) as error:
        raise CorruptStream(f"the {compression} data is damaged ({error})") from error
