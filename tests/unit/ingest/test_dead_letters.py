"""The dead-letter file."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from threading import Thread

import orjson
import pytest

from es_sbert.errors import OutputError
from es_sbert.filesystem import rename_lock
from es_sbert.ingest.dead_letters import (
    DeadLetters,
    check_dead_letters_writable,
    dead_letter_keys,
    default_dead_letters_path,
    quarantine_path,
)
from es_sbert.ingest.sources.document_source import Origin, RejectedRecord


@pytest.mark.parametrize(
    ("index", "name"),
    [
        ("docs", "docs.dead-letters.jsonl"),
        ("docs-2026.11", "docs-2026.11.dead-letters.jsonl"),
        ("a_b", "a_b.dead-letters.jsonl"),
        ("a+b", "a%2Bb.dead-letters.jsonl"),
        ("größe", "größe.dead-letters.jsonl"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd.dead-letters.jsonl"),
        ("..", "%2E..dead-letters.jsonl"),
        ("a:b*c\x00d", "a%3Ab%2Ac%00d.dead-letters.jsonl"),
    ],
)
def test_default_path_escapes_the_index_name(index: str, name: str) -> None:
    assert default_dead_letters_path(index) == Path(name)
    assert default_dead_letters_path(index).parent == Path(".")


def test_dead_letters_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    for run in ("first", "second"):
        with closing(DeadLetters(path, run)) as letters:
            letters.write(RejectedRecord(Origin("f", 3), "why", raw=b"caf\xe9", size=4))
    first, second = (orjson.loads(line) for line in path.read_bytes().splitlines())
    assert (first["run"], second["run"]) == ("first", "second")
    assert (first["raw"], first["bytes"], first["line"]) == ("caf\\xe9", 4, 3)
    assert "document" not in first


def test_dead_letter_after_a_truncated_line_starts_a_new_line(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    path.write_bytes(b'{"reason": "cut of')
    with closing(DeadLetters(path, "run")) as letters:
        letters.write(RejectedRecord(Origin("f", 1), "why", document=b'{"a":1}', id="7"))
    cut, whole = path.read_bytes().splitlines()
    assert cut == b'{"reason": "cut of'
    assert orjson.loads(whole)["document"] == {"a": 1}


def test_quarantined_file_is_no_longer_appended_to(tmp_path: Path) -> None:
    """The retry reads it once and throws it away."""
    path = tmp_path / "dead.jsonl"
    with closing(DeadLetters(path, "run")) as letters:
        letters.write(RejectedRecord(Origin("f", 1), "why", document=b"{}", id="before"))
        with rename_lock(path):
            writer = Thread(target=letters.write, args=(RejectedRecord(Origin("f", 2), "why", id="while"),))
            writer.start()
            os.rename(path, quarantine_path(path))
        writer.join()
        letters.write(RejectedRecord(Origin("f", 3), "why", id="after"))
    assert ids(quarantine_path(path)) == ["before"]
    assert ids(path) == ["while", "after"]


def ids(path: Path) -> list[str]:
    return [orjson.loads(line)["id"] for line in path.read_bytes().splitlines()]


def test_reason_may_contain_surrogate_escapes(tmp_path: Path) -> None:
    with closing(DeadLetters(tmp_path / "dead.jsonl", "run")) as letters:
        letters.write(RejectedRecord(Origin("f", 1), f"the text field {os.fsdecode(bytes([0xE9]))} is missing"))
    assert orjson.loads((tmp_path / "dead.jsonl").read_bytes())["reason"] == "the text field \\udce9 is missing"


def test_no_dead_letters_create_no_file(tmp_path: Path) -> None:
    check_dead_letters_writable(tmp_path / "dead.jsonl")
    with closing(DeadLetters(tmp_path / "dead.jsonl", "run")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_unwritable_path_is_rejected_before_the_load(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "dead.jsonl"):
        with pytest.raises(OutputError, match="could not be written"):
            check_dead_letters_writable(path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_full_disk_raises_output_error() -> None:
    with (
        closing(DeadLetters(Path("/dev/full"), "run")) as letters,
        pytest.raises(OutputError, match="No space left on device"),
    ):
        letters.write(RejectedRecord(Origin("f", 1), "why", raw=b"x", size=1))


def test_resumed_load_writes_no_dead_letter_twice(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"

    def write(letters: DeadLetters) -> None:
        letters.write(RejectedRecord(Origin("f", 3), "why", raw=b"caf\xe9", size=4))
        letters.write(RejectedRecord(Origin("f", 4), "why", document=b'{"b": 1.50, "a": 2}', id="x"))

    with closing(DeadLetters(path, "run")) as letters:
        write(letters)
    with closing(DeadLetters(path, "another")) as letters:
        letters.write(RejectedRecord(Origin("f", 5), "why", raw=b"y", size=1))
    path.write_bytes(path.read_bytes() + b'{"run": "run", "cut o')
    keys = frozenset(dead_letter_keys(path, "run"))
    assert len(keys) == 2
    before = path.read_bytes()
    with closing(DeadLetters(path, "run", keys)) as letters:
        write(letters)
        assert path.read_bytes() == before
        letters.write(RejectedRecord(Origin("f", 4), "why", document=b'{"b": 1.50, "a": 3}', id="x"))
    assert len(path.read_bytes().splitlines()) == 5


def test_missing_file_has_no_dead_letter_keys(tmp_path: Path) -> None:
    assert list(dead_letter_keys(tmp_path / "dead.jsonl", "run")) == []
