"""Bytes of files, pipes and standard input of this machine, interruptible where reading can block."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from es_sbert.ingest.sources.source import Reading, ReadingStopped
from es_sbert.streams.lines import StreamBroken

STDIN = "-"
_CHUNK = 1 << 16
_POLL_SECONDS = 0.2
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

    def chunks(self, reading: Reading) -> Iterator[bytes]:
        descriptor = os.open(self.path, os.O_RDONLY | _O_BINARY)
        try:
            yield from _chunks(descriptor, reading, may_block=self.size is None)
        finally:
            os.close(descriptor)

    def open(self, reading: Reading) -> BinaryIO:
        return open(self.path, "rb")


@dataclass(frozen=True)
class StandardInput:
    """What is piped into this process."""

    name: str = STDIN
    path: None = None
    size: None = None
    again: bool = False

    def chunks(self, reading: Reading) -> Iterator[bytes]:
        return _chunks(sys.stdin.fileno(), reading, may_block=True)

    def open(self, reading: Reading) -> BinaryIO:
        raise StreamBroken("standard input can only be read from its beginning to its end")


def _chunks(descriptor: int, reading: Reading, *, may_block: bool) -> Iterator[bytes]:
    # A pipe may stay silent for hours. Windows cannot wait for one with a time-out; there, stopping takes
    # until the next bytes arrive.
    waits = may_block and os.name == "posix"
    while True:
        if reading.stop.is_set():
            raise ReadingStopped
        if waits and not select.select([descriptor], [], [], _POLL_SECONDS)[0]:
            continue
        try:
            chunk = os.read(descriptor, _CHUNK)
        except OSError as error:
            raise StreamBroken(f"reading failed: {error.strerror}") from error
        if not chunk:
            return
        reading.counter.bytes += len(chunk)
        yield chunk
