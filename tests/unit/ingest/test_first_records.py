"""The remedy fits the reason why none of the first records can be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.errors import SourceError
from es_sbert.ingest.check_first_records import (
    FirstRecords,
    _refuse_other_formats,
    _refuse_unloadable,
    check_records,
    read_first_records,
)
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load_documents import IterableSource
from es_sbert.ingest.load_plan import LoadPlan, plan_fields
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.read_documents import DocumentRules
from es_sbert.ingest.sources.document_source import DocumentSource, Origin, Record, read_records
from es_sbert.ingest.sources.file_sources import find_sources
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


def check(
    *sources: DocumentSource, control: LoadControl, text_template: str = "{text}", interrupt: bool = False
) -> None:
    """Check the first records of sources for an index that does not exist, without an engine."""
    settings = IngestSettings(index="docs", text_template=text_template, retry_seconds=3600)
    plan = LoadPlan(settings, sources, plan_fields(settings, {}), None, Path("dead"), None)
    info = EngineInfo(EngineType.ELASTICSEARCH, (9, 3, 0), "http://localhost:9200")
    first = read_first_records(plan, info, read_records(sources[:1], plan.reading), control)
    if interrupt:
        control.interrupt()
    check_records(cast(Engine, None), plan, first, control)


@pytest.mark.parametrize(
    ("document", "remedy"),
    [
        ({"title": "a"}, "Put the text there, or create the index with other text_fields"),
        ({"text": "a", "embedding": [1]}, "create the index with another vector_field"),
    ],
)
def test_remedy_for_documents_from_python_names_no_setting_that_add_lacks(
    document: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(SourceError) as caught:
        check(IterableSource([document]), control=LoadControl())
    assert remedy in caught.value.remedy
    assert "`text_fields`" not in caught.value.remedy
    assert "`vector_field`" not in caught.value.remedy


def test_further_files_are_searched_until_a_stop(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "a", "body": "b"}\n')
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "a"}\n')
    a, b, c = find_sources([str(tmp_path / f"{name}.jsonl") for name in "abc"], None)
    check(a, b, control=LoadControl(), text_template="{text} {body}")
    with pytest.raises(SourceError, match="has the field body"):
        check(a, c, control=LoadControl(), text_template="{text} {body}")
    check(a, c, control=LoadControl(), text_template="{text} {body}", interrupt=True)
