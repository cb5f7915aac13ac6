"""Files that are not text are named for what they are."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pytest

from es_sbert.io.file_formats import recognize_file, recognize_markup, recognize_utf16

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def archive(**entries: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, text in entries.items():
            file.writestr(name.replace("__", "/").replace("_dot_", "."), text)
    return out.getvalue()


def tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        file.addfile(tarfile.TarInfo("a.csv"))
    return out.getvalue()


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (archive(a_dot_csv="id,text"), "an archive or a compressed file"),
        (archive(xl__workbook_dot_xml="<x/>"), "an Excel workbook"),
        (archive(mimetype="application/vnd.oasis.opendocument.spreadsheet"), "OpenDocument spreadsheet"),
        (archive(mimetype="application/vnd.oasis.opendocument.text"), "an Office document"),
        (OLE + b"\0" * 600, "an Excel workbook"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"PAR1\x15\x04", "a Parquet file"),
        (b"ARROW1\0\0", "an Arrow or Feather file"),
        (gzip.compress(b"x"), "an archive or a compressed file"),
        (b"\x28\xb5\x2f\xfd\0", "an archive or a compressed file"),
        (bz2.compress(b"x"), "an archive or a compressed file"),
        (lzma.compress(b"x"), "an archive or a compressed file"),
        (b"7z\xbc\xaf\x27\x1c", "an archive or a compressed file"),
        (b"Rar!\x1a\x07\0", "an archive or a compressed file"),
        (tar(), "an archive or a compressed file"),
    ],
)
def test_binary_files_are_recognized(head: bytes, kind: str) -> None:
    found = recognize_file(head)
    assert found is not None
    assert kind in found.kind
    assert found.remedy.endswith((".", "…"))


def test_sqlite_is_recognized(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute("CREATE TABLE a (b)")
    db.close()
    found = recognize_file((tmp_path / "a.db").read_bytes())
    assert found is not None
    assert "SQLite" in found.kind


@pytest.mark.parametrize(
    "head", [b"", b"id,text\n", b"PAR1 is a word\n", b"PAR1\n", b"BZh1 is one\n", b"PK,text\n", b"{}", "Größe".encode()]
)
def test_texts_are_not_taken_for_binary_files(head: bytes) -> None:
    assert recognize_file(head) is None
    assert recognize_utf16(head) is None
    assert recognize_markup(head) is None


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_byte_order_mark_is_named_with_its_encoding(encoding: str) -> None:
    found = recognize_utf16("id;text\n1;größer".encode(encoding))
    assert found is not None
    assert f'`encoding="{encoding}"`' in found.remedy
    assert recognize_utf16(f"\ufeffid;text\n{'a' * 50}".encode(encoding)) is None


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"<!DOCTYPE html>", "HTML"), (b"\n <html lang='de'>", "HTML"), (b"<table border=1>", "HTML"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>", "XML"),
    ],
)  # fmt: skip
def test_markup_is_recognized(head: bytes, kind: str) -> None:
    found = recognize_markup(head)
    assert found is not None
    assert kind in found.kind
