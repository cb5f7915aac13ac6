"""The parts of `SemanticIndex.add` and its options that need no engine."""

from __future__ import annotations

import threading
from datetime import date
from decimal import Decimal
from typing import Any

import orjson

from es_sbert import SemanticIndex
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import SourceError, UsageError, WrongArgument
from es_sbert.index.vector_field import request_vector_field
from es_sbert.ingest.load_documents import IterableSource
from es_sbert.ingest.sources.document_source import ByteCounter, ReadContext, ReadSettings, Record, RejectedRecord
from tests.raised import raises, raises_as_recorded


def read(documents: Any, max_bytes: int = 1000) -> list[Record | RejectedRecord]:
    reading = ReadContext(ReadSettings(max_bytes, plain_text_field="text"), ByteCounter(), threading.Event())
    return list(IterableSource(documents).records(reading))


def test_dicts_become_records() -> None:
    first, second = read(iter([{"id": 1, "when": date(2026, 2, 3)}, {7: "seven"}]))
    assert isinstance(first, Record)
    assert (first.fields, str(first.origin)) == ({"id": 1, "when": "2026-02-03"}, "documents:1")
    assert orjson.loads(first.source) == first.fields
    assert isinstance(second, Record)
    assert second.fields == {"7": "seven"}


def test_failing_iterator_raises_source_error() -> None:
    def rows() -> Any:
        yield {"text": "a"}
        raise OSError("connection lost")

    with raises_as_recorded(SourceError):
        read(rows())


def test_field_id_is_the_id_of_its_document() -> None:
    documents = [
        {"_id": 7, "text": "a"},
        {"_id": b"b", "text": "b"},
        {"text": "c"},
        {"_id": 2**70, "n": Decimal("1.10")},
    ]
    records = read(documents)
    assert [getattr(record, "id", "") for record in records] == ["7", "b", None, str(2**70)]
    assert [getattr(record, "source", b"") for record in records] == [
        b'{"text":"a"}', b'{"text":"b"}', b'{"text":"c"}', b'{"n":1.10}',
    ]  # fmt: skip
    assert documents[0] == {"_id": 7, "text": "a"}, "the caller's dicts stay as they are"


def test_invalid_ids_are_rejected_with_the_whole_document() -> None:
    document = {"_id": {"$oid": "65a0"}, "text": "a"}
    [rejected, missing] = read([document, {"_id": float("nan"), "text": "b"}])
    assert isinstance(rejected, RejectedRecord)
    assert rejected.reason.endswith('not a string or an integer: set `id_field="_id.$oid"`')
    assert orjson.loads(rejected.document or b"") == document
    assert isinstance(missing, RejectedRecord)
    assert missing.reason == "the id field _id is null, not a string or an integer"


def test_dicts_that_json_cannot_hold_are_rejected_alone() -> None:
    endless: dict[str, Any] = {"text": "a"}
    endless["self"] = endless
    records = read([endless, {b"\xff": 1}, {"_id": 1, "text": 1j}, {"text": "b"}])
    reasons = [record.reason if isinstance(record, RejectedRecord) else "" for record in records]
    for part, reason in zip(["contains itself", "a key is bytes that", "a complex cannot", ""], reasons, strict=True):
        assert part in reason


def test_unknown_and_conflicting_options_are_rejected() -> None:
    unknown: Any = {"vector": "embedding"}
    with raises(WrongArgument, "vector", "embedding"):
        SemanticIndex("docs", **unknown)
    with raises(WrongArgument, "vector", "embedding"):
        SemanticIndex.create("docs", **unknown)
    with raises(WrongArgument, "offset", 1):
        SemanticIndex.search(SemanticIndex.__new__(SemanticIndex), "text", offset=1, size=2, boosts={})  # type: ignore[call-arg]
    with raises(UsageError, "vector_field"):
        SemanticIndex("docs", vector_field=["a", "b"])  # type: ignore[arg-type]
    both: Any = {"model": "all-MiniLM-L6-v2", "encoder": Encoder.__new__(Encoder)}
    with raises(UsageError, "model"):
        SemanticIndex.create("docs", **both)
    with raises(UsageError, "passage_overlap", 3):
        request_vector_field(None, passage_overlap=3)
