"""FILE arguments, first looks, and reading of files and pipes."""

from __future__ import annotations

import gzip
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from es_sbert.errors import SourceError, UsageError
from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.file_sources import FileInput, TextSource, find_sources
from es_sbert.io.file_formats import FileFormat, FileOptions
from tests.raised import raises_as_recorded

SETTINGS = ReadSettings(max_bytes=1000, plain_text_field="text")


def check(path: Path, *fields: str, id_field: str | None = None) -> None:
    check_sources(find_sources([str(path)], None), 1000, fields or ("text",), id_field)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.jsonl", FileFormat.JSONL), ("a.ndjson.gz", FileFormat.JSONL), ("a.JSON", FileFormat.JSONL),
        ("a.csv.zst", FileFormat.CSV), ("a.b.tsv.ZSTD", FileFormat.TSV), ("a.txt", FileFormat.LINES),
    ],
)  # fmt: skip
def test_extension_sets_the_format(tmp_path: Path, name: str, form: FileFormat) -> None:
    (tmp_path / name).touch()
    file = FileInput(str(tmp_path / name), tmp_path / name, 0)
    assert find_sources([str(tmp_path / name)], None) == [TextSource(file, form)]
    assert find_sources([str(tmp_path / name)], FileFormat.LINES) == [TextSource(file, FileFormat.LINES)]


def test_patterns_are_expanded_and_sorted(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.txt", "deep/d.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [Path(source.name).name for source in find_sources([str(tmp_path / "**/*.jsonl")], None)]
    assert names == ["a.jsonl", "b.jsonl", "d.jsonl"]


@pytest.mark.parametrize("argument", ["missing.jsonl", "*.none", ".", "odd.dat"])
def test_invalid_source_arguments_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd.dat").touch()
    with raises_as_recorded(SourceError):
        find_sources([argument], None)


@pytest.mark.parametrize(
    "address",
    [
        "s3://anna:s3cret@bucket/a.jsonl", "HTTPS://host/a.jsonl?key=s3cret", "zip://a.csv::s3cret.zip",
        "file:///s3cret/a.jsonl", "postgresql+psycopg://anna:s3cret@db.example/shop",
    ],
)  # fmt: skip
def test_address_is_refused_without_its_secrets(address: str) -> None:
    with raises_as_recorded(UsageError) as caught:
        find_sources([address], FileFormat.JSONL)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress, bytes])
def test_compressed_standard_input_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "stdin").write_bytes(compress(b'{"n": 1}\n'))
    with (tmp_path / "stdin").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        [record] = read_records(find_sources(["-"], FileFormat.JSONL), SETTINGS)
    assert isinstance(record, Record)
    assert record.fields == {"n": 1}


def test_stdin_requires_a_format_and_is_accepted_once() -> None:
    with raises_as_recorded(UsageError):
        find_sources(["-"], None)
    with raises_as_recorded(UsageError):
        find_sources(["-", "-"], FileFormat.JSONL)

    with raises_as_recorded(UsageError):
        find_sources(["-"], FileFormat.JSONL)[0].partitions(1000)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.parquet", FileOptions(encoding="utf-16")),
        ("a.jsonl", FileOptions(delimiter=";")),
        ("-", FileOptions(FileFormat.PARQUET)),
        ("a.parquet", None),
    ],
)
def test_options_and_formats_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: FileOptions | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).touch()
    with raises_as_recorded((SourceError, UsageError)):
        check_sources(find_sources([name], options), 1000, ["text"], None)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b'[\n{"text": "a"}\n]'),
        ("a.jsonl", '{"text": "a"}'.encode("utf-16-le")),
        ("a.txt", b"\xef\xbb\xbf\n<!DOCTYPE html>\n<p>a"),
        ("a.tsv.gz", gzip.compress(b"id\tbody\n1\tx\n", mtime=0)),
        ("a.csv", b"text,text\n"),
        ("a.csv.gz", gzip.compress(b"id,text\n", mtime=0)[:12]),
    ],
)
def test_invalid_files_are_rejected_before_the_load(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with raises_as_recorded(SourceError):
        check(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.jsonl", b""), ("empty.csv.gz", b""), ("empty.tsv", b""), ("a.csv", b"\xef\xbb\xbftitle,id\n"),
        ("gzip-in-disguise.jsonl.zst", gzip.compress(b"{}", mtime=0)), ("plain.jsonl.gz", b"{}"),
        ("cut.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:15]),
    ],
)  # fmt: skip
def test_valid_files_pass_the_check(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    check(tmp_path / name, "title", "body", id_field="id")


def test_file_removed_after_check_is_rejected(tmp_path: Path) -> None:
    source = TextSource(FileInput("gone.jsonl", tmp_path / "gone.jsonl", 10), FileFormat.JSONL)
    with raises_as_recorded(SourceError):
        check_sources([source], 1000, ["text"], None)
    for reason in ("cannot be opened: No such file", "before its first record: reading failed: Is a directory"):
        [reject] = read_records([source], SETTINGS)
        assert isinstance(reject, RejectedRecord)
        assert reason in reject.reason
        (tmp_path / "gone.jsonl").mkdir(exist_ok=True)


def test_stop_ends_a_silent_pipe_and_drops_the_partial_line(tmp_path: Path) -> None:
    path = tmp_path / "pipe.jsonl"
    os.mkfifo(path)
    [source] = find_sources([str(path)], None)
    assert source.size is None
    stop, begun = threading.Event(), threading.Event()
    records: list[Record | RejectedRecord] = []

    def read() -> None:
        for record in read_records([source], SETTINGS, ByteCounter(), stop):
            records.append(record)
            begun.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with open(path, "wb", buffering=0) as writer:
        writer.write(b'{"n": 1}\n{"n": 2')
        assert begun.wait(60)
        stop.set()
        reader.join(60)
        assert not reader.is_alive()
    assert [record.fields for record in records if isinstance(record, Record)] == [{"n": 1}]
    assert len(records) == 1
