"""The first records of a load, of which none can be loaded, are refused with a remedy that fits."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.errors import SourceError
from es_sbert.ingest.check_first_records import check_records, read_first_records
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load_documents import IterableSource
from es_sbert.ingest.load_plan import LoadPlan, plan_fields
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.sources.document_source import DocumentSource, read_records
from es_sbert.ingest.sources.file_sources import FileInput, TextSource
from es_sbert.io.file_formats import FileFormat
from tests.raised import raises_as_recorded


def refusal(*sources: DocumentSource, **settings: Any) -> SourceError:
    """Check the first records of sources for an index that does not exist, which needs no engine."""
    chosen = IngestSettings(index="docs", **settings)
    plan = LoadPlan(chosen, sources, plan_fields(chosen, {}), None, Path("dead"), None)
    info = EngineInfo(EngineType.ELASTICSEARCH, (9, 3, 0), "http://localhost:9200")
    first = read_first_records(plan, info, read_records(sources, plan.reading), LoadControl())
    with raises_as_recorded(SourceError) as caught:
        check_records(cast(Engine, None), plan, first)
    return caught.value


@pytest.mark.parametrize(
    "fields",
    [
        {"id": 1, "text": "a", "embedding": [1]},
        {"text": "a"},
        {"id": 1, "text": 5},
        {"id": 1, "title": "a"},
        {"id": 1, "text": ""},
        {"index": {"_id": "1"}},
        {"hits": {"hits": []}},
    ],
)
def test_reason_is_named(fields: dict[str, Any]) -> None:
    refusal(IterableSource([fields, fields]), id_field="id")


def test_no_more_than_the_first_records_are_read_for_a_text() -> None:
    refusal(IterableSource(itertools.repeat({"text": " "})))


def test_array_of_a_pipe_is_refused_with_a_command_that_converts_it(tmp_path: Path) -> None:
    for name in (tmp_path / "a b", "-"):
        (tmp_path / "a b").write_bytes(b'[{"text": "a"}]\n')
        refusal(TextSource(FileInput(str(name), tmp_path / "a b"), FileFormat.JSONL))
