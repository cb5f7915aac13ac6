"""Excel workbooks as records."""

from __future__ import annotations

import datetime as dt
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.find_sources import FileOptions, find_sources
from es_sbert.io.file_formats import FileFormat

SETTINGS = ReadSettings(max_bytes=2000, plain_text_field="text")


def write(path: Path, rows: Sequence[Sequence[Any]], edit: Callable[[Any], None] = lambda book: None) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    edit(book)
    book.save(path)
    return path


def load(path: Path, *required: str, sheet: str | None = None) -> list[Record | RejectedRecord]:
    sources = find_sources([str(path)], FileOptions(sheet=sheet))
    check_sources(sources, SETTINGS.max_bytes, required, None)
    return list(read_records(sources, SETTINGS, ByteCounter(), threading.Event(), pytest.fail))


def fields(records: list[Record | RejectedRecord]) -> list[dict[str, Any]]:
    assert all(isinstance(record, Record) for record in records), records
    return [record.fields for record in records if isinstance(record, Record)]


def reasons(records: list[Record | RejectedRecord]) -> list[str]:
    return [f"{r.origin.line}: {r.reason}" for r in records if isinstance(r, RejectedRecord)]


def test_values_are_what_the_cells_hold(tmp_path: Path) -> None:
    def as_time(book: Any) -> None:
        book.active["F2"].number_format = "[h]:mm:ss"

    header = ["id", "text", "price", "sold", "day", "took", "at", "time", "empty"]
    row = [
        7,
        "Größe",
        1.5,
        True,
        dt.date(2026, 1, 31),
        dt.timedelta(hours=26),
        dt.datetime(2026, 1, 31, 12),
        dt.time(9, 30),
    ]
    path = write(tmp_path / "a.xlsx", [header, row, [8.0, "b"]], as_time)
    first, second = fields(load(path, "text"))
    assert first == {
        "id": 7, "text": "Größe", "price": 1.5, "sold": True, "day": "2026-01-31", "took": "P1DT2H",
        "at": "2026-01-31T12:00:00", "time": "09:30:00", "empty": None,
    }  # fmt: skip
    assert second == dict.fromkeys(header) | {"id": 8, "text": "b"}
    assert isinstance(second["id"], int)


def test_rows_are_numbered_as_in_the_workbook_and_empty_ones_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", [[], ["text"], [], ["a"], [None], ["b"]])
    assert [(record.origin.line, record.fields) for record in load(path, "text") if isinstance(record, Record)] == [
        (4, {"text": "a"}),
        (6, {"text": "b"}),
    ]


def test_merged_cells_have_their_value_once(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.xlsx", [["text", "kind"], ["a", "x"], ["b", None]], lambda b: b.active.merge_cells("B2:B3")
    )
    assert fields(load(path)) == [{"text": "a", "kind": "x"}, {"text": "b", "kind": None}]


def test_formulas_give_their_stored_value_and_are_rejected_without_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", [["id", "text"], [1, "a"], [2, '="a"&"b"'], ["=1+1", None]])
    assert reasons(load(path)) == [
        "3: the column text: its formula was never calculated: open the workbook in Excel and save it",
        "4: the column id: its formula was never calculated: open the workbook in Excel and save it",
    ]
    # As Excel saves it: with the value next to the formula.
    entries: dict[str, bytes] = {}
    with zipfile.ZipFile(path) as book:
        entries = {name: book.read(name) for name in book.namelist()}
    # openpyxl writes `<v />`, and `<v></v>` where lxml is installed.
    sheet = entries["xl/worksheets/sheet1.xml"].replace(b"<v />", b"<v></v>")
    sheet = sheet.replace(b'<c r="B3"><f>"a"&amp;"b"</f><v></v>', b'<c r="B3" t="str"><f>"a"&amp;"b"</f><v>ab</v>')
    sheet = sheet.replace(b"<f>1+1</f><v></v>", b"<f>1+1</f><v>2</v>")
    with zipfile.ZipFile(path, "w") as book:
        for name, data in (entries | {"xl/worksheets/sheet1.xml": sheet}).items():
            book.writestr(name, data)
    assert fields(load(path)) == [{"id": 1, "text": "a"}, {"id": 2, "text": "ab"}, {"id": 2, "text": None}]


def test_errors_and_values_without_a_column_name_reject_their_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", [["text", None], ["a"], ["#N/A"], ["b", "note"], ["x" * 3000]])
    assert reasons(load(path)) == [
        "3: the column text: the cell has the error #N/A",
        "4: the column column 2: it has a value, but no name in the header",
        "5: the row has 3,011 bytes as JSON, more than `max_document_bytes` allows",
    ]


def test_wrong_dimensions_lose_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", [["id", "text"], [1, "a"], [2, "b"]])
    with zipfile.ZipFile(path) as book:
        entries = {name: book.read(name) for name in book.namelist()}
    # openpyxl writes `<v />`, and `<v></v>` where lxml is installed.
    sheet = entries["xl/worksheets/sheet1.xml"].replace(b"<v />", b"<v></v>")
    assert b'<dimension ref="A1:B3"' in sheet
    entries["xl/worksheets/sheet1.xml"] = sheet.replace(b'<dimension ref="A1:B3"', b'<dimension ref="A1"')
    with zipfile.ZipFile(path, "w") as book:
        for name, data in entries.items():
            book.writestr(name, data)
    assert fields(load(path)) == [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]


def test_sheet_is_the_only_visible_one_or_named(tmp_path: Path) -> None:
    def add_hidden(book: Any) -> None:
        book.create_sheet("lists").append(["text"])
        book["lists"].append(["hidden"])
        book["lists"].sheet_state = "hidden"

    def add_sheet(book: Any) -> None:
        add_hidden(book)
        book.create_sheet("More").append(["text"])

    path = write(tmp_path / "a.xlsx", [["text"], ["a"]], add_hidden)
    assert fields(load(path)) == [{"text": "a"}]
    assert fields(load(path, sheet="lists")) == [{"text": "hidden"}]
    path = write(tmp_path / "b.xlsx", [["text"], ["a"]], add_sheet)
    with pytest.raises(SourceError, match=r"has 2 sheets: 'Sheet', 'More'\n  Set `sheet` to one of them"):
        load(path)
    with pytest.raises(SourceError, match="has no sheet 'Other'\n  Set `sheet` to one of its sheets: 'Sheet', 'lists'"):
        load(path, sheet="Other")
    assert fields(load(path, sheet="Sheet")) == [{"text": "a"}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"id,text\n1,a\n", 'is not an Excel workbook (xlsx)\n  If it is CSV, add `format="csv"`'),
        (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"),
            "it is an encrypted Excel workbook",
        ),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "it is an old (.xls) or an encrypted"),
        (b"<html>", "it is an HTML page"),
        (b"PK\x03\x04" + b"\0" * 30 + b"xl/", "the Excel workbook is damaged"),
        (b"", "is not an Excel workbook"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.xlsx").write_bytes(data)
    with pytest.raises(SourceError) as error:
        load(tmp_path / "a.xlsx")
    assert message in str(error.value)


def test_workbook_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", [["text"], *([f"text {number}"] for number in range(500))])
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(SourceError, match="the Excel workbook is damaged"):
        load(path)


def test_missing_column_and_bad_headers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no column body\n.*its columns are: text, 2026"):
        load(write(tmp_path / "a.xlsx", [["text", 2026], ["a"]]), "body")
    with pytest.raises(SourceError, match="column 2 of the header has no name"):
        load(write(tmp_path / "b.xlsx", [["text", None, "x"], ["a"]]))
    assert load(write(tmp_path / "c.xlsx", [])) == []


def test_pipes_and_compressed_workbooks_are_refused(tmp_path: Path) -> None:
    [stdin] = find_sources(["-"], FileFormat.XLSX)
    with pytest.raises(UsageError, match="the index of a workbook is at its end"):
        check_sources([stdin], 1000, (), None)
    (tmp_path / "a.xlsx.gz").write_bytes(b"")
    with pytest.raises(SourceError, match="an Excel workbook inside gzip\n  Unpack it first"):
        load(tmp_path / "a.xlsx.gz")


def test_remote_workbook_is_read_in_place(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    path = write(tmp_path / "a.xlsx", [["text"], ["a"], ["=1"]])
    address = "memory://workbooks/a.xlsx"
    with fsspec.open(address, "wb") as file:
        file.write(path.read_bytes())
    sources = find_sources([address], None)
    check_sources(sources, 1000, ["text"], None)
    records = list(read_records(sources, SETTINGS, ByteCounter(), threading.Event(), pytest.fail))
    assert fields(records[:1]) == [{"text": "a"}]
    assert len(reasons(records)) == 1


def test_stop_ends_the_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", [["text"], *([f"text {number}"] for number in range(100))])
    stop = threading.Event()
    records = read_records(find_sources([str(path)], None), SETTINGS, ByteCounter(), stop, pytest.fail)
    next(records)
    stop.set()
    assert len(list(records)) == 0


def test_whole_size_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", [["text"], ["a"]])
    counter = ByteCounter()
    list(read_records(find_sources([str(path)], None), SETTINGS, counter, threading.Event(), pytest.fail))
    assert counter.bytes == len(path.read_bytes())
