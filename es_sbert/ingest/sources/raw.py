"""Raw bytes of files, pipes and standard input, counted, and interruptible where reading can block."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator

from es_sbert.ingest.sources.find import Source
from es_sbert.streams.lines import StreamBroken

_CHUNK = 1 << 16
_POLL_SECONDS = 0.2


class ReadingStopped(Exception):
    """Somebody asked to stop reading; an unfinished record is left alone."""


class ByteCounter:
    """Bytes taken from the sources so far: what a progress bar is drawn from."""

    def __init__(self) -> None:
        self.bytes = 0


def raw_chunks(source: Source, counter: ByteCounter, stop: threading.Event) -> Iterator[bytes]:
    """The source's bytes as they stand on disk or come in.

    Raises:
        OSError: the file cannot be opened.
        StreamBroken: reading failed half-way.
        ReadingStopped: `stop` was set.
    """
    descriptor = sys.stdin.fileno() if source.path is None else os.open(source.path, os.O_RDONLY | _O_BINARY)
    # A pipe may stay silent for hours. Windows cannot wait for one with a time-out; there, stopping takes
    # until the next bytes arrive.
    waits = source.size is None and os.name == "posix"
    try:
        while True:
            if stop.is_set():
                raise ReadingStopped
            if waits and not select.select([descriptor], [], [], _POLL_SECONDS)[0]:
                continue
            try:
                chunk = os.read(descriptor, _CHUNK)
            except OSError as error:
                raise StreamBroken(f"reading failed: {error.strerror}") from error
            if not chunk:
                return
            counter.bytes += len(chunk)
            yield chunk
    finally:
        if source.path is not None:
            os.close(descriptor)


_O_BINARY = getattr(os, "O_BINARY", 0)
