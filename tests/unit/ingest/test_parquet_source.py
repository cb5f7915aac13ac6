"""Parquet files as sources: every row in its order, damage found, memory bounded."""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.file_sources import ParquetSource, find_sources
from es_sbert.installation import install_extra_command
from es_sbert.io.file_formats import FileFormat

ROWS = 5000
TABLE = pa.table(
    {
        "id": [f"d{number}" for number in range(ROWS)],
        "text": pa.array([f"text {number % 7}" for number in range(ROWS)]).dictionary_encode(),
        "at": pa.array([datetime(2026, 1, 1)] * ROWS, pa.timestamp("us", "UTC")),
        "tags": [["a", None] if number % 2 else None for number in range(ROWS)],
    }
)
EXPECTED = [
    {"id": f"d{n}", "text": f"text {n % 7}", "at": "2026-01-01T00:00:00Z", "tags": ["a", None] if n % 2 else None}
    for n in range(ROWS)
]


def write(path: Path, table: pa.Table = TABLE) -> Path:
    """The table in several row groups."""
    parquet.write_table(table, path, row_group_size=2000)
    return path


def read(path: Path, *, counter: ByteCounter | None = None, max_bytes: int = 1000) -> list[Record | RejectedRecord]:
    settings = ReadSettings(max_bytes, plain_text_field="text")
    sources = find_sources([str(path)], None)
    return list(read_records(sources, settings, counter))


def check(path: Path, *fields: str, id_field: str | None = None) -> None:
    check_sources(find_sources([str(path)], None), 1000, fields or ("text",), id_field)


def test_rows_are_read_in_order_with_row_numbers(tmp_path: Path) -> None:
    path, counter = write(tmp_path / "t.parquet"), ByteCounter()
    check(path, id_field="id")
    records = read(path, counter=counter)
    assert [record.fields for record in records if isinstance(record, Record)] == EXPECTED
    assert [record.origin.line for record in records] == list(range(1, ROWS + 1))
    assert counter.bytes == path.stat().st_size


def test_explicit_format_overrides_file_extension(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet").rename(tmp_path / "data")
    [source] = find_sources([str(path)], FileFormat.PARQUET)
    assert isinstance(source, ParquetSource)


@pytest.mark.parametrize(("fields", "id_field", "message"), [
    (("body",), None, "has no column body\n  Name one with `text_fields`; its columns are: id, text, at, tags"),
    (("text",), "key", "has no column key\n  Name one with `id_field`; its columns are: id, text, at, tags"),
])  # fmt: skip
def test_missing_columns_are_rejected_before_the_load(
    tmp_path: Path, fields: tuple[str, ...], id_field: str | None, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        check(write(tmp_path / "t.parquet"), *fields, id_field=id_field)


def test_struct_fields_are_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", pa.table({"meta": [{"title": "x", "id": 1}]}))
    check(path, "meta.title", id_field="meta.id")
    with pytest.raises(SourceError, match="no column metadata.title"):
        check(path, "metadata.title")


def test_duplicate_column_names_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]))
    with pytest.raises(SourceError, match="has two columns called text"):
        check(path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.parquet", b"", "the file is empty"),
        ("a.parquet", b"PAR1 no footer", "the Parquet data is damaged"),
        ("a.parquet", b'{"text": "JSON"}', "the Parquet data is damaged"),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), "the Parquet data is damaged"),
    ],
)  # fmt: skip
def test_invalid_files_are_rejected_before_the_load(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=message):
        check(tmp_path / name)


def test_empty_table_has_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", TABLE.slice(0, 0))
    check(path)
    assert read(path) == []


def test_damaged_parquet_page_yields_one_reject(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet")
    meta = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = meta.dictionary_page_offset or meta.data_page_offset
    data[start : start + 60] = os.urandom(60)
    path.write_bytes(data)
    check(path)
    *rows, last = read(path)
    assert [row.fields for row in rows if isinstance(row, Record)] == EXPECTED[:2000]
    assert isinstance(last, RejectedRecord)
    assert "ends early after the record of line 2000: the Parquet data is damaged" in last.reason


def test_invalid_value_rejects_only_its_row(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2, 3], "price": [1.0, float("inf"), float("nan")], "text": ["x", "y", "z" * 2000]})
    first, second, third = read(write(tmp_path / "t.parquet", table))
    assert isinstance(first, Record)
    assert first.source == b'{"id":1,"price":1.0,"text":"x"}'
    assert isinstance(second, RejectedRecord)
    assert (str(second.origin), second.reason) == (
        f"{tmp_path}/t.parquet:2",
        "the column price: Infinity cannot be written as JSON",
    )
    assert isinstance(third, RejectedRecord)
    assert "more than the limit" in third.reason


def test_parquet_from_stdin_is_rejected() -> None:
    with pytest.raises(UsageError, match="cannot be read as Parquet"):
        check_sources(find_sources(["-"], FileFormat.PARQUET), 1000, ["text"], None)


def test_file_removed_after_check_is_rejected(tmp_path: Path) -> None:
    sources = find_sources([str(write(tmp_path / "t.parquet"))], None)
    (tmp_path / "t.parquet").unlink()
    settings = ReadSettings(1000, plain_text_field="text")
    [reject] = read_records(sources, settings)
    assert isinstance(reject, RejectedRecord)
    assert "cannot be opened: No such file" in reject.reason


def test_reading_stops_on_stop_event(tmp_path: Path) -> None:
    stop = threading.Event()
    sources = find_sources([str(write(tmp_path / "t.parquet"))], None)
    records = read_records(sources, ReadSettings(1000, plain_text_field="text"), ByteCounter(), stop)
    for _ in range(10):
        next(records)
    stop.set()
    assert list(records) == []


def test_missing_extra_raises_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet")
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(UsageError, match=re.escape(install_extra_command("parquet"))):
        check(path)


_PEAK = """
import resource, sys, threading
from es_sbert.ingest.sources.file_sources import find_sources
from es_sbert.ingest.sources.document_source import read_records
from es_sbert.ingest.sources.document_source import ByteCounter, ReadSettings
settings = ReadSettings(1 << 20, plain_text_field="text")
records = read_records(find_sources(sys.argv[1:], None), settings, ByteCounter(), threading.Event())
print(sum(1 for _ in records), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_is_independent_of_row_count(tmp_path: Path) -> None:
    def peak(rows: int) -> int:
        """Kibibytes of a process that reads so many rows of two kilobytes."""
        path = tmp_path / f"{rows}.parquet"
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        writer = parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False)
        with writer:
            for start in range(0, rows, 2500):
                ids = range(start, start + 2500)
                writer.write_table(pa.table({"id": ids, "text": [f"{n} ".ljust(2000, "x") for n in ids]}, schema))
        done = subprocess.run([sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True)
        count, kibibytes = map(int, done.stdout.split())
        assert count == rows
        return kibibytes

    # 200 MB more to read; what a few batches take beside each other varies by some.
    assert peak(120_000) - peak(20_000) < 30_000
