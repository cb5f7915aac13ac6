"""Cells of CSV and TSV files become numbers, booleans and dates, or their row is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from es_sbert.cli.setting_names import as_options
from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.sources.column_types import ColumnTypes, mapped_types, parse_types
from es_sbert.ingest.sources.document_source import (
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.file_sources import FileInput, FileOptions, TextSource, find_sources
from es_sbert.io.file_formats import FileFormat
from es_sbert.io.text_formats import split_lines


def read(data: str, types: ColumnTypes, form: FileFormat = FileFormat.CSV) -> list[Record | RejectedRecord]:
    source = TextSource(FileInput("f"), form)
    settings = ReadSettings(1 << 20, "text", column_types=types)
    return list(source.parse_lines(split_lines([data.encode()], 1 << 20), settings))


def value(cell: str, kind: str) -> Any:
    """The value of one cell; the reason in a list if its row was rejected."""
    types = ColumnTypes(parse_types([f"n={kind}"]), {})
    escaped = cell.replace('"', '""')
    [record] = read(f'n,text\n"{escaped}",a\n', types)
    return [record.reason] if isinstance(record, RejectedRecord) else record.fields["n"]


@pytest.mark.parametrize(
    ("kind", "cell", "expected"),
    [
        ("string", " 007 ", " 007 "),
        ("string", "", ""),
        ("integer", " 12 ", 12),
        ("integer", "-7.0", -7),
        ("integer", "1e5", 100_000),
        ("integer", "18446744073709551615", 2**64 - 1),
        ("long", "-9223372036854775808", -(2**63)),
        ("float", "1e5", 1e5),
        ("float", "+.5", 0.5),
        ("double", "12", 12.0),
        *((kind, cell, None) for kind in ("integer", "float", "boolean", "date") for cell in ("", " ")),
        *(("boolean", cell, True) for cell in ("true", "YES", "t", "Y", "1")),
        *(("boolean", cell, False) for cell in ("False", "no", "f", "N", "0")),
        ("date", "2026-01-31", "2026-01-31"),
        ("date", "2026-01-31 12:00:00+01", "2026-01-31T12:00:00+01:00"),
        ("date", "2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:00.123456789Z"),
        ("date", "2026-01-31 12:00:00,5 +0230", "2026-01-31T12:00:00.5+02:30"),
    ],
)
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
        ("date", "an ISO 8601 date", ["20260131", "2026-02-30", "2026-01-31T25:00"]),
    ],
)
def test_cell_that_its_type_cannot_read_rejects_the_row(kind: str, expected: str, cells: list[str]) -> None:
    for cell in cells:
        [found] = value(cell, kind)
        assert found.startswith(f"the column n has '{cell[:60]}")
        assert f", which is not {expected}" in found
        assert as_options(found) == found  # no setting is meant


def test_unknown_type_names_the_format_of_the_mapping() -> None:
    with pytest.raises(UsageError) as caught:
        parse_types(["day=datetime"])
    assert '`"format": "dd.MM.yyyy"`' in as_options(caught.value.remedy)


def test_broken_rows_keep_their_first_line_and_their_bytes() -> None:
    data = "n\ttext\n1\ta\n\nx\tb\n"
    bad_tsv = read(data, ColumnTypes(parse_types(["n=integer"]), {}), FileFormat.TSV)[1]
    first, bad, last = read('n,text\n1,"a\nb"\nx,"c\nd"\n3,e\n', ColumnTypes(parse_types(["n=integer"]), {}))
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
        "id": {"type": "long"},
        "title": {"type": "text"},
        "price": {"type": "scaled_float", "scaling_factor": 100},
        "rough": {"type": "integer", "ignore_malformed": True},
        "day": {"type": "date", "format": "dd.MM.yyyy"},
        "stock": {"properties": {"open": {"type": "boolean"}}},
        "year": {"type": "short"},
    }
}


def test_mapping_gives_types_except_to_texts_and_ids() -> None:
    types = ColumnTypes(parse_types(["year=string"]), mapped_types(MAPPINGS, {}, ["id", "title"]))
    header = "id,title,price,rough,day,stock.open,year,new\n"
    good, empty, bad = read(
        f"{header}007,5,2.50,about 3,31.01.2026,yes,1999,1\n8,,,,,,,\n9,a,cheap,1,x,no,1,1\n", types
    )
    assert isinstance(good, Record)
    assert good.fields == {
        "id": "007", "title": "5", "price": 2.5, "rough": "about 3", "day": "31.01.2026", "stock.open": True,
        "year": "1999", "new": "1",
    }  # fmt: skip
    assert isinstance(empty, Record)
    assert empty.fields == {
        "id": "8", "title": "", "price": None, "rough": None, "day": None, "stock.open": None, "year": "", "new": "",
    }  # fmt: skip
    assert isinstance(bad, RejectedRecord)
    assert (
        bad.reason
        == "the column price has 'cheap', which is not a number with a decimal point: the index maps it as float"
    )
    assert mapped_types(MAPPINGS, {"index.mapping.ignore_malformed": "true"}, [])["price"].keeps_malformed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["price"], "does not name columns and their types"),
        (["price=float,stock"], "does not know the type 'float,stock'"),
        (["a=float,b=int,c=float"], "does not know the type 'int'"),
        (["a=float:2"], "does not know the type 'float:2'"),
        (["a=float", "a=integer"], "names the column 'a' twice"),
        (["a=date:%d.%m.%Y"], "does not know the type 'date:%d.%m.%Y'"),
    ],
)
def test_types_that_cannot_be_read_are_refused(given: list[str], message: str) -> None:
    with pytest.raises(UsageError, match="`types") as error:
        FileOptions(types=tuple(given))
    assert message in error.value.message


def test_types_are_refused_without_a_file_of_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(UsageError, match="applies only to CSV and TSV files"):
        find_sources([str(tmp_path / "a.jsonl")], FileOptions(types=("a=float",)))


def test_column_that_no_header_has_is_refused_before_the_load_and_in_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,price\na,1\n")
    types = ColumnTypes(parse_types(["pryce=float"]), {})
    sources = find_sources([str(tmp_path / "a.csv")], None)
    with pytest.raises(SourceError, match="a.csv has no column pryce, which `types` names") as error:
        check_sources(sources, 1000, ["text"], None, column_types=types)
    assert error.value.remedy.startswith("Did you mean price? Its columns are: text, price.")
    settings = ReadSettings(1000, "text", column_types=types)
    with pytest.raises(SourceError, match="has no column pryce"):
        list(read_records(sources, settings))
