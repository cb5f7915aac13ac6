"""Limits that an operator sets: what an engine refuses has a remedy."""

from __future__ import annotations

from collections.abc import Callable

from es_sbert.diagnostics.doctor import inspect_index
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.errors import EsSbertError, VectorIndexError
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load_documents import IterableSource
from es_sbert.ingest.load_plan import plan_load
from tests.conftest import also_es8
from tests.engine.ingest_support import open_engine
from tests.raised import raises_as_recorded

REQUEST = FieldRequest("embedding", "f" * 64, "m", 4)


@also_es8
def test_the_error_of_a_full_mapping_names_the_setting(engine: Engine, index_name: str) -> None:
    text = {"type": "text", "fields": {"raw": {"type": "keyword"}}}
    fields = {"text": text, "o": {"properties": {"a": {"type": "long"}}}}
    settings = {"number_of_replicas": 0, "index.mapping.total_fields.limit": 12, "index.mapping.nested_fields.limit": 0}
    if engine.info.engine_type is EngineType.OPENSEARCH:
        settings["index.knn"] = True
    engine.create_index(index_name, {"settings": settings, "mappings": {"properties": fields}})
    with raises_as_recorded(EsSbertError):
        ensure_vector_field(engine, index_name, REQUEST)
    assert "embedding" not in engine.get_indices(index_name)[0].mappings["properties"]
    nested = {"properties": {"n": {"type": "nested"}}}
    with raises_as_recorded(EsSbertError):
        engine.put_mapping(index_name, nested)
    engine.put_settings(index_name, {"index.mapping.total_fields.limit": "13"})
    ensure_vector_field(engine, index_name, REQUEST)


def test_an_index_that_takes_no_updates_is_refused_by_the_plan_and_doctor(
    opensearch_url: str, fresh_index: Callable[[str], str]
) -> None:
    name, setting = fresh_index(opensearch_url), "index.append_only.enabled"
    with open_engine(opensearch_url) as engine:
        engine.create_index(name, {"settings": {setting: True}})
        settings = IngestSettings(index=name, text_fields=("text",))
        for sources in ([], [IterableSource([{"text": "a"}])]):
            with raises_as_recorded(VectorIndexError):
                plan_load(engine, settings, sources)
        found = " ".join(f"{finding.message} {finding.remedy}" for finding in inspect_index(engine, name, [], []))
    assert setting in found
    assert f"`es-sbert ingest --index {name}`" not in found
