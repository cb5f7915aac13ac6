"""Text of any encoding as UTF-8, and text that is not in its encoding refused by its first byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import UsageError
from es_sbert.io.file_formats import text_chunks
from es_sbert.io.text_formats import WrongFormat, check_encoding

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_the_utf8_byte_order_mark_is_dropped_once(size: int) -> None:
    data = b"\xef\xbb\xbf{}\n\xef\xbb\xbfx"
    assert b"".join(text_chunks(in_pieces(data, size))) == b"{}\n\xef\xbb\xbfx"


@given(texts, st.integers(1, 9))
def test_utf8_passes_in_any_chunking(text: str, size: int) -> None:
    assert b"".join(text_chunks(in_pieces(text.encode(), size))).decode() == text.removeprefix("\ufeff")


@given(texts, st.sampled_from(["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]), st.integers(1, 9))
def test_byte_order_mark_tells_the_encoding(text: str, encoding: str, size: int) -> None:
    data = f"\ufeff{text}".encode(encoding)
    for given_encoding in (None, "windows-1252"):
        assert b"".join(text_chunks(in_pieces(data, size), given_encoding)).decode() == text


@given(texts, st.sampled_from(["utf-16-le", "windows-1252", "shift_jis", "gb18030", "utf-8"]), st.integers(1, 9))
def test_given_encoding_is_decoded_in_any_chunking(text: str, encoding: str, size: int) -> None:
    text = text.encode(encoding, "ignore").decode(encoding)
    data = f"a{text}".encode(encoding)
    assert b"".join(text_chunks(in_pieces(data, size), encoding)).decode() == f"a{text}"


@pytest.mark.parametrize(
    ("data", "encoding", "named"),
    [
        (b"gr\xfc\xdfe\n\x81", "windows-1252", "it is not windows-1252: near offset 0, "),
        ("\ufeffa\n".encode("utf-16-le") + b"\x00\xd8" + "\nb".encode("utf-16-le"), None, "it is not utf-16-le"),
        ("\ufeffab".encode("utf-16-le")[:-1], None, "it is not utf-16-le: near offset 3, "),
    ],
)
def test_bytes_that_the_encoding_does_not_define_are_refused(data: bytes, encoding: str | None, named: str) -> None:
    with pytest.raises(WrongFormat, match=named):
        list(text_chunks([data], encoding))


def test_encodings_are_checked_by_name() -> None:
    names = {"UTF8": "utf-8", "Windows-1252": "windows-1252", "latin-1": "latin-1"}
    assert {name: check_encoding(name) for name in names} == names
    for name in ("klingon", "base64", "rot13", "", "idna\0"):
        with pytest.raises(UsageError, match="unknown text encoding"):
            check_encoding(name)


@given(st.integers(1, 40), st.integers(0, 3))
def test_first_byte_that_is_not_utf8_is_named_in_any_chunking(size: int, before: int) -> None:
    data = ("id,größe\n" * before).encode() + b"1,plain\n2,gr\xf6\xdfe\n3,h\xf6he"
    offset = data.index(b"\xf6")
    with pytest.raises(WrongFormat) as error:
        list(text_chunks(in_pieces(data, size)))
    assert str(error.value) == f"it is not UTF-8: line {before + 2} has the byte 0xf6, at offset {offset} of the text"
    assert 'such as `encoding="windows-1252"`' in error.value.remedy


@pytest.mark.parametrize(
    "data",
    [b"caf\xc3", b"a\xed\xa0\x80", b"\xff", b"\xef\xbb\xbfa\xff", "Привет".encode("cp1251")]
    + ["id;text\n1;größer".encode(f"utf-{encoding}") for encoding in ("16-le", "16-be", "32-le")],
)
def test_text_that_is_not_utf8_is_refused(data: bytes) -> None:
    with pytest.raises(WrongFormat):
        list(text_chunks([data]))
