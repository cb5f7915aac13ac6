"""Cells of CSV and TSV files become numbers, booleans and dates, or their row is rejected."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.ingest.sources.column_types import ColumnType, mapped_types
from es_sbert.ingest.sources.document_source import ReadSettings, Record, RejectedRecord
from es_sbert.ingest.sources.file_sources import FileInput, TextSource
from es_sbert.io.file_formats import FileFormat
from es_sbert.io.text_formats import split_lines


def read(data: str, types: dict[str, ColumnType], form: FileFormat = FileFormat.CSV) -> list[Record | RejectedRecord]:
    settings = ReadSettings(1 << 20, "text", column_types=types)
    return list(TextSource(FileInput("f"), form).parse_lines(split_lines([data.encode()], 1 << 20), settings))


def value(cell: str, kind: str) -> Any:
    """The value of one cell; the reason in a list if its row was rejected."""
    escaped = cell.replace('"', '""')
    [record] = read(f'n,text\n"{escaped}",a\n', {"n": ColumnType(kind)})
    return [record.reason] if isinstance(record, RejectedRecord) else record.fields["n"]


@pytest.mark.parametrize(
    ("kind", "cell", "expected"),
    [
        ("integer", " 12 ", 12), ("integer", "-7.0", -7), ("short", "1e5", 100_000),
        ("unsigned_long", "18446744073709551615", 2**64 - 1), ("long", "-9223372036854775808", -(2**63)),
        ("float", "1e5", 1e5), ("half_float", "+.5", 0.5), ("double", "12", 12.0),
        *((kind, cell, None) for kind in ("integer", "float", "boolean", "date") for cell in ("", " ")),
        *(("boolean", cell, True) for cell in ("true", "YES", "t", "Y", "1")),
        *(("boolean", cell, False) for cell in ("False", "no", "f", "N", "0")),
        ("date", "31.01.2026 ", "31.01.2026"),
    ],
)  # fmt: skip
def test_cells_become_values_of_their_type(kind: str, cell: str, expected: object) -> None:
    found = value(cell, kind)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("kind", "expected", "cells"),
    [
        ("integer", "an integer of at most 64 bits", ["7.5", "18446744073709551616", "1e999", "1e999999999", "null"]),
        ("float", "a number", ["nan", "inf", "1e400", "1_000", "٣", "12 €", "1.234,56", "1,234", "9" * 1000]),
        ("boolean", "a boolean (true or false", ["2"]),
    ],
)
def test_cell_that_its_type_cannot_read_rejects_the_row(kind: str, expected: str, cells: list[str]) -> None:
    for cell in cells:
        [found] = value(cell, kind)
        assert found.startswith(f"the column n has '{cell[:60]}")
        assert f", which is not {expected}" in found


def test_broken_rows_keep_their_first_line_and_their_bytes() -> None:
    types = {"n": ColumnType("integer")}
    bad_tsv = read("n\ttext\n1\ta\n\nx\tb\n", types, FileFormat.TSV)[1]
    first, bad, last = read('n,text\n1,"a\nb"\nx,"c\nd"\n3,e\n', types)
    assert isinstance(bad_tsv, RejectedRecord)
    assert isinstance(bad, RejectedRecord)
    assert (bad_tsv.origin.line, bad_tsv.raw) == (4, b"x\tb")
    assert (bad.origin.line, bad.raw) == (4, b'x,"c\nd"')
    assert isinstance(first, Record)
    assert isinstance(last, Record)
    assert (first.fields, first.source) == ({"n": 1, "text": "a\nb"}, b'{"n":1,"text":"a\\nb"}')
    assert (last.fields["n"], last.origin.line) == (3, 6)


MAPPINGS = {
    "properties": {
        "id": {"type": "long"}, "title": {"type": "text"}, "price": {"type": "scaled_float", "scaling_factor": 100},
        "rough": {"type": "integer", "ignore_malformed": True}, "day": {"type": "date", "format": "dd.MM.yyyy"},
        "stock": {"properties": {"open": {"type": "boolean"}}},
    }
}  # fmt: skip


def test_mapping_gives_types_except_to_texts_and_ids() -> None:
    types = mapped_types(MAPPINGS, {}, ["id", "title"])
    header = "id,title,price,rough,day,stock.open,new\n"
    good, empty, bad = read(f"{header}007,5,2.50,about 3,31.01.2026,yes,1\n8,,,,,,\n9,a,cheap,1,x,no,1\n", types)
    assert isinstance(good, Record)
    assert good.fields == {
        "id": "007", "title": "5", "price": 2.5, "rough": "about 3", "day": "31.01.2026", "stock.open": True,
        "new": "1",
    }  # fmt: skip
    assert isinstance(empty, Record)
    assert empty.fields == {
        "id": "8", "title": "", "price": None, "rough": None, "day": None, "stock.open": None, "new": "",
    }  # fmt: skip
    assert isinstance(bad, RejectedRecord)
    assert bad.reason.endswith("'cheap', which is not a number with a decimal point: the index maps it as float")
    assert mapped_types(MAPPINGS, {"index.mapping.ignore_malformed": "true"}, [])["price"].keeps_malformed
