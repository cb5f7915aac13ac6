"""CSV as spreadsheets and pandas write it: found, checked and read as `es-sbert ingest` does."""

from __future__ import annotations

import gzip
import io
import os
import threading
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.sources.document_source import (
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.file_sources import FileOptions, find_sources
from es_sbert.io.file_formats import FileFormat

SETTINGS = ReadSettings(max_bytes=1 << 20, plain_text_field="text")
ROWS = [{"id": "1", "text": "Größe, Höhe"}, {"id": "2", "text": "one; two"}]
COMMA = 'id,text\r\n1,"Größe, Höhe"\r\n2,one; two\r\n'
SEMICOLON = 'id;text\r\n1;Größe, Höhe\r\n2;"one; two"\r\n'
TAB = "id\ttext\r\n1\tGröße, Höhe\r\n2\tone; two\r\n"
WORKBOOK = io.BytesIO()
with zipfile.ZipFile(WORKBOOK, "w") as _file:
    _file.writestr("xl/workbook.xml", "<workbook/>")


def load(path: Path, options: FileOptions | None = None, text: str = "text") -> list[Record | RejectedRecord]:
    """What a load would read of a file, after its check."""
    sources = find_sources([str(path)], options)
    check_sources(sources, SETTINGS.max_bytes, [text], None)
    return list(read_records(sources, SETTINGS))


def fields(records: list[Record | RejectedRecord]) -> list[dict[str, Any]]:
    assert all(isinstance(record, Record) for record in records), records
    return [record.fields for record in records if isinstance(record, Record)]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (COMMA.encode(), None),
        (SEMICOLON.encode(), None),
        (TAB.encode(), None),
        (f"sep=;\r\n{SEMICOLON}".encode(), None),
        (SEMICOLON.encode("utf-8-sig"), None),
        (f"\ufeff{TAB}".encode("utf-16-le"), None),
        (TAB.encode("utf-16-le"), FileOptions(encoding="utf-16-le")),
        (SEMICOLON.encode("windows-1252"), FileOptions(encoding="windows-1252")),
        (SEMICOLON.encode("latin-1"), FileOptions(delimiter=";", encoding="latin-1")),
        (gzip.compress(SEMICOLON.encode("windows-1252")), FileOptions(encoding="windows-1252")),
        (SEMICOLON.encode() + b";\r\n;\r\n", None),
        (SEMICOLON.replace("\r\n", ";\r\n").encode(), None),
        (SEMICOLON.replace("id;text", "id;text;;").encode(), None),
    ],
)
def test_every_way_to_write_a_table_gives_the_same_documents(
    tmp_path: Path, data: bytes, options: FileOptions | None
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    assert fields(load(path, options)) == ROWS


def test_lines_and_json_lines_are_decoded_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Größe\nx".encode("windows-1252"))
    (tmp_path / "a.jsonl").write_bytes('{"text": "Größe"}\n'.encode("utf-16"))
    assert fields(load(tmp_path / "a.txt", FileOptions(encoding="cp1252"))) == [{"text": "Größe"}, {"text": "x"}]
    assert fields(load(tmp_path / "a.jsonl")) == [{"text": "Größe"}]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt", "a.jsonl", "a.jsonl.gz", "a.csv.zst"])
def test_other_encoding_is_refused_before_the_load_wherever_it_begins(tmp_path: Path, name: str) -> None:
    separator = "\t" if ".tsv" in name else ","
    lines = [f"id{separator}text", *(f"{number}{separator}plain" for number in range(2999))]
    lines[2750] = f"x{separator}“Größe”"
    if "jsonl" in name:
        lines = [orjson.dumps({"text": line}).decode() for line in lines]
    data = "\n".join(lines).encode("windows-1252")
    if name.endswith("gz"):
        data = gzip.compress(data)
    if name.endswith("zst"):
        import zstandard

        data = zstandard.compress(data)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError) as error:
        load(tmp_path / name)
    assert "it is not UTF-8: line 2,751 has the byte 0x93, at offset " in error.value.message
    assert 'such as `encoding="windows-1252"`' in error.value.remedy


def test_header_in_windows_1252_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("id;Größe\n1;a\n".encode("windows-1252"))
    with pytest.raises(SourceError, match="line 1 has the byte 0xf6, at offset 5 of"):
        load(tmp_path / "a.csv", text="Größe")


def test_broken_line_of_a_utf8_file_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Größe\n".encode() * 1000 + b"caf\xc3\n")
    with pytest.raises(SourceError, match=r"line 1,001 has the byte 0xc3"):
        load(tmp_path / "a.txt")


def test_encoding_utf8_rejects_the_lines_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(COMMA.encode("windows-1252"))
    bad, good = load(tmp_path / "a.csv", FileOptions(encoding="utf-8"))
    assert isinstance(bad, RejectedRecord)
    assert bad.reason == "invalid utf-8: byte 0xf6 in column 2"
    assert isinstance(good, Record)


def test_byte_that_the_encoding_does_not_define_rejects_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(COMMA.encode("windows-1252") + b"3,\x81\n")
    *good, bad = load(tmp_path / "a.csv", FileOptions(encoding="windows-1252"))
    assert fields(good) == ROWS
    assert isinstance(bad, RejectedRecord)
    assert bad.reason == "invalid windows-1252: byte 0x81 in column 2"


def test_utf8_read_by_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(COMMA.encode())
    with pytest.raises(SourceError, match=r"a.csv is UTF-8, not windows-1252\n  Leave out `encoding`"):
        load(tmp_path / "a.csv", FileOptions(encoding="windows-1252"))


def test_pipe_in_windows_1252_ends_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    data = b"id,text\n" + b"1,plain\n" * 5 + COMMA.encode("windows-1252")
    threading.Thread(target=path.write_bytes, args=[data], daemon=True).start()
    with pytest.raises(SourceError, match="line 8 has the byte 0xf6"):
        load(path)


def test_pipe_that_holds_a_workbook_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=[WORKBOOK.getvalue()], daemon=True).start()
    with pytest.raises(SourceError, match=r"it is an Excel workbook, not CSV\n  Save the sheet as CSV UTF-8"):
        load(path)


def test_pandas_index_without_a_name_is_called_index(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b",text\n0,a\n1,b\n")
    assert fields(load(tmp_path / "a.csv")) == [{"index": "0", "text": "a"}, {"index": "1", "text": "b"}]
    (tmp_path / "b.csv").write_bytes(b",index,text\n0,x,a\n")
    assert fields(load(tmp_path / "b.csv")) == [{"level_0": "0", "index": "x", "text": "a"}]


def test_value_in_a_column_without_a_name_rejects_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text,,\n1,a,,\n2,b,,note\n")
    good, bad = load(tmp_path / "a.csv")
    assert fields([good]) == [{"id": "1", "text": "a"}]
    assert isinstance(bad, RejectedRecord)
    assert bad.reason == "the row has a value in column 3 or later, which has no name in the header"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "a.xlsx",
            WORKBOOK.getvalue(),
            "it is an Excel workbook\n  Save the sheet as CSV",
        ),
        ("a.csv", b"%PDF-1.4\n%", "it is a PDF document, not CSV"),
        ("a.txt", b"PAR1\x15\x00", 'it is a Parquet file, not plain text\n  Add `format="parquet"`'),
        ("a.jsonl", b"<!doctype html><html>", "it is an HTML page, not JSONL"),
        ("a.csv.gz", WORKBOOK.getvalue(), "does not hold gzip data: it is an Excel workbook"),
        ("a.csv.gz", gzip.compress(WORKBOOK.getvalue()), "it is an Excel workbook, not CSV"),
        ("a.csv.gz", gzip.compress(gzip.compress(COMMA.encode())), "it is an archive or a compressed file, not CSV"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "cannot be loaded: it is an Excel workbook"),
        ("a.xls", b"<html><table>", "cannot be loaded: it is an HTML page"),
        ("a.gz", gzip.compress(b"x"), 'does not indicate its format\n  Add `format="jsonl"`, csv'),
        (
            "a.csv",
            b"id;text\r1;a\r2;b\r",
            "whose lines end in a carriage return alone, not CSV\n  Convert it: tr '\\r' '\\n'",
        ),
        ("a.txt", b"a\rb\rc", "whose lines end in a carriage return alone, not plain text"),
        ("a.zip", b"PK\x03\x04" + b"\0" * 40, "cannot be loaded: it is an archive or a compressed file\n  Unpack it"),
        ("a.csv", TAB.encode("utf-16-le"), 'UTF-16 without a byte order mark, not CSV\n  Add `encoding="utf-16-le"`'),
        ("a.csv", b"id;price, EUR;text\n1;1,5;a\n", 'If a semicolon separates its columns, add `delimiter=";"`.'),
        ("a.tsv", b"id;text\n1;a\n", 'add `format="csv"` and `delimiter=";"`.'),
    ],
)
def test_other_files_are_named_with_the_way_out(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError) as error:
        load(tmp_path / name)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FileOptions(delimiter=";"), "`delimiter` applies only to CSV files"),
        (FileOptions(FileFormat.PARQUET, encoding="latin-1"), "`encoding` applies only to text files"),
    ],
)
def test_options_that_apply_to_no_file_are_refused(tmp_path: Path, options: FileOptions, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}")
    with pytest.raises(UsageError, match=message):
        find_sources([str(tmp_path / "a.jsonl")], options)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "windows-1252"])
def test_parts_of_a_file_give_the_documents_of_the_whole(tmp_path: Path, name: str, encoding: str) -> None:
    lines = [
        orjson.dumps({"text": f"Größe {number} \u0a0a"[: -1 if encoding == "windows-1252" else None]}).decode()
        for number in range(200)
    ]
    (tmp_path / name).write_bytes("\n".join(lines).encode(encoding))
    given = FileOptions(encoding="windows-1252") if encoding == "windows-1252" else None
    [whole] = find_sources([str(tmp_path / name)], given)
    parts = whole.partitions(1000)
    assert (len(parts) > 1) == (encoding != "utf-16")

    def read(sources: Any) -> list[Any]:
        return fields(list(read_records(sources, SETTINGS)))

    assert read(parts) == read([whole])
    assert len(read(parts)) == 200
