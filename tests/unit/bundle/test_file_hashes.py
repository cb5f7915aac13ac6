"""Hashes of files are remembered for as long as the files stay as they are."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from es_sbert.bundle import file_hashes
from es_sbert.bundle.bundle import hash_file, remembered_file_hash
from es_sbert.bundle.file_hashes import remembered_hash
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.transformer_module import TextModel
from tests.tiny import write_tiny_bert

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


@pytest.fixture
def read(file: Path) -> Mock:
    """Hashes the file."""
    return Mock(side_effect=partial(hash_file, file))


def remembered(file: Path, read: Mock) -> str:
    return remembered_hash("sha256", [file], read)


def test_a_tokenizer_is_hashed_again_only_if_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_sentence_model(write_tiny_bert(tmp_path / "tiny"))
    monkeypatch.setattr(TextModel, "tokenizer_json", lambda model: {})
    assert read_sentence_model(model.folder) == model
    os.utime(model.tokenizer_file)
    assert read_sentence_model(model.folder).fingerprint != model.fingerprint


def test_another_content_of_the_same_size_and_time_is_read(file: Path, read: Mock) -> None:
    remembered(file, read)
    before = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert remembered(file, read) == hash_file(file)
    assert read.call_count == 2
    with pytest.raises(FileNotFoundError):
        remembered_file_hash(file.with_name("gone"))


def test_another_kind_and_a_change_of_a_second_file_are_computed_anew(file: Path) -> None:
    files = [file, file.with_name("second")]
    files[1].write_bytes(b"two")
    assert remembered_hash("sha256", files, lambda: "a") == "a"
    assert remembered_hash("tensors", files, lambda: "b") == "b"
    files[1].write_bytes(b"three")
    assert remembered_hash("sha256", files, lambda: "c") == "c"


def test_a_file_just_written_is_read_again(file: Path, read: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("ES_SBERT_CACHE", str(file.parent / "cache"))
    assert [remembered(file, read), remembered(file, read)] == [hash_file(file)] * 2
    assert read.call_count == 2


def test_a_file_that_is_written_while_it_is_read_is_not_remembered(file: Path) -> None:
    remembered_hash("sha256", [file], lambda: str(file.write_bytes(b"longer than before")))
    assert remembered_file_hash(file) == hash_file(file)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', '{"a": {"hash": "b"}}', "\udcff"])
def test_a_file_is_read_once_and_unreadable_memory_replaced(file: Path, read: Mock, cache: Path, content: str) -> None:
    cache.mkdir()
    (cache / KEPT).write_bytes(os.fsencode(content))
    assert [remembered(file, read), remembered(file, read)] == [hash_file(file)] * 2
    assert read.call_count == 1
