"""The delimiter of CSV files, named or recognized."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.errors import UsageError
from es_sbert.io.text_formats import Line, check_delimiter, find_delimiter, split_lines


def found(data: bytes, given: str | None = None) -> tuple[str, bytes]:
    delimiter, lines = find_delimiter(split_lines([data], 1 << 20), given)
    return delimiter, b"\n".join(line.data for line in lines)


@pytest.mark.parametrize(
    ("data", "delimiter"),
    [
        (b"id;text\n1;Hello, world\n2;Bye\n", ";"),
        (b"id;price;text\n1;1,5;a, b\n2;2,5;c\n", ";"),
        (b'id;text\n1;"a;b"\n2;"over\ntwo lines"\n', ";"),
        (b"id;name, first;text\n1;Bob;Hello\n2;Eve;Bye\n", ";"),
        (b"id;text\n", ";"),
        (b"id\ttext\n1\tHello, world; bye\n", "\t"),
        (b"id|text\n1|Hello; world\n", "|"),
        (b"id;text\n1;a\n2;b;broken\n3;c\n", ";"),
    ],
)
def test_delimiter_is_recognized(data: bytes, delimiter: str) -> None:
    assert found(data) == (delimiter, data.removesuffix(b"\n"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"text\nHello; world\nBye; bye\n",
        b"text\nHello\tworld\n",
        b'"text; more"\n"a; b"\n',
        b"id,a;b\n1,c;d\n2,e;f\n",
        b"id,a;b,text\n1,c;d,e\n2,f;g,h\n",
        b'id,text\n1,"a;b"\n2,"c;d"\n',
        b"id,text\n1,a;b\n2,c;d\n",
        b"id,text\n1,a,broken\n2,b\n3,c\n",
        b'id,"a;b"\n1,x;y\n',
        b"title; subtitle\nNo semicolon here\nNor here\n",
        b"id,text\n" + b"1,a;b;c\n" * 50,
    ],
)
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


def test_given_delimiter_takes_precedence() -> None:
    assert found(b"id;text\n1;a\n", "#") == ("#", b"id;text\n1;a")
    assert found(b"sep=;\nid#text\n", "#") == ("#", b"id#text")


def test_header_with_commas_alone_is_recognized_without_reading_further() -> None:
    def lines() -> Iterator[Line]:
        yield from split_lines([b"id,text\n"], 100)
        pytest.fail("a pipe would have been waited for")

    assert find_delimiter(lines())[0] == ","


@pytest.mark.parametrize(("text", "delimiter"), [(";", ";"), ("tab", "\t"), ("\\t", "\t"), ("\t", "\t"), ("|", "|")])
def test_delimiter_names(text: str, delimiter: str) -> None:
    assert check_delimiter(text) == delimiter


@pytest.mark.parametrize("text", ["", ";;", '"', "\n", "semicolon"])
def test_invalid_delimiters_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="must be a single character"):
        check_delimiter(text)
