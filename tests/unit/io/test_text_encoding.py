"""Text of any encoding as UTF-8, and files in Windows-1252 told from broken UTF-8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import SourceError, UsageError
from es_sbert.io.text_encoding import (
    check_encoding,
    detect_encoding,
    needs_whole_text,
    refuse_other_encodings,
    to_utf8,
    windows_1252_sample,
)
from es_sbert.io.text_formats import CorruptStream, split_lines

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_the_utf8_byte_order_mark_is_dropped_once(size: int) -> None:
    data = b"\xef\xbb\xbf{}\n\xef\xbb\xbfx"
    assert b"".join(to_utf8(in_pieces(data, size))) == b"{}\n\xef\xbb\xbfx"


@pytest.mark.parametrize("data", [b"", b"a", b"ab", b"abc", b"\xff", b"\xef\xbb"])
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


@pytest.mark.parametrize(
    "text",
    [
        "Größe", "für die BürgerInnen", "ÜBER ALLES", "El Niño", "garçon à Paris", "Merci à tous", "don’t", "“quoted”",
        "1 – 2", "5 €", "„so“", "café,1", "naïve…", "L’été", "100 °C", "© 2024", "„MENÜ“", "smørrebrød", "það",
    ],
)  # fmt: skip
def test_texts_of_western_europe_are_plausible(text: str) -> None:
    sample = windows_1252_sample(text.encode("windows-1252"))
    assert sample is not None
    assert sample in text


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe broken", b"\xfe\xff broken", b"caf\xc3", b"caf\xc3 x", b"\x80\x81", b"\xc0\xaf", b"\xf4\x90\x80\x80",
        b"a\x00\xe9", b"\xe9", b"\xff", b"\xed\xa0\x80", "“a".encode()[:2] + b"x",
        "Привет".encode("cp1251"), "Białystok".encode("cp1250"), "日本語".encode("shift_jis"), b"",
        b"plain ASCII",
    ],
)  # fmt: skip
def test_broken_utf8_and_other_encodings_are_not_plausible(line: bytes) -> None:
    assert windows_1252_sample(line) is None


def check(data: bytes) -> None:
    detect_encoding([data]).check("a.csv")


@given(st.integers(1, 40), st.integers(0, 3))
def test_line_number_is_independent_of_chunks(size: int, before: int) -> None:
    data = b"id,text\n" * before + "1,Größe\n2,a\n3,Höhe".encode("windows-1252")
    detector = detect_encoding(in_pieces(data, size))
    assert detector.first == (before + 1, "1,Größe")
    assert detector.windows_1252 == 2
    with pytest.raises(SourceError, match=rf"a.csv is not UTF-8 but .*its line {before + 1} reads '1,Größe'"):
        detector.check("a.csv")


def test_windows_1252_far_behind_is_found() -> None:
    data = b"id,text\n" + b"1,plain\n" * 100_000 + "2,Größe\n".encode("windows-1252")
    with pytest.raises(SourceError, match=r"line 100,002 [^\n]*\n  Add `encoding=\"windows-1252\"`"):
        check(data)


def test_broken_lines_of_a_utf8_file_pass() -> None:
    check("1,Größe\n2,Höhe\n".encode() + b"3,caf\xe9\n")
    check(b"plain\n\xff\xfe broken\n")
    check("Größe".encode())
    check(b"x" * (1 << 21) + "ö".encode() * (1 << 20))


def test_other_encoding_is_refused_by_its_lines() -> None:
    check("Привет\n".encode("cp1251") * 9)
    with pytest.raises(SourceError, match=r"10 lines cannot be decoded, the first is line 2\n  Add `encoding"):
        check(b"id\n" + "Привет\n".encode("cp1251") * 10)


def test_streams_end_at_the_first_line_of_windows_1252() -> None:
    lines = refuse_other_encodings(split_lines(["a\nb\nGröße\nc".encode("windows-1252")], 100), "-")
    assert [next(lines).data, next(lines).data] == [b"a", b"b"]
    with pytest.raises(SourceError, match="- is not UTF-8 but looks like Windows-1252, in which its line 3"):
        next(lines)


def test_streams_of_utf8_pass_with_broken_lines() -> None:
    data = "Größe\n".encode() + "Größe\n".encode("windows-1252") + b"\xff\n"
    assert len(list(refuse_other_encodings(split_lines([data], 100), "-"))) == 3


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
