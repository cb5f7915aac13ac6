"""Split a byte stream into lines, with a limit on the memory one line may take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Of input that cannot be read, this much is kept to show it.
SAMPLE_BYTES = 64 * 1024

_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


class CorruptStream(Exception):
    """A stream that ends before its end: damaged compression, a failing disk, another encoding."""


class Line(NamedTuple):
    """One line without its line feed (a carriage return in front of it is kept).

    Attributes:
        number: From 1.
        data: The line, or its first `SAMPLE_BYTES` where it is too long.
        size: Its size in bytes.
        too_long: Whether it is longer than allowed.
    """

    number: int
    data: bytes
    size: int
    too_long: bool = False


def split_lines(chunks: Iterable[bytes], max_bytes: int, first: int = 1) -> Iterator[Line]:
    """Lines of a byte stream; a line of more than `max_bytes` is passed over without being held in memory.

    The bytes after the last line feed are a line where there are any.

    Args:
        first: Number of the first line.
    """
    number = first
    pieces: list[bytes] = []
    size = 0
    for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield _make_line(number, [*pieces, end] if pieces else [end], size + len(end), max_bytes)
            number += 1
            pieces, size = [], 0
        if rest:
            size += len(rest)
            pieces.append(rest)
            if size > max_bytes:
                pieces = [b"".join(pieces)[:SAMPLE_BYTES]]
    if size:
        yield _make_line(number, pieces, size, max_bytes)


def _make_line(number: int, pieces: list[bytes], size: int, max_bytes: int) -> Line:
    data = b"".join(pieces)
    if size > max_bytes:
        return Line(number, data[:SAMPLE_BYTES], size, too_long=True)
    return Line(number, data, size)


def line_too_long_reason(line: Line) -> str:
    """What to say of a line that is longer than allowed."""
    return f"the line has {line.size:,} bytes, more than --max-document-bytes allows"


def strip_byte_order_mark(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The stream without the UTF-8 byte order mark that some programs put in front.

    Raises:
        StreamBroken: the mark of UTF-16 stands there.
    """
    head = b""
    decided = False
    for chunk in chunks:
        if decided:
            yield chunk
            continue
        head += chunk
        # One byte may come alone out of a pipe; three are needed to tell.
        if len(head) < len(_UTF8_BOM):
            continue
        decided = True
        yield _strip_head(head)
    if not decided and head:
        yield _strip_head(head)


def _strip_head(head: bytes) -> bytes:
    if head.startswith(_UTF16_BOMS):
        raise CorruptStream("the text is UTF-16, not UTF-8 (convert it with `iconv -f UTF-16 -t UTF-8`)")
    return head.removeprefix(_UTF8_BOM)
