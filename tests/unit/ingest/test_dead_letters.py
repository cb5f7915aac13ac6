"""The dead-letter file, as it is written and as a source."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from threading import Thread

import orjson
import pytest

from es_sbert.errors import OutputError, SourceError, UsageError
from es_sbert.filesystem import rename_lock
from es_sbert.ingest.dead_letters import (
    DeadLetterFile,
    DeadLetters,
    check_dead_letter_index,
    check_dead_letters_writable,
    dead_letter_keys,
    default_dead_letters_path,
    find_dead_letters,
    quarantine,
    quarantine_path,
)
from es_sbert.ingest.sources.document_source import Origin, ReadSettings, Record, RejectedRecord
from es_sbert.ingest.sources.file_sources import FileInput
from es_sbert.io.text_formats import split_lines
from tests.raised import raises, record


@pytest.mark.parametrize(
    ("index", "name"),
    [
        ("docs", "docs.dead-letters.jsonl"),
        ("a+b", "a%2Bb.dead-letters.jsonl"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd.dead-letters.jsonl"),
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


def test_unwritable_path_is_rejected_before_the_load(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "dead.jsonl"):
        with raises(OutputError, "dead_letters"):
            check_dead_letters_writable(path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_full_disk_raises_output_error() -> None:
    with (
        closing(DeadLetters(Path("/dev/full"), "run")) as letters,
        raises(OutputError, "dead_letters"),
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


SETTINGS = ReadSettings(max_bytes=2000, plain_text_field="text", target_index="docs")


def read(path: Path) -> list[Record | RejectedRecord]:
    source = DeadLetterFile(FileInput(str(path), path, None))
    return list(source.parse_lines(split_lines([path.read_bytes()], SETTINGS.max_bytes), SETTINGS))


def test_document_is_restored_byte_for_byte_with_its_id(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    own = b'{"n": 1.10, "document":{"a":1}, "text":"say \\"hi\\",\\"document\\":{}" }'
    with closing(DeadLetters(path, "run")) as letters:
        letters.write(
            RejectedRecord(Origin('f","document":{}', 3), 'no ,"document":{"x":1} of ours', document=own, id="d1")
        )
    [record] = read(path)
    assert isinstance(record, Record)
    assert (record.source, record.id, record.superseded) == (own, "d1", False)
    assert record.fields["n"] == 1.1
    assert record.origin == Origin(str(path), 1)
    assert record.written is not None
    assert record.written.endswith("Z")


@pytest.mark.parametrize(
    "letter",
    [
        b'{"document": {"text": "x"}, "id": "d", "time": "t"}',
        b'{"id":"d","document":{"text":"x"},"time":"t"}',
        b'{"id":"d","time":"t","document":{"text":"x"} }',
        b'{"id":"d","reason":",\\"document\\":{}","time":"t","document" : {"text":"x"}}',
    ],
)
def test_edited_dead_letter_yields_its_document(tmp_path: Path, letter: bytes) -> None:
    (tmp_path / "dead.jsonl").write_bytes(letter + b"\n")
    [record] = read(tmp_path / "dead.jsonl")
    assert isinstance(record, Record)
    assert (record.fields, record.id, record.written) == ({"text": "x"}, "d", "t")
    assert orjson.loads(record.source) == {"text": "x"}


def test_last_dead_letter_of_a_document_wins(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    with closing(DeadLetters(path, "run")) as letters:
        for text in (b"1", b"2"):
            letters.write(RejectedRecord(Origin("f", 1), "why", document=b'{"text":' + text + b"}", id="same"))
        letters.write(RejectedRecord(Origin("f", 1), "why", document=b'{"text":3}', id="other"))
        letters.write(RejectedRecord(Origin("f", 1), "why", document=b'{"text":4}'))
    records = [record for record in read(path) if isinstance(record, Record)]
    assert [(record.fields["text"], record.superseded) for record in records] == [
        (1, True), (2, False), (3, False), (4, False),
    ]  # fmt: skip


def test_dead_letter_without_whole_document_is_rejected_again(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    with closing(DeadLetters(path, "run")) as letters:
        letters.write(RejectedRecord(Origin("f", 3), "malformed JSON", raw=b"caf\xe9", size=4))
        letters.write(RejectedRecord(Origin("elsewhere", 0), "why", document=b'{"text":1}', id="a", partial=True))
        letters.write(RejectedRecord(Origin("index docs", 0), "why", document=b'{"text":2}', id="b"))
        letters.write(RejectedRecord(Origin("index other", 0), "why", document=b'{"text":3}', id="c"))
        letters.write(RejectedRecord(Origin("f", 1), "why", document=b'{"a":' + b"[" * 201 + b"]" * 201 + b"}", id="d"))
    path.write_bytes(path.read_bytes() + b"[1]\n{\n\n" + b"x" * 2001)
    raw, partial, ours, other, deep, array, broken, long = read(path)
    assert isinstance(raw, RejectedRecord)
    assert (raw.raw, raw.reason) == (b"caf\\xe9", "the dead letter holds no document: malformed JSON")
    for reject, identity in ((partial, "a"), (ours, "b")):
        assert isinstance(reject, RejectedRecord)
        assert (reject.id, reject.partial) == (identity, True)
        assert reject.document is not None
        assert "without FILE" in reject.reason
    assert isinstance(other, Record)
    assert isinstance(deep, RejectedRecord)
    assert (deep.id, deep.partial) == ("d", False)
    for reject, reason in ((deep, "nested more than"), (array, "array"), (broken, "malformed"), (long, "2,001 bytes")):
        assert isinstance(reject, RejectedRecord)
        assert reason in reject.reason


def test_quarantine_is_idempotent_and_takes_precedence(tmp_path: Path) -> None:
    file = tmp_path / "docs.dead-letters.jsonl"
    with raises(SourceError, "retry"):
        find_dead_letters(file)
    with raises(SourceError, "retry"):
        check_dead_letter_index(file, [])
    with raises(OutputError, "retry"):
        quarantine(file)
    file.write_bytes(b"{}\n")
    source = find_dead_letters(file)
    assert (source.path, source.size) == (quarantine_path(file), 3)
    quarantine(file)
    assert not file.exists()
    file.write_bytes(b"new letters\n")
    quarantine(file)
    assert quarantine_path(file).read_bytes() == b"{}\n"
    assert find_dead_letters(file).size == 3


def test_dead_letters_of_another_index_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    for index in (None, "docs", "other"):
        with closing(DeadLetters(path, "run", index=index)) as letters:
            letters.write(RejectedRecord(Origin("f", 3), "why", document=b'{"a":1}', id="7"))
        if index != "other":
            check_dead_letter_index(path, ["docs", "alias"])
    with raises(UsageError, "retry") as told:
        check_dead_letter_index(path, ["docs", "alias"])
    record(told.value)
    check_dead_letter_index(path, ["docs", "other"])
    path.rename(quarantine_path(path))
    with raises(UsageError, "retry"):
        check_dead_letter_index(path, ["docs"])
