"""The encoding of text files: byte order marks, decoding to UTF-8, and files that are not UTF-8.

A file without a byte order mark is read as UTF-8. Spreadsheets also write Windows-1252, in which each line with an
umlaut or a curly quote is invalid UTF-8. `EncodingDetector` distinguishes such a file from a UTF-8 file with a few
broken lines.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

from es_sbert.errors import SourceError, UsageError
from es_sbert.io.text_formats import CorruptStream, Line, read_head

UTF8 = "utf-8"
WINDOWS_1252 = "windows-1252"

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

    Bytes that the encoding does not define are kept. They are invalid UTF-8, so their line is rejected later.

    Args:
        chunks: The text.
        encoding: None for UTF-8. A byte order mark takes precedence.

    Raises:
        CorruptStream: the text ends inside a character of UTF-16 or UTF-32.
    """
    head, rest = read_head(chunks, _MARK_BYTES)
    mark, marked = next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if head.startswith(mark)), (b"", None))
    text = chain([head.removeprefix(mark)], rest)
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


_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_WORD = re.compile("[A-Za-zÀ-ÖØ-öø-ÿŒœŠšŽžŸƒ]+")
# Characters of Windows-1252 that occur in texts. Others are rare in texts, but common in damaged UTF-8: Ã¤ is an ä.
_SIGNS = frozenset("€„…‘’“”•–—™‹›‰\u00a0¡£§©«®°±²³´µ·»¿×÷ªº¼½¾")
_RAISED = re.compile("[²³±][A-Za-z]")
_SINGLE_LETTERS = frozenset("àáâãäåæèéêëìíîïðòóôõöøùúûüýœ")
_SAMPLE_CHARACTERS = 40
# Number of lines in no recognized encoding at which a file without any UTF-8 is refused.
_UNKNOWN_LINES = 10


class EncodingDetector:
    """Counts the lines of a text by their likely encoding.

    Attributes:
        utf8: Number of lines with characters of UTF-8 other than ASCII.
        windows_1252: Number of lines that are plausible Windows-1252, but not UTF-8.
        unknown: Number of other lines that are not UTF-8.
        first: Line number and a part of the first line that is plausible Windows-1252; None if there is none.
        first_unknown: Line number of the first of the other lines; 0 if there is none.
    """

    def __init__(self) -> None:
        self.utf8 = 0
        self.windows_1252 = 0
        self.unknown = 0
        self.first: tuple[int, str] | None = None
        self.first_unknown = 0

    def add(self, number: int, line: bytes) -> None:
        """Count a line under its likely encoding. ASCII lines are not counted.

        Args:
            number: Line number, from 1.
        """
        if line.isascii():
            return
        try:
            line.decode()
        except UnicodeDecodeError as error:
            sample = windows_1252_sample(line)
            if _has_utf8(line):
                self.utf8 += 1
            elif sample is not None:
                self.windows_1252 += 1
                self.first = self.first or (number, sample)
            elif "unexpected end" not in error.reason and not _CONTROL.search(line):
                self.unknown += 1
                self.first_unknown = self.first_unknown or number
        else:
            self.utf8 += 1

    def add_lines(self, number: int, lines: bytes) -> None:
        """Count several lines, as `add` does.

        Args:
            number: Number of the first line.
        """
        try:
            lines.decode()
        except UnicodeDecodeError:
            for each, line in enumerate(lines.split(b"\n"), number):
                self.add(each, line)
        else:
            self.utf8 += sum(not line.isascii() for line in lines.split(b"\n"))

    def check(self, name: str) -> None:
        """Check that the text can be UTF-8 with some broken lines.

        Args:
            name: The source, for messages.

        Raises:
            SourceError: the text has a different encoding.
        """
        ways_out = (
            'If it has a different encoding, set that; with `encoding="utf-8"`, such lines go to the dead-letter file.'
        )
        if self.first is not None and self.windows_1252 > self.utf8:
            number, sample = self.first
            raise SourceError(
                f"{name} is not UTF-8 but looks like Windows-1252, in which its line {number:,} reads {sample!r}",
                f'Add `encoding="windows-1252"`, or save the file as UTF-8. {ways_out}',
            )
        if not self.utf8 and self.unknown >= _UNKNOWN_LINES:
            raise SourceError(
                f"{name} is not UTF-8: {self.unknown:,} lines cannot be decoded, the first is line "
                f"{self.first_unknown:,}",
                f"Add `encoding` with its encoding, such as windows-1251 or shift_jis, or save it as UTF-8. {ways_out}",
            )


def _has_utf8(line: bytes) -> bool:
    """Whether a line of invalid UTF-8 contains valid UTF-8 characters."""
    text = line.decode(errors="surrogateescape")
    return any(not letter.isascii() and not "\udc80" <= letter <= "\udcff" for letter in text)


def windows_1252_sample(line: bytes) -> str | None:
    """Return a non-ASCII part of a line, decoded as Windows-1252; None if the line is not plausible Windows-1252."""
    try:
        text = line.decode(WINDOWS_1252)
    except UnicodeDecodeError:
        return None
    # The first bytes of a truncated “ or ’ in UTF-8 are â€.
    if _CONTROL.search(line) or "â€" in text:
        return None
    first = None
    for word in _WORD.finditer(text):
        letters = word[0]
        if letters.isascii():
            continue
        if not _is_plausible_word(
            letters, text[max(0, word.start() - 1) : word.start()], text[word.end() : word.end() + 1]
        ):
            return None
        first = word.start() if first is None else first
    signs = [place for place, sign in enumerate(text) if not sign.isascii() and not _WORD.match(sign)]
    # ³ before a letter is the ł of Windows-1250.
    if any(text[place] not in _SIGNS or _RAISED.match(text, place) for place in signs):
        return None
    places = [*([] if first is None else [first]), *signs[:1]]
    if not places:
        return None
    start = max(0, min(places) - _SAMPLE_CHARACTERS // 2)
    return text[start : start + _SAMPLE_CHARACTERS].strip()


def _is_plausible_word(word: str, before: str, after: str) -> bool:
    """Whether a word with non-ASCII letters may be from a Western European language."""
    if "ÿþ" in word or "þÿ" in word:
        return False  # the byte order mark of UTF-16
    if any(letter.isascii() for letter in word):
        # The first byte of a truncated UTF-8 character is an upper case letter here: Ã instead of é.
        return not any(one.islower() and two.isupper() and not two.isascii() for one, two in pairwise(word))
    around = before + after
    return word in _SINGLE_LETTERS and around != "" and around.isascii()


_SCAN_LINE_BYTES = 1 << 20
# Number of Windows-1252 lines after which the search stops if no line was UTF-8.
_ENOUGH_LINES = 1000


def detect_encoding(chunks: Iterable[bytes]) -> EncodingDetector:
    """Count the lines of a text by their likely encoding, about as fast as a disk reads them."""
    detector = EncodingDetector()
    number, rest = 1, b""
    for chunk in chunks:
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        if not end and len(data) > _SCAN_LINE_BYTES:
            # A long line is split, but not in the middle of a character.
            end = len(data)
            while end > len(data) - _MARK_BYTES and data[end - 1] > 0x7F:
                end -= 1
        whole, rest = data[:end], data[end:]
        if whole.isascii():
            number += whole.count(b"\n")
            continue
        detector.add_lines(number, whole)
        number += whole.count(b"\n")
        if not detector.utf8 and detector.windows_1252 >= _ENOUGH_LINES:
            return detector
    detector.add(number, rest)
    return detector


def is_utf8_throughout(chunks: Iterable[bytes]) -> bool:
    """Whether a text is UTF-8 without broken lines, and not only ASCII."""
    decoder = codecs.getincrementaldecoder(UTF8)()
    is_ascii = True
    try:
        for chunk in chunks:
            is_ascii = is_ascii and chunk.isascii()
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return not is_ascii


def refuse_other_encodings(lines: Iterable[Line], name: str) -> Iterator[Line]:
    """Yield the lines of a text that can be read only once, up to the first that is recognized as Windows-1252.

    Args:
        name: The source, for messages.

    Raises:
        SourceError: the text is Windows-1252.
    """
    detector = EncodingDetector()
    for line in lines:
        if not line.is_too_long and not line.data.isascii():
            detector.add(line.number, line.data)
            if detector.windows_1252:
                detector.check(name)
        yield line
