"""A long file of lines in pieces that begin and end with a line, so that several processes read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from es_sbert.ingest.sources.source import Reading, ReadingStopped
from es_sbert.streams.lines import StreamBroken

_CHUNK = 1 << 16
_LOOK = 1 << 20


@dataclass(frozen=True)
class FilePiece:
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

    def chunks(self, reading: Reading) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            file.seek(self.start)
            rest = self.size
            while rest:
                if reading.stop.is_set():
                    raise ReadingStopped
                chunk = file.read(min(_CHUNK, rest))
                if not chunk:
                    raise StreamBroken(f"the file has become shorter than {self.end:,} bytes")
                rest -= len(chunk)
                reading.counter.bytes += len(chunk)
                yield chunk

    def open(self, reading: Reading) -> BinaryIO:
        raise StreamBroken("a piece of a file can only be read from its beginning to its end")


def file_pieces(name: str, path: Path, size: int, piece_bytes: int) -> list[FilePiece]:
    """A file in pieces of about so many bytes, each of whole lines; reads the file once to count them.

    Args:
        name: What the file is called in messages.
        size: Bytes of the file.
        piece_bytes: Bytes of a piece; a longer line is a piece of its own.

    Raises:
        OSError: the file cannot be read.
    """
    pieces: list[FilePiece] = []
    start, first_line, line, offset = 0, 1, 1, 0
    with open(path, "rb") as file:
        while chunk := file.read(_LOOK):
            place = 0
            while (cut := _line_end(chunk, max(place, start + piece_bytes - offset - 1))) is not None:
                line += chunk.count(b"\n", place, cut)
                pieces.append(FilePiece(name, path, start, offset + cut, first_line))
                start, first_line, place = offset + cut, line, cut
            line += chunk.count(b"\n", place)
            offset += len(chunk)
    if offset > start or not pieces:
        pieces.append(FilePiece(name, path, start, max(offset, start), first_line))
    return pieces


def _line_end(chunk: bytes, place: int) -> int | None:
    """Behind the first line feed at a place or after it; None where there is none."""
    found = chunk.find(b"\n", place) if place < len(chunk) else -1
    return None if found < 0 else found + 1
