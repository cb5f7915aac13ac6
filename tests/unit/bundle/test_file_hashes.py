"""Hashes of files are remembered for as long as the files stay as they are."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from es_sbert.bundle import file_hashes
from es_sbert.bundle.bundle import hash_file, remembered_file_hash
from es_sbert.bundle.file_hashes import forget_hashes, remembered_hash

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is remembered on Windows")

KEPT = "file-hashes.json"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache, and a clock by which every file was written long ago."""
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    later = time.time() + 60
    monkeypatch.setattr(file_hashes.time, "time", lambda: later)
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    return path


class Reader:
    """Hashes a file and counts how often."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return hash_file(self.path)

    def remembered(self) -> str:
        return remembered_hash("sha256", [self.path], self)


def test_a_file_is_read_once(file: Path) -> None:
    reader = Reader(file)
    assert [reader.remembered(), reader.remembered()] == [hash_file(file)] * 2
    assert reader.count == 1


def test_each_kind_of_hash_has_its_own(file: Path) -> None:
    remembered_hash("sha256", [file], lambda: "a")
    assert remembered_hash("tensors", [file], lambda: "b") == "b"
    assert remembered_hash("sha256", [file], lambda: "c") == "a"


def test_another_content_of_the_same_size_and_time_is_read(file: Path) -> None:
    reader = Reader(file)
    reader.remembered()
    before = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert reader.remembered() == hash_file(file)
    assert reader.count == 2


def test_a_file_that_took_the_place_of_another_is_read(file: Path, tmp_path: Path) -> None:
    reader = Reader(file)
    reader.remembered()
    other = tmp_path / "other"
    other.write_bytes(b"two")
    other.replace(file)
    assert reader.remembered() == hash_file(file)


def test_one_of_several_files_changes(file: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.write_bytes(b"two")
    remembered_hash("tensors", [file, second], lambda: "before")
    second.write_bytes(b"three")
    assert remembered_hash("tensors", [file, second], lambda: "after") == "after"


def test_a_file_that_has_just_been_written_is_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("ES_SBERT_CACHE", str(file.parent / "cache"))
    reader = Reader(file)
    assert [reader.remembered(), reader.remembered()] == [hash_file(file)] * 2
    assert reader.count == 2


def test_a_file_that_is_written_while_it_is_read_is_not_remembered(file: Path) -> None:
    def write_and_hash() -> str:
        file.write_bytes(b"longer than before")
        return "of no content in particular"

    remembered_hash("sha256", [file], write_and_hash)
    assert remembered_file_hash(file) == hash_file(file)


def test_forgotten_files_are_read_again(file: Path) -> None:
    reader = Reader(file)
    reader.remembered()
    forget_hashes()
    reader.remembered()
    assert reader.count == 2


def test_removed_files_are_forgotten(file: Path, cache: Path, tmp_path: Path) -> None:
    remembered_file_hash(file)
    file.unlink()
    other = tmp_path / "other"
    other.write_bytes(b"two")
    remembered_file_hash(other)
    assert "other" in (cache / KEPT).read_text()
    assert "weights" not in (cache / KEPT).read_text()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', '{"a": {"hash": "b"}}', "\udcff"])
def test_unreadable_memory_is_replaced(file: Path, cache: Path, content: str) -> None:
    cache.mkdir()
    (cache / KEPT).write_bytes(os.fsencode(content))
    reader = Reader(file)
    assert [reader.remembered(), reader.remembered()] == [hash_file(file)] * 2
    assert reader.count == 1


def test_without_a_cache_files_are_read_each_time(file: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    reader = Reader(file)
    assert [reader.remembered(), reader.remembered()] == [hash_file(file)] * 2
    assert reader.count == 2
    forget_hashes()


def test_a_name_that_is_no_unicode_is_remembered(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    path.write_bytes(b"one")
    reader = Reader(path)
    assert [reader.remembered(), reader.remembered()] == [hash_file(path)] * 2
    assert reader.count == 1


def test_a_missing_file_is_the_business_of_who_hashes_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remembered_file_hash(tmp_path / "missing")
