"""Bytes to text, lines and columns."""

from __future__ import annotations

import csv
import io
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import UsageError
from es_sbert.io.file_formats import text_chunks
from es_sbert.io.text_formats import SAMPLE_BYTES, Line, WrongFormat, check_encoding, find_delimiter, split_lines
from tests.raised import raises, raises_as_recorded


@given(st.lists(st.binary(max_size=30)))
def test_lines_are_independent_of_chunk_boundaries(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    expected = whole.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    lines = list(split_lines(chunks, 1000))
    assert [line.data for line in lines] == expected
    assert [line.number for line in lines] == list(range(1, len(expected) + 1))


def test_too_long_line_is_not_held_in_memory() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"short\n"
        for _ in range(800):
            yield b"x" * 65536
        yield b"\nlast"

    tracemalloc.start()
    try:
        lines = list(split_lines(chunks(), 1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [(line.number, line.size, line.is_too_long) for line in lines] == [
        (1, 5, False),
        (2, 800 * 65536, True),
        (3, 4, False),
    ]
    assert len(lines[1].data) == SAMPLE_BYTES
    assert peak < 8 << 20


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


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
    ("data", "encoding"),
    [
        (b"gr\xfc\xdfe\n\x81", "windows-1252"),
        ("\ufeffa\n".encode("utf-16-le") + b"\x00\xd8" + "\nb".encode("utf-16-le"), None),
        ("\ufeffab".encode("utf-16-le")[:-1], None),
    ],
)
def test_bytes_that_the_encoding_does_not_define_are_refused(data: bytes, encoding: str | None) -> None:
    with raises_as_recorded(WrongFormat):
        list(text_chunks([data], encoding))


def test_encodings_are_checked_by_name() -> None:
    names = {"UTF8": "utf-8", "Windows-1252": "windows-1252", "latin-1": "latin-1"}
    assert {name: check_encoding(name) for name in names} == names
    for name in ("klingon", "base64", "rot13", "", "idna\0"):
        with raises(UsageError, "encoding", name):
            check_encoding(name)


@given(st.integers(1, 40), st.integers(0, 3))
def test_first_byte_that_is_not_utf8_is_named_in_any_chunking(size: int, before: int) -> None:
    data = ("id,größe\n" * before).encode() + b"1,plain\n2,gr\xf6\xdfe\n3,h\xf6he"
    offset = data.index(b"\xf6")
    with pytest.raises(WrongFormat) as error:
        list(text_chunks(in_pieces(data, size)))
    assert str(error.value) == f"it is not UTF-8: line {before + 2} has the byte 0xf6, at offset {offset} of the text"


def found(data: bytes, given: str | None = None) -> tuple[str, bytes]:
    delimiter, lines = find_delimiter(split_lines([data], 1 << 20), given)
    return delimiter, b"\n".join(line.data for line in lines)


@pytest.mark.parametrize(
    ("data", "delimiter"),
    [
        (b"id;text\n1;Hello, world\n2;Bye\n", ";"), (b"id;price;text\n1;1,5;a, b\n2;2,5;c\n", ";"),
        (b'id;text\n1;"a;b"\n2;"over\ntwo lines"\n', ";"), (b"id;name, first;text\n1;Bob;Hello\n2;Eve;Bye\n", ";"),
        (b"id\ttext\n1\tHello, world; bye\n", "\t"), (b"id;text\n1;a\n2;b;broken\n3;c\n", ";"),
    ],
)  # fmt: skip
def test_delimiter_is_recognized(data: bytes, delimiter: str) -> None:
    assert found(data) == (delimiter, data.removesuffix(b"\n"))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"text\nHello; world\nBye; bye\n", b"text\nHello\tworld\n", b"id,a;b\n1,c;d\n2,e;f\n",
        b'id,text\n1,"a;b"\n2,"c;d"\n', b"id,text\n1,a,broken\n2,b\n3,c\n",
        b"title; subtitle\nNo semicolon here\nNor here\n", b"id,text\n" + b"1,a;b;c\n" * 50,
    ],
)  # fmt: skip
def test_comma_files_are_never_misread(data: bytes) -> None:
    assert found(data)[0] == ","


words = st.text(st.sampled_from("ab ;,|\t"), max_size=6)


@given(st.lists(words.filter(str.strip), min_size=2, max_size=4, unique=True), st.data())
def test_any_comma_file_of_several_columns_is_read_with_commas(names: list[str], data: st.DataObject) -> None:
    cells = st.lists(words, min_size=len(names), max_size=len(names))
    rows = data.draw(st.lists(cells, max_size=25))
    out = io.StringIO(newline="")
    csv.writer(out).writerows([names, *rows])
    assert found(out.getvalue().encode())[0] == ","


@pytest.mark.parametrize(
    ("line", "delimiter"), [(b"sep=;", ";"), (b"sep=;\r", ";"), (b'"sep=;"', ";"), (b"sep=\t", "\t"), (b"sep=,", ",")]
)
def test_sep_line_names_the_delimiter_and_is_not_a_row(line: bytes, delimiter: str) -> None:
    assert found(line + b"\nid;text\n1;a\n") == (delimiter, b"id;text\n1;a")


@pytest.mark.parametrize(("data", "delimiter"), [(b"id,text\n", ","), (b"id;text\n" + b"1;a\n" * 20, ";")])
def test_delimiter_is_found_in_the_header_or_the_first_rows(data: bytes, delimiter: str) -> None:
    def lines() -> Iterator[Line]:
        yield from split_lines([data], 100)
        pytest.fail("a pipe would have been waited for")

    assert find_delimiter(lines())[0] == delimiter
