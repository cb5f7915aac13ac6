"""The encoding of text files: byte order marks, and decoding to UTF-8.

A file without a byte order mark is UTF-8. If it is not, it is refused: its encoding is not guessed.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

from es_sbert.errors import UsageError
from es_sbert.io.text_formats import CorruptStream, WrongFormat, read_head

UTF8 = "utf-8"

# UTF-32 first, because its mark begins with that of UTF-16.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MARK_BYTES = 4


def check_encoding(name: str) -> str:
    """Check an encoding, and return its name in lower case.

    Raises:
        UsageError: Python does not know this text encoding.
    """
    try:
        if "a\n".encode(name).decode(name) == "a\n":
            return UTF8 if codecs.lookup(name).name == UTF8 else name.lower()
    except (LookupError, UnicodeError, ValueError):  # refused below
        pass
    raise UsageError(
        f"unknown text encoding {name!r}",
        'Use an encoding that Python supports, e.g. `encoding="windows-1252"`, utf-16 or shift_jis.',
    )


def has_byte_order_mark(head: bytes) -> bool:
    """Whether a text begins with a byte order mark, which determines its encoding."""
    return head.startswith(tuple(mark for mark, _ in _BYTE_ORDER_MARKS))


def needs_whole_text(head: bytes, encoding: str | None) -> bool:
    """Whether a text cannot be split at line feeds, since it is UTF-16 or its byte order mark overrides the encoding.

    Args:
        head: The first bytes.
        encoding: The encoding given by the user.
    """
    if encoding is not None and (_is_wide(encoding) or has_byte_order_mark(head)):
        return True
    return has_byte_order_mark(head) and not head.startswith(codecs.BOM_UTF8)


def _is_wide(encoding: str) -> bool:
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def to_utf8(chunks: Iterable[bytes], encoding: str | None = None) -> Iterator[bytes]:
    """Yield a text as UTF-8 without a byte order mark.

    Bytes that a given encoding does not define are kept. They are invalid UTF-8, so their line is rejected later.

    Args:
        chunks: The text.
        encoding: None for UTF-8, all of which is checked. A byte order mark takes precedence.

    Raises:
        WrongFormat: no encoding is given, and the text is not UTF-8.
        CorruptStream: the text ends inside a character of UTF-16 or UTF-32.
    """
    head, rest = read_head(chunks, _MARK_BYTES)
    mark, marked = next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if head.startswith(mark)), (b"", None))
    text = chain([head.removeprefix(mark)], rest)
    if encoding is None and marked in (None, UTF8):
        yield from checked_utf8(text)
        return
    encoding = marked or encoding or UTF8
    if encoding == UTF8:
        yield from text
        return
    # Half a surrogate pair is passed on as invalid UTF-8, so that only one line is rejected instead of the file.
    errors = "surrogatepass" if _is_wide(encoding) else "surrogateescape"
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    try:
        for chunk in text:
            if decoded := decoder.decode(chunk):
                yield decoded.encode(errors=errors)
        if decoded := decoder.decode(b"", final=True):
            yield decoded.encode(errors=errors)
    except UnicodeDecodeError as error:
        raise CorruptStream(f"the {encoding} text is damaged or truncated ({error.reason})") from error


def checked_utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a text, up to the first that is not UTF-8.

    Raises:
        WrongFormat: the text is not UTF-8; the message names the first byte that cannot be decoded.
    """
    decoder = codecs.getincrementaldecoder(UTF8)()
    line, offset = 1, 0
    for chunk in chain(chunks, [b""]):
        try:
            decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            # The decoder puts the beginning of a character, without a line feed, in front of the chunk.
            data, start = error.object, error.start
            line += data.count(b"\n", 0, start)
            offset += len(chunk) - len(data) + start
            raise WrongFormat(
                f"it is not UTF-8: line {line:,} has the byte 0x{data[start]:02x}, at offset {offset:,} of the text",
                'Save it as UTF-8, or name its encoding, such as `encoding="windows-1252"`. With `encoding="utf-8"`, '
                "only the lines that cannot be decoded are rejected.",
            ) from error
        line += chunk.count(b"\n")
        offset += len(chunk)
        if chunk:
            yield chunk


def is_utf8(chunks: Iterable[bytes]) -> bool:
    """Whether a text has no byte order mark, is UTF-8 to its end, and not only ASCII."""
    head, rest = read_head(chunks, _MARK_BYTES)
    if has_byte_order_mark(head):
        return False
    is_ascii = True
    try:
        for chunk in checked_utf8(chain([head], rest)):
            is_ascii = is_ascii and chunk.isascii()
    except WrongFormat:
        return False
    return not is_ascii
