"""Text in UTF-8, and text that is not refused by its first byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.io.file_formats import text_chunks
from es_sbert.io.text_formats import WrongFormat

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


@given(st.integers(1, 40), st.integers(0, 3))
def test_first_byte_that_is_not_utf8_is_named_in_any_chunking(size: int, before: int) -> None:
    data = ("id,größe\n" * before).encode() + b"1,plain\n2,gr\xf6\xdfe\n3,h\xf6he"
    offset = data.index(b"\xf6")
    with pytest.raises(WrongFormat) as error:
        list(text_chunks(in_pieces(data, size)))
    assert str(error.value) == f"it is not UTF-8: line {before + 2} has the byte 0xf6, at offset {offset} of the text"
    assert "`iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW`" in error.value.remedy


@pytest.mark.parametrize(
    "data",
    [b"caf\xc3", b"a\xed\xa0\x80", b"\xff", b"\xef\xbb\xbfa\xff", "Привет".encode("cp1251")]
    + ["id;text\n1;größer".encode(f"utf-{encoding}") for encoding in ("16", "16-le", "16-be", "32", "32-le")],
)
def test_text_that_is_not_utf8_is_refused(data: bytes) -> None:
    with pytest.raises(WrongFormat):
        list(text_chunks([data]))
