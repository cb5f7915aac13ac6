"""Sources in pieces: together they give the records of the whole, each with its own line."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    DocumentSource,
    ReadContext,
    ReadSettings,
    Record,
    RejectedRecord,
)
from es_sbert.ingest.sources.file_sources import find_sources, split_file
from es_sbert.io.text_formats import CorruptStream
from tests.raised import raises_as_recorded


def records(source: DocumentSource) -> list[Record | RejectedRecord]:
    reading = ReadContext(ReadSettings(1 << 20, "text"), ByteCounter(), threading.Event())
    found = list(source.records(reading))
    assert source.size is None or reading.counter.bytes <= source.size
    return found


@given(
    st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=40),
    st.integers(1, 60),
    st.booleans(),
)
def test_splits_are_whole_lines_that_make_up_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int, ended: bool
) -> None:
    content = b"\n".join(lines) + (b"\n" if ended else b"")
    path = tmp_path_factory.mktemp("pieces") / "file"
    path.write_bytes(content)
    pieces = split_file("file", path, size)
    cut = [content[piece.start : piece.start + piece.size] for piece in pieces]
    assert b"".join(cut) == content
    assert all(part.endswith(b"\n") for part in cut[:-1])
    for piece in pieces:
        assert piece.first_line == content[: piece.start].count(b"\n") + 1
    # None is longer than asked for by more than its last line.
    assert all(len(part) - len(part.rstrip(b"\n").rpartition(b"\n")[2]) - 1 <= size for part in cut)


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.txt"])
@pytest.mark.parametrize("size", [1, 50, 1000, 1 << 20])
def test_split_records_equal_the_file_records(tmp_path: Path, name: str, size: int) -> None:
    path = tmp_path / name
    # A byte order mark in front belongs to the file, one at the beginning of a later line to the line.
    path.write_bytes(b"\xef\xbb\xbf" + b"".join(b'{"text": "%d"}\n\n\xef\xbb\xbfbroken\n' % n for n in range(100)))
    [source] = find_sources([str(path)], None)
    pieces = source.partitions(size)
    assert (len(pieces) > 1) is (size < 1 << 20)
    assert [record for piece in pieces for record in records(piece)] == records(source)


def test_parquet_is_split_by_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    table = pyarrow.table({"text": [f"number {n}" for n in range(1000)], "n": list(range(1000))})
    pyarrow.parquet.write_table(table, path, row_group_size=64)
    [source] = find_sources([str(path)], None)
    pieces = source.partitions(3000)
    assert 1 < len(pieces) < 16
    assert [record for piece in pieces for record in records(piece)] == records(source)
    pyarrow.parquet.write_table(table.slice(0, 0), path)
    [source] = find_sources([str(path)], None)
    assert [record for piece in source.partitions(10) for record in records(piece)] == []


def test_csv_and_compressed_files_are_not_split(tmp_path: Path) -> None:
    csv, packed, disguised = tmp_path / "docs.csv", tmp_path / "docs.jsonl.gz", tmp_path / "docs.jsonl"
    csv.write_text("text\n" + "a\n" * 100)
    packed.write_bytes(gzip.compress(b'{"text": "a"}\n' * 100))
    disguised.write_bytes(packed.read_bytes())
    for path in (csv, packed, disguised):
        [source] = find_sources([str(path)], None)
        assert source.partitions(10) == [source]


def test_file_truncated_after_split_raises_corrupt_stream(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 100)
    [source] = find_sources([str(path)], None)
    pieces: Any = source.partitions(500)
    path.write_bytes(b'{"text": "a"}\n' * 50)
    assert records(pieces[0])
    with raises_as_recorded(CorruptStream):
        records(pieces[-1])
