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
from es_sbert.ingest.sources.document_source import (
    ByteCounter,
    ReadSettings,
    Record,
    RejectedRecord,
    check_sources,
    read_records,
)
from es_sbert.ingest.sources.file_sources import find_sources
from es_sbert.io.tables import read_table
from tests.raised import raises_as_recorded

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


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_header_of_a_million_columns_is_refused(tmp_path: Path, name: str) -> None:
    names = ("," if name == "a.csv" else "\t").join(f"c{number}" for number in range(1_000_000))
    (tmp_path / name).write_text(f"{names}\n1\n")
    settings = ReadSettings(max_bytes=16 * MIB, plain_text_field="text")
    sources = find_sources([str(tmp_path / name)], None)
    with raises_as_recorded(SourceError):
        check_sources(sources, settings.max_bytes, ("text",), None)
    with raises_as_recorded(SourceError):
        read_table(tmp_path / name, ["text"])


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs the devices of POSIX")
def test_devices_and_sockets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("b.csv")
    for name in ("a.csv", "b.csv"):
        with raises_as_recorded(SourceError):
            load(Path(name))
        with raises_as_recorded(SourceError):
            read_table(Path(name), ["text"])
    Path("c.jsonl").symlink_to(os.devnull)
    assert load(Path("c.jsonl")) == []
