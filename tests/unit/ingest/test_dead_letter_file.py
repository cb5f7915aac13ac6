"""Dead letters as a source: whole documents with their own bytes and ids; nothing that is not whole."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import orjson
import pytest

from es_sbert.errors import OutputError, SourceError, UsageError
from es_sbert.ingest.dead_letters import (
    DeadLetterFile,
    DeadLetters,
    check_dead_letter_index,
    find_dead_letters,
    quarantine,
    quarantine_path,
)
from es_sbert.ingest.sources.document_source import Origin, ReadSettings, Record, RejectedRecord
from es_sbert.ingest.sources.file_sources import FileInput
from es_sbert.io.text_formats import split_lines

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
        (1, True),
        (2, False),
        (3, False),
        (4, False),
    ]


def test_dead_letter_without_whole_document_is_rejected_again(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    with closing(DeadLetters(path, "run")) as letters:
        letters.write(RejectedRecord(Origin("f", 3), "malformed JSON", raw=b"caf\xe9", size=4))
        letters.write(RejectedRecord(Origin("elsewhere", 0), "why", document=b'{"text":1}', id="a", partial=True))
        letters.write(RejectedRecord(Origin("index docs", 0), "why", document=b'{"text":2}', id="b"))
        letters.write(RejectedRecord(Origin("index other", 0), "why", document=b'{"text":3}', id="c"))
    path.write_bytes(path.read_bytes() + b"[1]\n{\n\n")
    raw, partial, ours, other, array, broken = read(path)
    assert isinstance(raw, RejectedRecord)
    assert (raw.raw, raw.reason) == (b"caf\\xe9", "the dead letter holds no document: malformed JSON")
    for reject, identity in ((partial, "a"), (ours, "b")):
        assert isinstance(reject, RejectedRecord)
        assert (reject.id, reject.partial) == (identity, True)
        assert reject.document is not None
        assert "without FILE" in reject.reason
    assert isinstance(other, Record)
    for reject in (array, broken):
        assert isinstance(reject, RejectedRecord)


def test_quarantine_is_idempotent_and_takes_precedence(tmp_path: Path) -> None:
    file = tmp_path / "docs.dead-letters.jsonl"
    with pytest.raises(SourceError, match="there are no dead letters in"):
        find_dead_letters(file)
    file.write_bytes(b"{}\n")
    source = find_dead_letters(file)
    assert (source.path, source.size) == (quarantine_path(file), 3)
    quarantine(file)
    assert not file.exists()
    file.write_bytes(b"new letters\n")
    quarantine(file)
    assert quarantine_path(file).read_bytes() == b"{}\n"
    assert find_dead_letters(file).size == 3


def test_quarantine_of_missing_file_raises_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be renamed"):
        quarantine(tmp_path / "missing" / "file")


def test_dead_letters_of_another_index_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    for index in (None, "docs", "other"):
        with closing(DeadLetters(path, "run", index=index)) as letters:
            letters.write(RejectedRecord(Origin("f", 3), "why", document=b'{"a":1}', id="7"))
        if index != "other":
            check_dead_letter_index(path, ["docs", "alias"])
    with pytest.raises(UsageError, match="holds dead letters of the index other") as told:
        check_dead_letter_index(path, ["docs", "alias"])
    assert '`index="other"`' in told.value.remedy
    assert "sed -i" in told.value.remedy
    check_dead_letter_index(path, ["docs", "other"])
    path.rename(quarantine_path(path))
    with pytest.raises(UsageError, match="holds dead letters of the index other"):
        check_dead_letter_index(path, ["docs"])


def test_long_dead_letter_without_document_is_rejected(tmp_path: Path) -> None:
    """`raw` is set: the line itself, whose byte 65,536 is inside a character, is not decoded."""
    path = tmp_path / "dead.jsonl"
    for padding in ("", "x"):
        letter = {"reason": "why", "id": padding, "raw": "é" * 40_000}
        path.write_bytes(orjson.dumps(letter) + b"\n")
        [record] = DeadLetterFile(FileInput(str(path), path, None)).parse_lines(
            split_lines([path.read_bytes()], 1_000_000), SETTINGS
        )
        assert isinstance(record, RejectedRecord)
        assert record.raw.startswith("é".encode())
        path.write_bytes(orjson.dumps({"reason": padding + "é" * 40_000}) + b"\n")
        [record] = DeadLetterFile(FileInput(str(path), path, None)).parse_lines(
            split_lines([path.read_bytes()], 1_000_000), SETTINGS
        )
        assert isinstance(record, RejectedRecord)
        assert "the dead letter holds no document" in record.reason


@pytest.mark.parametrize(("levels", "loaded"), [(200, True), (201, False)])
def test_document_has_the_usual_depth_limit(tmp_path: Path, levels: int, loaded: bool) -> None:
    path = tmp_path / "dead.jsonl"
    document = b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)
    path.write_bytes(b'{"id":"d","document":' + document + b"}\n")
    [record] = read(path)
    assert isinstance(record, Record) == loaded
    if isinstance(record, RejectedRecord):
        assert (record.document, record.id) == (document, "d")
        assert "nested more than 200 levels deep" in record.reason
