"""The first records of a load, of which none can be loaded, are refused with a remedy that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.errors import SourceError
from es_sbert.ingest.check_first_records import check_records, read_first_records
from es_sbert.ingest.load_documents import IterableSource
from es_sbert.ingest.load_plan import IngestSettings, LoadPlan, plan_fields
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.sources.document_source import DocumentSource, read_records


def refusal(*sources: DocumentSource, **settings: Any) -> SourceError:
    """Check the first records of sources for an index that does not exist, which needs no engine."""
    chosen = IngestSettings(index="docs", **settings)
    plan = LoadPlan(chosen, sources, plan_fields(chosen, {}), None, Path("dead"), None)
    info = EngineInfo(EngineType.ELASTICSEARCH, (9, 3, 0), "http://localhost:9200")
    first = read_first_records(plan, info, read_records(sources, plan.reading), LoadControl())
    with pytest.raises(SourceError) as caught:
        check_records(cast(Engine, None), plan, first)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": 1, "text": "a", "embedding": [1]}, "already has a field embedding"),
        ({"text": "a"}, "the id field id is missing"),
        ({"id": 1, "text": 5}, "the text field text is a JSON number"),
        ({"id": 1, "title": "a"}, "has the field text"),
        ({"id": 1, "text": ""}, "the text field text is empty in all of them"),
        ({"index": {"_id": "1"}}, "is a _bulk body: each document"),
        ({"hits": {"hits": []}}, "holds the hits of a search"),
    ],
)
def test_reason_is_named(fields: dict[str, Any], message: str) -> None:
    error = refusal(IterableSource([fields, fields]), id_field="id")
    assert message in error.message
    assert "_" in error.remedy  # the settings or fields that help
