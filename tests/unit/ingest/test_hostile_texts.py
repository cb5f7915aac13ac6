"""Text files that expand, never end, or have endless lines or headers: bounded memory and time, or refused."""

from __future__ import annotations

import gzip
import os
import socket
import threading
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from es_sbert.errors import SourceError
from es_sbert.ingest import read_texts
from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.file_sources import FileOptions, find_sources
from es_sbert.io import tables
from es_sbert.io.file_formats import decompress
from es_sbert.io.tables import read_table
from es_sbert.io.text_formats import MAX_COLUMNS

SETTINGS = ReadSettings(max_bytes=2000, plain_text_field="text")
MIB = 1 << 20

pytestmark = pytest.mark.timeout(100)


def load(path: Path, stop: threading.Event | None = None) -> list[Record | RejectedRecord]:
    sources = find_sources([str(path)], None)
    check_sources(sources, SETTINGS.max_bytes, (), None)
    return list(read_records(sources, SETTINGS, ByteCounter(), stop or threading.Event()))


def bomb(piece: bytes, mib: int, kind: str) -> bytes:
    """Compressed repetitions of a piece."""
    data = piece * (16 * MIB // len(piece))
    return (gzip.compress(data) if kind == "gz" else zstandard.compress(data)) * (mib // 16)


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize(("form", "start"), [("jsonl", b""), ("csv", b"text\n"), ("csv", b'text\n"'), ("txt", b"")])
def test_line_that_expands_is_skipped_in_bounded_memory(tmp_path: Path, form: str, start: bytes, kind: str) -> None:
    path = tmp_path / f"a.{form}.{kind}"
    head = gzip.compress(start) if kind == "gz" else zstandard.compress(start)
    path.write_bytes(head + bomb(b"a", 256, kind))
    tracemalloc.start()
    try:
        [rejected] = load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(rejected, RejectedRecord)
    assert "268,435,45" in rejected.reason
    assert "more than the limit" in rejected.reason
    assert peak < 100 * MIB


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_compressed_data_is_passed_on_in_small_pieces(kind: str) -> None:
    assert max(map(len, decompress([bomb(b"a\n", 64, kind)]))) <= MIB


def test_load_of_blank_lines_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(bomb(b"\n", 8192, "zst"))
    [source] = find_sources([str(tmp_path / "a.jsonl.zst")], None)
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    assert list(read_records([source], SETTINGS, ByteCounter(), stop)) == []


def test_open_quote_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'text\n"' + b"a,b\n" * 10_000 + b"c\n")
    records = load(tmp_path / "a.csv")
    assert isinstance(records[0], RejectedRecord)
    assert "a quote that is opened in line 2 is not closed" in records[0].reason


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_header_of_a_million_columns_is_refused(tmp_path: Path, name: str) -> None:
    names = ("," if name == "a.csv" else "\t").join(f"c{number}" for number in range(1_000_000))
    (tmp_path / name).write_text(f"{names}\n1\n")
    settings = ReadSettings(max_bytes=16 * MIB, plain_text_field="text")
    sources = find_sources([str(tmp_path / name)], None)
    message = "the header has 1,000,000 columns, more than the limit of 16,384: leave some out"
    with pytest.raises(SourceError, match=message):
        check_sources(sources, settings.max_bytes, ("text",), None)
    with pytest.raises(SourceError, match=message):
        read_table(tmp_path / name, ["text"])


def test_messages_do_not_list_all_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",".join(f"column{number}" for number in range(MAX_COLUMNS)) + "\n")
    sources = find_sources([str(path)], None)
    with pytest.raises(SourceError, match="no column text") as error:
        check_sources(sources, MIB, ("text",), None)
    assert len(error.value.remedy) < 2000


def test_nul_character_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text\na\0b\n")
    assert [r.fields["text"] for r in load(tmp_path / "a.csv") if isinstance(r, Record)] == ["a\0b"]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs the devices of POSIX")
def test_devices_and_sockets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("b.csv")
    for name in ("a.csv", "b.csv"):
        with pytest.raises(SourceError, match=f"{name} is a device or a socket\n  Name a file or a pipe"):
            load(Path(name))
        with pytest.raises(SourceError, match=f"{name} is a pipe, a device or a socket\n  Write its data to a file"):
            read_table(Path(name), ["text"])
    Path("c.jsonl").symlink_to(os.devnull)
    assert load(Path("c.jsonl")) == []


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="other systems block when a named pipe is opened")
def test_pipe_that_nobody_writes_to_can_be_stopped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    assert load(tmp_path / "a.jsonl", stop) == []


def test_row_of_a_table_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_MAX_BYTES", 1000)
    for name, text in (("a.jsonl", '{"text": "%s"}'), ("a.csv", "text\n%s"), ("a.tsv", "text\n%s")):
        (tmp_path / name).write_text(text % ("a" * 2000))
        with pytest.raises(SourceError, match=r"bytes, more than the limit\n  Fix these rows"):
            read_table(tmp_path / name, ["text"])


def test_record_of_texts_to_encode_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_texts, "_MAX_BYTES_OF_ALL", 1000)
    (tmp_path / "a.txt").write_bytes(b"a\n" + b"b" * 2000)
    with pytest.raises(SourceError, match=r"a.txt:2: the line has 2,000 bytes, more than the limit"):
        list(read_texts.read_texts(str(tmp_path / "a.txt"), FileOptions(), "text"))
