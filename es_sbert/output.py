"""Files that commands write where users say."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# As everywhere on command lines: the name for stdout.
STDOUT = Path("-")


def is_stream(path: Path) -> bool:
    """Whether a path is stdout (`-`), a pipe or a device, which is written to as it is."""
    return path == STDOUT or (path.exists() and not path.is_file())


def written(path: Path) -> contextlib.AbstractContextManager[BinaryIO]:
    """What to write to: a file that takes its name when it is complete, or the pipe or device that is there.

    Raises:
        OSError: it cannot be written; of the file nothing is left.
    """
    if path == STDOUT:
        return _flushed(sys.stdout.buffer)
    if is_stream(path):
        return path.open("wb")
    return _replace_when_complete(path.resolve())  # of a link, what it points to is written, and the link stays


@contextlib.contextmanager
def _flushed(stream: BinaryIO) -> Iterator[BinaryIO]:
    yield stream
    stream.flush()


@contextlib.contextmanager
def _replace_when_complete(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside `path` that takes its name at the end, or is removed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
        # mkstemp makes files private; an output file gets the usual permissions.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
