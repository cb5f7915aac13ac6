"""JSON Lines, CSV, TSV and plain lines as records."""

from __future__ import annotations

import csv
import io
from contextlib import nullcontext, suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.ingest.dead_letters import DeadLetterFile
from es_sbert.ingest.sources.document_source import ReadSettings, Record, RejectedRecord
from es_sbert.ingest.sources.file_sources import FileInput, TextSource
from es_sbert.io.file_formats import FileFormat
from es_sbert.io.text_formats import MAX_DEPTH, CorruptStream, split_lines

SETTINGS = ReadSettings(max_bytes=1000, plain_text_field="text")
LINE_FORMATS = [FileFormat.JSONL, FileFormat.CSV, FileFormat.TSV, FileFormat.LINES, None]
# Text without lone surrogates, which UTF-8 cannot hold.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
objects = st.dictionaries(
    texts, st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts, st.lists, max_leaves=4)
)


def source_of(form: FileFormat | None) -> TextSource | DeadLetterFile:
    """Standard input in a format; None for a dead-letter file."""
    return DeadLetterFile(FileInput("file")) if form is None else TextSource(FileInput("file"), form)


def read(data: bytes, form: FileFormat, settings: ReadSettings = SETTINGS) -> list[Record | RejectedRecord]:
    source = TextSource(FileInput("file"), form)
    return list(source.parse_lines(split_lines([data], settings.max_bytes), settings))


def fields(data: bytes, form: FileFormat) -> list[dict[str, object]]:
    records = read(data, form, ReadSettings(max_bytes=1 << 20, plain_text_field="text"))
    assert all(isinstance(record, Record) for record in records), records
    return [record.fields for record in records if isinstance(record, Record)]


def reasons(data: bytes, form: FileFormat) -> list[str]:
    return [f"{r.origin}: {r.reason}" for r in read(data, form) if isinstance(r, RejectedRecord)]


@given(st.lists(objects, max_size=5))
def test_jsonl_round_trip(documents: list[dict[str, object]]) -> None:
    data = b"\n".join(map(orjson.dumps, documents))
    assert fields(data, FileFormat.JSONL) == documents


def test_jsonl_keeps_source_bytes() -> None:
    line = b'{"n": 1.10, "big": 123456789012345678901234567890 }'
    [record] = read(line + b"\r\n\n  \n", FileFormat.JSONL)
    assert isinstance(record, Record)
    assert record.source == line


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "malformed JSON"), (b'{"a": NaN}', "malformed JSON"),
        (b"[1]", "the line is a JSON array, not an object"), (b'"text"', "the line is a JSON string, not an object"),
        (b'{"a": "caf\xe9"}', "invalid UTF-8: byte 0xe9 at position 10"), (b"[" * 2000, "more than the limit"),
    ],
)  # fmt: skip
def test_invalid_line_rejects_only_itself(line: bytes, reason: str) -> None:
    records = read(b'{"id": 1}\n' + line + b'\n{"id": 2}', FileFormat.JSONL)
    assert [record.fields for record in records if isinstance(record, Record)] == [{"id": 1}, {"id": 2}]
    [reject] = [record for record in records if isinstance(record, RejectedRecord)]
    assert str(reject.origin) == "file:2"
    assert reason in reject.reason
    assert reject.size == len(line)


columns = st.lists(texts.filter(bool), min_size=1, max_size=4, unique=True)


@given(columns, st.data())
def test_csv_round_trip(names: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(texts, min_size=len(names), max_size=len(names)), max_size=5))
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([names, *rows])
    assert fields(out.getvalue().encode(), FileFormat.CSV) == [dict(zip(names, row, strict=True)) for row in rows]


tsv_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r"), max_size=20)


@given(st.lists(tsv_texts.filter(bool), min_size=1, max_size=4, unique=True), st.data())
def test_tsv_round_trip(names: list[str], data: st.DataObject) -> None:
    cells = st.lists(tsv_texts, min_size=len(names), max_size=len(names))
    # A row of one empty cell is an empty line, which is no row.
    rows = data.draw(st.lists(cells.filter(lambda row: row != [""]), max_size=5))
    text = "\n".join("\t".join(row) for row in [names, *rows])
    assert fields(text.encode(), FileFormat.TSV) == [dict(zip(names, row, strict=True)) for row in rows]


def test_errors_of_tables_name_the_first_line_of_the_row() -> None:
    data = b'id,text\n1,"two\nlines"\n2\n3,fine\n4,a,b\n6,"x"y\n7,ok'
    assert reasons(data, FileFormat.CSV) == [
        "file:4: the row has 1 column, the header 2",
        "file:6: the row has 3 columns, the header 2",
        """file:7: malformed CSV: ',' expected after '"'""",
    ]
    [too_long] = reasons(b"id\ttext\n" + b"x" * 2000 + b"\n1\ta", FileFormat.TSV)
    assert too_long.startswith("file:2: the line has 2,000 bytes, more than the limit")


def test_unclosed_quote_is_limited_to_the_document_size() -> None:
    rows = b"".join(b"%d,some text\n" % number for number in range(200))
    records = read(b'id,text\n1,"open\n' + rows, FileFormat.CSV)
    assert isinstance(records[0], RejectedRecord)
    assert "not closed up to line" in records[0].reason
    rest = [record for record in records[1:] if isinstance(record, Record)]
    assert len(rest) == len(records) - 1 > 50
    assert rest[-1].fields == {"id": "199", "text": "some text"}


@given(st.binary(max_size=300), st.sampled_from(LINE_FORMATS))
def test_any_text_yields_records_or_rejects(data: bytes, form: FileFormat | None) -> None:
    source = source_of(form)
    if form is not None:  # dead letters may be cut inside a character
        data = data.decode(errors="replace").encode()
    records: list[Record | RejectedRecord] = []
    # What cannot be a header ends the source; nothing else may raise.
    with suppress(CorruptStream) if form in (FileFormat.CSV, FileFormat.TSV) else nullcontext():
        records.extend(source.parse_lines(split_lines([data], 100), SETTINGS))
    for record in records:
        if isinstance(record, Record):
            assert orjson.loads(record.source) == record.fields
        else:
            assert record.reason


@given(st.integers(1, 400), st.sampled_from([("[", "]"), ('{"a":', "}")]))
def test_nesting_depth_is_limited(depth: int, brackets: tuple[str, str]) -> None:
    line = f'{{"a": {brackets[0] * depth}1{brackets[1] * depth}}}'.encode()
    [record] = read(line, FileFormat.JSONL, ReadSettings(max_bytes=1 << 20, plain_text_field="text"))
    if depth < MAX_DEPTH:
        assert isinstance(record, Record)
        assert orjson.loads(orjson.dumps({"document": record.fields})) == {"document": record.fields}
    else:
        assert isinstance(record, RejectedRecord)
        assert "nested more than" in record.reason
