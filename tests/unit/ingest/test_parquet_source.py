"""Parquet files as sources, damaged and hostile ones too."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from es_sbert.errors import SourceError
from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.file_sources import find_sources
from es_sbert.io.file_formats import open_parquet, parquet_batches
from tests.raised import raises_as_recorded

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


def test_struct_fields_are_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", pa.table({"meta": [{"title": "x", "id": 1}]}))
    check(path, "meta.title", id_field="meta.id")
    with raises_as_recorded(SourceError):
        check(path, "metadata.title")


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]))
    with raises_as_recorded(SourceError):
        check(path)


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


SETTINGS = ReadSettings(max_bytes=1 << 20, plain_text_field="text")


def load(path: Path) -> list[Record | RejectedRecord]:
    sources = find_sources([str(path)], None)
    check_sources(sources, SETTINGS.max_bytes, ("text",), None)
    return list(read_records(sources, SETTINGS))


def test_dictionary_bomb_is_decoded_a_few_rows_at_a_time(tmp_path: Path) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), ["a" * 100_000])
    # Without its schema, the column is not read as a dictionary.
    parquet.write_table(pa.table({"text": values}), tmp_path / "a.parquet", store_schema=False, compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with open_parquet(tmp_path / "a.parquet") as file:
        assert max(batch.nbytes for batch in parquet_batches(file)) < 20_000_000
    records = load(tmp_path / "a.parquet")
    assert len(records) == 10_000


def read_damaged(path: Path) -> None:
    """Load many damaged copies of a file; any exception but a refusal is raised."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    whole, made = path.read_bytes(), random.Random(7)
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(made.choice((1, 2, 5))):
            data[made.randrange(len(data))] = made.choice((0, 127, 128, 255, made.randrange(256)))
        path.write_bytes(data)
        with contextlib.suppress(SourceError):
            load(path)


@pytest.mark.skipif(sys.platform == "win32", reason="limits the memory of a process")
def test_damaged_files_are_refused_without_a_crash(tmp_path: Path) -> None:
    columns = {"text": ["a", "b", None] * 20, "list": [["x"], [], None] * 20, "number": list(range(60))}
    table = pa.table({**columns, "word": pa.array(["k"] * 60).dictionary_encode()})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    # In a process of its own, because Arrow may crash.
    code = f"from pathlib import Path; from {__name__} import read_damaged; read_damaged(Path('a.parquet'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
