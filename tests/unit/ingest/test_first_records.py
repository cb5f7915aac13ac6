"""The remedy fits the reason why none of the first records can be loaded."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from es_sbert.errors import SourceError
from es_sbert.ingest.check_first_records import FirstRecords, _refuse_other_formats, _refuse_unloadable
from es_sbert.ingest.read_documents import DocumentRules
from es_sbert.ingest.sources.document_source import Origin, Record
from tests.unit.ingest.support import target

RULES = DocumentRules((target(),), "id")
TEXT, SOURCE = "Name the fields of the text", "Correct the source"


def first_records(*documents: dict[str, Any], rules: DocumentRules = RULES) -> FirstRecords:
    first = FirstRecords(rules)
    for line, fields in enumerate(documents, 1):
        first.add(Record(Origin("docs.jsonl", line), fields, orjson.dumps(fields)))
    return first


def refusal(first: FirstRecords) -> SourceError:
    with pytest.raises(SourceError) as caught:
        _refuse_unloadable(first)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "remedy", "others"),
    [
        ({"id": 1, "text": "a", "embedding": [1]}, "Set `vector_field` to a different name, or leave the field out.",
         (TEXT, SOURCE, "id_field")),
        ({"text": "a"}, "Correct `id_field`, or leave it out: ids are then hashes of the content.", (TEXT, SOURCE)),
        ({"id": 1.5, "text": "a"}, "Correct `id_field`, or leave it out: ids are then hashes of the content.", (TEXT,)),
        ({"id": 1, "text": 5}, TEXT, ("id_field", "vector_field")),
        ({"id": 1, "title": "a"}, TEXT, ("id_field", "vector_field")),
        ({"id": 1, "text": ""}, TEXT, ("id_field", "vector_field")),
        ({"id": "x" * 600, "text": "a"}, SOURCE, (TEXT, "id_field", "vector_field")),
    ],
)  # fmt: skip
def test_remedy_fits_the_reason(fields: dict[str, Any], remedy: str, others: tuple[str, ...]) -> None:
    error = refusal(first_records(fields, fields))
    assert remedy in error.remedy
    assert not [other for other in others if other in error.remedy]


def test_id_and_text_that_are_both_missing_have_both_remedies() -> None:
    error = refusal(first_records({"body": "a", "key": 1}))
    assert "`id_field`" in error.remedy
    assert TEXT in error.remedy


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (({"index": {"_id": "1"}}, {"text": "a"}), "docs.jsonl is a _bulk body: each document"),
        (({"hits": {"hits": []}},), "docs.jsonl is the response to a search"),
        (({"_source": {"text": "a"}},), "docs.jsonl holds the hits of a search"),
    ],
)
def test_other_formats_are_named(documents: tuple[dict[str, Any], ...], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        _refuse_other_formats(first_records(*documents))
    assert caught.value.message.startswith(message)
