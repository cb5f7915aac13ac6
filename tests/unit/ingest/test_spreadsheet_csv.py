"""CSV as spreadsheets and pandas write it: found, checked and read as `es-sbert ingest` does."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.errors import SourceError
from es_sbert.ingest.sources.document_source import ReadSettings, Record, RejectedRecord, check_sources, read_records
from es_sbert.ingest.sources.file_sources import find_sources
from es_sbert.io.file_formats import FileOptions
from tests.raised import raises_as_recorded

SETTINGS = ReadSettings(max_bytes=1 << 20, plain_text_field="text")
ROWS = [{"id": "1", "text": "Größe, Höhe"}, {"id": "2", "text": "one; two"}]
COMMA = 'id,text\r\n1,"Größe, Höhe"\r\n2,one; two\r\n'
SEMICOLON = 'id;text\r\n1;Größe, Höhe\r\n2;"one; two"\r\n'
TAB = "id\ttext\r\n1\tGröße, Höhe\r\n2\tone; two\r\n"
# The beginning of a zip archive.
WORKBOOK = b"PK\x03\x04" + b"\0" * 30 + b"xl/workbook.xml"


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
        (COMMA.encode(), None), (SEMICOLON.encode(), None), (f"sep=;\r\n{SEMICOLON}".encode(), None),
        (gzip.compress(SEMICOLON.encode("utf-8-sig")), FileOptions(delimiter=";")),
        (SEMICOLON.encode() + b";\r\n;\r\n", None), (SEMICOLON.replace("\r\n", ";\r\n").encode(), None),
        (SEMICOLON.replace("id;text", "id;text;;").encode(), None),
    ],
)  # fmt: skip
def test_every_way_to_write_a_table_gives_the_same_documents(
    tmp_path: Path, data: bytes, options: FileOptions | None
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    assert fields(load(path, options)) == ROWS


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
    with raises_as_recorded(SourceError):
        load(tmp_path / name)


def test_file_in_windows_1252_is_read_with_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(COMMA.encode("windows-1252"))
    assert fields(load(tmp_path / "a.csv", FileOptions(encoding="windows-1252"))) == ROWS
    (tmp_path / "a.csv").write_bytes(COMMA.encode())
    with raises_as_recorded(SourceError):
        load(tmp_path / "a.csv", FileOptions(encoding="windows-1252"))


def test_pipe_in_windows_1252_ends_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    data = b"id,text\n" + b"1,plain\n" * 5 + COMMA.encode("windows-1252")
    threading.Thread(target=path.write_bytes, args=[data], daemon=True).start()
    with raises_as_recorded(SourceError):
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
    assert "value in column 3 or later, which has no name" in getattr(bad, "reason", "")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.xlsx", WORKBOOK),
        ("t.ARROW.gz", b"ARROW1\0\0"),
        ("a.csv.gz", gzip.compress(WORKBOOK)),
        ("a.jsonl", b"SQLite format 3\0" + b"\0" * 84),
        ("a.csv", b"id;text\r1;a\r2;b\r"),
        ("a.txt", TAB.encode("utf-16-le")),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with raises_as_recorded(SourceError):
        load(tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "windows-1252"])
def test_parts_of_a_file_give_the_documents_of_the_whole(tmp_path: Path, name: str, encoding: str) -> None:
    end = "" if encoding == "windows-1252" else "\u0a0a"
    lines = [orjson.dumps({"text": f"Größe {number} {end}"}).decode() for number in range(200)]
    (tmp_path / name).write_bytes("\n".join(lines).encode(encoding))
    given = FileOptions(encoding=encoding) if encoding == "windows-1252" else None
    [whole] = find_sources([str(tmp_path / name)], given)
    parts = whole.partitions(1000)
    assert (len(parts) > 1) == (encoding == "utf-8-sig")
    found = fields(list(read_records(parts, SETTINGS)))
    assert found == fields(list(read_records([whole], SETTINGS)))
    assert len(found) == 200
