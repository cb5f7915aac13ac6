"""Local files, byte ranges of local files, pipes and standard input as interruptible byte streams."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from es_sbert.ingest.sources.document_source import ReadCancelled, ReadContext
from es_sbert.io.lines import CorruptStream

STDIN = "-"
_CHUNK = 1 << 16
_STOP_POLL_SECONDS = 0.2
_O_BINARY = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class LocalFile:
    """A file, pipe or device of this machine.

    Attributes:
        name: The path as given, in valid Unicode.
        size: Bytes of a regular file; None for pipes and devices.
    """

    name: str
    path: Path
    size: int | None

    @property
    def again(self) -> bool:
        return self.size is not None

    def chunks(self, reading: ReadContext) -> Iterator[bytes]:
        descriptor = os.open(self.path, os.O_RDONLY | _O_BINARY)
        try:
            yield from _read_descriptor(descriptor, reading, may_block=self.size is None)
        finally:
            os.close(descriptor)

    def open(self, reading: ReadContext) -> BinaryIO:
        return open(self.path, "rb")


@dataclass(frozen=True)
class StandardInput:
    """What is piped into this process."""

    name: str = STDIN
    path: None = None
    size: None = None
    again: bool = False

    def chunks(self, reading: ReadContext) -> Iterator[bytes]:
        return _read_descriptor(sys.stdin.fileno(), reading, may_block=True)

    def open(self, reading: ReadContext) -> BinaryIO:
        raise CorruptStream("standard input can only be read from its beginning to its end")


def _read_descriptor(descriptor: int, reading: ReadContext, *, may_block: bool) -> Iterator[bytes]:
    # A pipe may stay silent for hours. Windows cannot wait for one with a time-out; there, stopping takes
    # until the next bytes arrive.
    waits = may_block and os.name == "posix"
    while True:
        if reading.stop.is_set():
            raise ReadCancelled
        if waits and not select.select([descriptor], [], [], _STOP_POLL_SECONDS)[0]:
            continue
        try:
            chunk = os.read(descriptor, _CHUNK)
        except OSError as error:
            raise CorruptStream(f"reading failed: {error.strerror}") from error
        if not chunk:
            return
        reading.counter.bytes += len(chunk)
        yield chunk


_RANGE_CHUNK = 1 << 16
_SCAN_CHUNK = 1 << 20


@dataclass(frozen=True)
class FileRange:
    """A range of bytes of a file of this machine.

    Attributes:
        name: The whole file's.
        path: The whole file's.
        start: First byte.
        end: The byte behind the last.
        first_line: Number of its first line in the file.
    """

    name: str
    path: Path
    start: int
    end: int
    first_line: int
    again: bool = True

    @property
    def size(self) -> int:
        return self.end - self.start

    def chunks(self, reading: ReadContext) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            file.seek(self.start)
            rest = self.size
            while rest:
                if reading.stop.is_set():
                    raise ReadCancelled
                chunk = file.read(min(_RANGE_CHUNK, rest))
                if not chunk:
                    raise CorruptStream(f"the file has become shorter than {self.end:,} bytes")
                rest -= len(chunk)
                reading.counter.bytes += len(chunk)
                yield chunk

    def open(self, reading: ReadContext) -> BinaryIO:
        raise CorruptStream("a piece of a file can only be read from its beginning to its end")


def split_file(name: str, path: Path, size: int, piece_bytes: int) -> list[FileRange]:
    """A file in pieces of about so many bytes, each of whole lines; reads the file once to count them.

    Args:
        name: What the file is called in messages.
        size: Bytes of the file.
        piece_bytes: Bytes of a piece; a longer line is a piece of its own.

    Raises:
        OSError: the file cannot be read.
    """
    pieces: list[FileRange] = []
    start, first_line, line, offset = 0, 1, 1, 0
    with open(path, "rb") as file:
        while chunk := file.read(_SCAN_CHUNK):
            place = 0
            while (cut := _next_line_start(chunk, max(place, start + piece_bytes - offset - 1))) is not None:
                line += chunk.count(b"\n", place, cut)
                pieces.append(FileRange(name, path, start, offset + cut, first_line))
                start, first_line, place = offset + cut, line, cut
            line += chunk.count(b"\n", place)
            offset += len(chunk)
    if offset > start or not pieces:
        pieces.append(FileRange(name, path, start, max(offset, start), first_line))
    return pieces


def _next_line_start(chunk: bytes, place: int) -> int | None:
    """Behind the first line feed at a place or after it; None where there is none."""
    found = chunk.find(b"\n", place) if place < len(chunk) else -1
    return None if found < 0 else found + 1
