"""Text of any encoding as UTF-8, and text that is not UTF-8 refused by its first byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import UsageError
from es_sbert.io.text_formats import (
    CorruptStream,
    WrongFormat,
    check_encoding,
    is_utf8,
    needs_whole_text,
    to_utf8,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_the_utf8_byte_order_mark_is_dropped_once(size: int) -> None:
    data = b"\xef\xbb\xbf{}\n\xef\xbb\xbfx"
    assert b"".join(to_utf8(in_pieces(data, size))) == b"{}\n\xef\xbb\xbfx"


@pytest.mark.parametrize("data", [b"", b"a", b"ab", b"abc"])
def test_streams_shorter_than_a_byte_order_mark_pass_through(data: bytes) -> None:
    assert b"".join(to_utf8([data])) == data


@given(texts, st.sampled_from(["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]), st.integers(1, 9))
def test_byte_order_mark_tells_the_encoding(text: str, encoding: str, size: int) -> None:
    text = text.replace("\0", "")  # U+0000 after the mark of UTF-16 is the mark of UTF-32
    data = f"\ufeff{text}".encode(encoding)
    for given_encoding in (None, "windows-1252"):
        assert b"".join(to_utf8(in_pieces(data, size), given_encoding)).decode() == text


@given(texts, st.sampled_from(["utf-16-le", "windows-1252", "shift_jis", "gb18030", "utf-8"]), st.integers(1, 9))
def test_given_encoding_is_decoded_in_any_chunking(text: str, encoding: str, size: int) -> None:
    text = text.encode(encoding, "ignore").decode(encoding)
    data = f"a{text}".encode(encoding)
    assert b"".join(to_utf8(in_pieces(data, size), encoding)).decode() == f"a{text}"


def test_bytes_that_the_encoding_does_not_define_spoil_only_their_line() -> None:
    lines = b"".join(to_utf8([b"gr\xfc\xdfe\n\x81 \xfc\nok"], "windows-1252")).split(b"\n")
    assert lines[0].decode() == "grüße"
    assert lines[2] == b"ok"
    with pytest.raises(UnicodeDecodeError):
        lines[1].decode()


def test_half_of_a_surrogate_pair_spoils_only_its_line() -> None:
    data = "\ufeffa\n".encode("utf-16-le") + b"\x00\xd8" + "\nb".encode("utf-16-le")
    first, second, third = b"".join(to_utf8([data])).split(b"\n")
    assert (first, third) == (b"a", b"b")
    with pytest.raises(UnicodeDecodeError):
        second.decode()


def test_utf16_that_ends_inside_a_character_is_corrupt() -> None:
    with pytest.raises(CorruptStream, match="truncated"):
        list(to_utf8(["\ufeffab".encode("utf-16-le")[:-1]]))


@given(st.integers(1, 40), st.integers(0, 3))
def test_first_byte_that_is_not_utf8_is_named_in_any_chunking(size: int, before: int) -> None:
    data = ("id,größe\n" * before).encode() + b"1,plain\n2,gr\xf6\xdfe\n3,h\xf6he"
    offset = data.index(b"\xf6")
    with pytest.raises(WrongFormat) as error:
        list(to_utf8(in_pieces(data, size)))
    assert str(error.value) == f"it is not UTF-8: line {before + 2} has the byte 0xf6, at offset {offset} of the text"
    assert 'such as `encoding="windows-1252"`' in error.value.remedy


@pytest.mark.parametrize(
    "data", [b"caf\xc3", b"a\xed\xa0\x80", b"\xff", b"\xef\xbb\xbfa\xff", "Привет".encode("cp1251")]
)
def test_text_that_is_not_utf8_is_refused_unless_utf8_is_given(data: bytes) -> None:
    with pytest.raises(WrongFormat):
        list(to_utf8([data]))
    assert b"".join(to_utf8([data], "utf-8")) == data.removeprefix(b"\xef\xbb\xbf")


@given(texts, st.integers(1, 9))
def test_utf8_passes_in_any_chunking(text: str, size: int) -> None:
    assert b"".join(to_utf8(in_pieces(text.encode(), size))).decode() == text.removeprefix("\ufeff")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("Größe".encode(), True),
        (b"plain", False),
        ("Größe".encode("utf-8-sig"), False),
        ("Größe".encode("windows-1252"), False),
    ],
)
def test_utf8_with_other_letters_is_recognized(data: bytes, found: bool) -> None:
    assert is_utf8([data]) is found


def test_encodings_are_checked_by_name() -> None:
    assert [check_encoding(name) for name in ("UTF8", "Windows-1252", "latin-1")] == [
        "utf-8",
        "windows-1252",
        "latin-1",
    ]
    for name in ("klingon", "base64", "rot13", "", "idna\0"):
        with pytest.raises(UsageError, match="unknown text encoding"):
            check_encoding(name)


@pytest.mark.parametrize(
    ("head", "encoding", "whole"),
    [
        (b"abcd", None, False), (b"\xef\xbb\xbfa", None, False), (b"\xff\xfea\0", None, True),
        (b"a\0b\0", "utf-16-le", True), (b"abcd", "windows-1252", False), (b"\xef\xbb\xbfa", "windows-1252", True),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_split_at_line_feeds(head: bytes, encoding: str | None, whole: bool) -> None:
    assert needs_whole_text(head, encoding) is whole
